"""``cutaway trace export``: a recorded run in other programs' formats, or as one HTML page."""

import re
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from cutaway.base.counting import count_from_1
from cutaway.cli.options import arguments
from cutaway.cli.terminal import console
from cutaway.cli.terminal.streams import check_output, print_json, print_utf_8
from cutaway.errors import InputError
from cutaway.registry import feature
from cutaway.trace import Trace, to_csv, to_html, to_openai, to_passes_csv

EPILOG = """
examples:
  cutaway trace export run.jsonl --format openai > logprobs.json
  cutaway trace export run.jsonl --format openai --when after
  cutaway trace export run.jsonl --format csv > run.csv
  cutaway trace export canvas.jsonl --format passes > passes.csv
  cutaway trace export run.jsonl --html run.html
  cutaway trace export run.jsonl --html run.html --inside 1-20 -m smollm2

openai is the "logprobs" object of a chat completion: with --when before, of the model's own logits,
with --when after, among the survivors of the sampling chain. csv has both, in UTF-8. passes is csv
of a canvas, a row for each cell that a pass looked at. html is one file that opens from disk and
fetches nothing; with --inside it holds the inside of these steps, which the model computes again:
about 150 kB a step at 512 tokens of SmolLM2.
"""
_STEPS = re.compile(r"(\d+)(?:-(\d+))?")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway trace export``."""
    arguments.add_trace(parser)
    form = parser.add_mutually_exclusive_group(required=True)
    form.add_argument("--format", choices=("openai", "csv", "passes"))
    form.add_argument("--html", metavar="OUT", help="write the run as one HTML page")
    parser.add_argument(
        "--when", choices=("before", "after"), help="before (default) or after the sampling chain"
    )
    parser.add_argument(
        "--inside", type=_spans, metavar="STEPS",
        help="with --html: the inside of these steps, from 1: 1-20,40",
    )  # fmt: skip
    arguments.add_model_arguments(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")


def run(args: Namespace) -> int:
    """Print or write the whole run."""
    if args.format != "openai" and args.when:
        raise InputError("--when is for --format openai; csv has both")
    if args.inside and not args.html:
        raise InputError("--inside is for --html; 'cutaway trace inside' prints a step")
    trace = Trace.read(args.file)
    if args.html:
        _write_page(args, Path(args.html), trace)
    elif args.format == "csv":
        print_utf_8(to_csv(trace))
    elif args.format == "passes":
        print_utf_8(to_passes_csv(trace))
    else:
        print_json(to_openai(trace, args.when or "before"))
    return 0


def _write_page(args: Namespace, out: Path, trace: Trace) -> None:
    steps = _steps(args.inside, len(trace.steps)) if args.inside else []
    try:
        if out.exists() and trace.path and out.samefile(trace.path):
            raise InputError(f"--html: {out} is the trace itself; name another file")
        check_output("--html", args.html)  # before anything is computed
        page = to_html(trace, dict(_looks(args, trace, steps)) if steps else None)
        out.write_text(page, encoding="utf-8")
    except OSError as error:
        raise InputError(f"--html: {out} cannot be written: {error.strerror}") from error


def _spans(text: str) -> list[range]:
    """Read a list of steps and of ranges of steps as indices."""
    spans = []
    for part in text.split(","):
        match = _STEPS.fullmatch(part.strip())
        if not match:
            raise ArgumentTypeError(f"{part!r:.40} is no step, and no range such as 1-20")
        first, last = (arguments.read_step(number) for number in (match[1], match[2] or match[1]))
        spans.append(range(first, last + 1))
    return spans


def _steps(spans: list[range], count: int) -> list[int]:
    """Return the indices in order; InputError if a span is empty, or the trace lacks a step."""
    for span in spans:
        if not span or span[-1] >= count:
            first, last = count_from_1(span.start), count_from_1(span.stop - 1)
            raise InputError(f"--inside: {first}-{last} is not within 1 to {count}")
    return sorted({*chain(*spans)})


def _looks(args: Namespace, trace: Trace, steps: list[int]) -> Iterator[tuple[int, bytes]]:
    inside, summary = feature("inside.look"), feature("inside.summary")
    llm = console.load(args)
    with llm, console.progress(show=not args.quiet) as report:
        for done, step in enumerate(steps):
            look = inside.inside(llm, trace, step)
            views = look, look.logit_attribution(), look.lens(1)
            description = summary.page_header(
                *views, llm.tokenizer.token_name, trace=trace.sha256, model=llm.name
            )
            yield step, summary.to_bytes(*views, description)
            report("looking inside", done + 1, len(steps))
