"""``cutaway ab``: two ways to answer the same questions, with the same luck."""

import json
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections import Counter
from typing import TYPE_CHECKING, Any

from cutaway.cli import arguments, console, namespace
from cutaway.cli.terminal.drawing import print_report, table
from cutaway.errors import InputError
from cutaway.features.measure.commands.question_files import read_questions

if TYPE_CHECKING:
    from cutaway.features.measure.paired import Paired

COMMON = "-m --b --samples --limit --prompt --max-tokens --temperature --seed --json"
EPILOG = """
examples:
  cutaway ab questions.jsonl --b temperature=0.3 --max-tokens 24
  cutaway ab questions.jsonl -m model-q8_0.gguf --b model=model-q4_0.gguf
  cutaway ab questions.jsonl --prompt "Q: {prompt} A:" --b "prompt=Question: {prompt} Answer:"
  cutaway ab promptfooconfig.yaml --b top_p=0.5 --samples 8
  cutaway ab lm-eval:gsm8k --b quantize=q4_0 --limit 50

The flags say what A is, and each --b what is other in B: model, quantize, kv, prompt, or an option
of the API. FILE has one JSON object a line: "prompt", and what the answer must hold: "contains",
"icontains", "equals" or "regex". A file of promptfoo with "tests" is read, too: its vars fill the
first of its prompts, and assertions of those four kinds count; others are refused. Of a task of
lm-eval that writes (generate_until), by name or as a YAML file, the few-shot prompts, stop strings,
filters and first metric are taken.

Each question is answered with the same seeds both ways. Two ways that differ little then draw
mostly the same texts, so that fewer samples tell them apart: SAVED says how many times as many
independent ones would be needed. The interval holds 95 % over questions.
"""
_LOADING = ("model", "quantize", "kv")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway ab``."""
    parser.add_argument("file", metavar="FILE", help="the questions; or lm-eval:TASK")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N questions")
    parser.add_argument("--b", type=_change, action="append", default=[], metavar="NAME=VALUE",
                        help="what is other in B; repeat for more")  # fmt: skip
    parser.add_argument("--samples", type=int, default=4, metavar="N",
                        help="answers to each question; default 4")  # fmt: skip
    parser.add_argument("--prompt", default="{prompt}", metavar="TEXT",
                        help="what is read, with {prompt} where the question goes")  # fmt: skip
    arguments.add_model_arguments(parser)
    arguments.add_groups(parser, *arguments.REQUEST)
    arguments.add_report_arguments(parser)


def run(args: Namespace) -> int:
    """Answer, print, and return 0."""
    options, changes = namespace.request_options(args), dict(args.b)
    if not changes:
        raise InputError("--b: say what is other in B, as --b temperature=0.3")
    seed, questions = options.pop("seed", 0), read_questions(args.file, args.limit)
    own = {name: value for name, value in changes.items() if name not in (*_LOADING, "prompt")}
    from cutaway.requests.options import parse_options

    parse_options(options | own)  # refused before a model is loaded
    a = b = console.load(args)
    if any(name in changes for name in _LOADING):
        loading = {name: str(changes[name]) for name in _LOADING if name in changes}
        b = console.load(Namespace(**vars(args) | loading))
    from cutaway.features.measure.paired import Way, compare_ways

    template = str(changes.get("prompt", args.prompt))
    ways = Way(a, args.prompt, options), Way(b, template, options | own)
    with console.progress(show=not args.quiet) as progress:
        done = compare_ways(questions, *ways, samples=args.samples, seed=seed, progress=progress)
    print_report(args, done.to_dict, lambda: _report(done, len(questions), args.samples))
    return 0


def _report(done: "Paired", questions: int, samples: int) -> list[str]:
    d = done.difference
    saved = "no pair differs" if done.saved is None else f"×{done.saved:.1f}"
    rows = [
        ("A RIGHT", "B RIGHT", "B - A", "95 %", "SAME TEXT", "SAVED"),
        (f"{done.a:.1%}", f"{done.b:.1%}", f"{d.mean:+.1%}", f"{d.low:+.1%} to {d.high:+.1%}",
         f"{done.same:.0%}", saved),
    ]  # fmt: skip
    lines = [f"{questions} questions, {samples} seeds each", *table(rows)]
    parted = Counter(one.parts_at for one in done.answers if one.parts_at is not None)
    if parted:
        for at, count in sorted(parted.items()):
            lines.append(f"  {at:>4}  {'█' * min(count, 60)} {count}")
    return lines


def _change(text: str) -> tuple[str, Any]:
    name, sign, value = text.partition("=")
    if not (name and sign):
        raise ArgumentTypeError(f"write NAME=VALUE, as temperature=0.3: {text!r}")
    try:
        return name.replace("-", "_"), json.loads(value)
    except ValueError:
        return name.replace("-", "_"), value
