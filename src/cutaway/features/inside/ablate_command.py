"""``cutaway trace ablate``: the probabilities of a step without each part of the text.

Prints the text, tinted by each part's effect, and a table.
"""

import shutil
import sys
import textwrap
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from cutaway.base.counting import check_index, count_from_1
from cutaway.cli.options import arguments, namespace
from cutaway.cli.terminal import console, drawing, streams
from cutaway.cli.terminal.drawing import (
    PLAIN,
    Line,
    Style,
    clip,
    join_spans,
    quote,
    table,
    text_of,
    width,
    wrap,
)
from cutaway.trace import Trace
from cutaway.trace.figures import percent, phrase, probability, to_bits

if TYPE_CHECKING:
    from cutaway.features.inside.ablate import AblatedPart, Ablation

EPILOG = """
examples:
  cutaway trace ablate run.jsonl --step 12
  cutaway trace ablate run.jsonl --step 12 --by word --rival " never"
  cutaway trace ablate run.jsonl --step 12 --by sentence --budget 10
  cutaway trace ablate run.jsonl --step 12 --how other --other " the"

Each part is left out in turn, and the rest is run again: exactly, in batches, with the same luck.
  log p lost  of the token, in nats: at 0.7 it is half as likely without the part, at 2.3 a tenth
  margin lost  of the token over its rival
  drawn        what the same luck then draws, where it is another
The other columns are attention weights and logit attribution: docs/inside.md.
delete: what follows moves up. knock_out: no later token attends to the part; positions stay.
other: the model's own likeliest other token, or --other, in each place but the first. The parts
with the largest attributions come first; after --budget seconds, or Ctrl-C, those done are printed.
"""
_SOON_S = 1.0  # a shorter ablation shows no progress


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway trace ablate``."""
    arguments.add_step(parser)
    for flag, default, text in (
        ("--by", "token", "what a part is: token, word, line or sentence"),
        ("--how", "delete", "how it is taken away: delete, knock_out or other"),
    ):
        parser.add_argument(flag, default=default, help=f"{text}; default {default}")
    parser.add_argument(
        "--other", metavar="TOKEN", help="with --how other: this token, as text or id"
    )
    parser.add_argument(
        "--budget",
        type=float,
        metavar="SECONDS",
        help="stop after this many seconds, and print the parts that are done",
    )
    arguments.add_model_arguments(parser)
    arguments.add_report_arguments(parser)


def run(args: Namespace) -> int:
    """Remove parts, print the effects, and return 0, or 130 where Ctrl-C ended the ablation."""
    trace = Trace.read(args.file)
    check_index("--step", args.step, range(len(trace.steps) or args.step + 1))
    llm = console.load(args)
    from cutaway.features.inside.ablate import ablate

    stop, show = console.Stop(), not args.quiet
    bars = console.progress(
        show=show, after=_SOON_S,
        figures=lambda done, total, seconds: f"{done} of {total} {args.by}s, {seconds:.0f} s",
    )  # fmt: skip
    with console.stoppable(stop), bars as report:
        ablation = ablate(
            llm, trace, args.step, by=args.by, how=args.how, budget_s=args.budget,
            other=namespace.token(args.other), rival=namespace.token(args.rival),
            progress=report, stopped=lambda: stop.stop_asked,
        )  # fmt: skip
    if args.json:
        streams.print_json(ablation.to_dict(llm.tokenizer.token_name))
    else:
        style, cells = drawing.Style.from_stream(sys.stdout), shutil.get_terminal_size().columns
        print("\n".join(lines(ablation, partial(text_of, llm.tokenizer), style, cells)))
    return 130 if stop.stop_asked else 0


# -- the printed lines -----------------------------------------------------------------------------


Text = Callable[[Sequence[int]], str]
"""Turns tokens into the text that they add, or into their names."""

_MAX_LINES = 24  # lines of a table that could have thousands
_TEXT = 24  # cells of a part that are shown
_BITS = 8  # of a part that has the strongest tint
_METHODS = {
    "delete": "deleted",
    "knock_out": "not seen by what follows",
    "other": "replaced by another token",
}


def lines(ablation: "Ablation", text: Text, style: Style, cells: int) -> list[str]:
    """Write the ablation for a terminal ``cells`` wide."""
    token, rival = (quote(text([token_id])) for token_id in (ablation.token, ablation.rival))
    first = (
        f"step {count_from_1(ablation.step)}: {token}, "
        f"{percent(probability(ablation.logprob))}, compared with {rival}, "
        f"{percent(probability(ablation.rival_logprob))}"
    )
    tried_line = (
        f"{len(ablation.parts)} of {ablation.total} {ablation.by}s, each {_METHODS[ablation.how]}"
    )
    row = f"{ablation.row_hash:016x}"
    last = phrase("same row" if ablation.is_as_run else "other row", row=row)
    body = [
        *_strip(ablation, text, style, max(cells, 2)),
        "",
        *_table(ablation, text, style),
        *textwrap.wrap(phrase("not because"), max(cells, 20)),
    ]
    middle = body if ablation.parts else ["Nothing was done in time."]
    within = partial(textwrap.wrap, width=max(cells, 20))
    return [*within(first), *within(tried_line), "", *middle, "", *within(last)]


# -- the text --------------------------------------------------------------------------------


def _strip(ablation: "Ablation", text: Text, style: Style, cells: int) -> Iterator[str]:
    """Write the tinted text; without colour, a line of bars below each line shows the effects."""
    for row in wrap(_characters(ablation, text, style), cells):
        runs = join_spans(row)
        line: Line = [(part, PLAIN if share is None else style.tint(share)) for part, share in runs]
        yield style.render(line, cells).rstrip()
        if not style.colour:
            heights = (share for part, share in runs for _ in range(width(part)))
            yield style.spark(heights).rstrip()


def _characters(
    ablation: "Ablation", text: Text, style: Style
) -> Iterator[tuple[str, float | None]]:
    """Yield each character and its tint, 0 … 1; None if its part was not tried or has no effect."""
    at, ids = 0, ablation.token_ids
    for part in sorted(ablation.parts, key=lambda part: part.start):
        share = to_bits(max(part.effect, 0.0)) / _BITS
        yield from ((c, None) for c in style.text(text(ids[at : part.start])))
        yield from ((c, share or None) for c in style.text(text(part.token_ids)))
        at = part.stop
    yield from ((c, None) for c in style.text(text(ids[at:])))


# -- the table -------------------------------------------------------------------------------


def _table(ablation: "Ablation", text: Text, style: Style) -> list[str]:
    ordered = sorted(ablation.parts, key=lambda part: -abs(part.effect))
    head = (
        "position",
        ablation.by,
        *(["instead"] if ablation.how == "other" else []),
        "weight",
        "attribution",
    )
    rows = [_row(ablation, part, text, style) for part in ordered[:_MAX_LINES]]
    table_lines = table([(*head, "log p lost", "margin lost", "drawn"), *rows])
    if rest := ordered[_MAX_LINES:]:
        smallest, largest = (f(part.effect for part in rest) for f in (min, max))
        table_lines.append(
            f"the other {len(rest)}: log p lost from {smallest:+.3f} to {largest:+.3f}"
        )
    if any(part.drawn is None for part in ablation.parts):
        table_lines.append("The chain of this run cannot be repeated here, so nothing is drawn.")
    return table_lines


def _row(ablation: "Ablation", part: "AblatedPart", text: Text, style: Style) -> tuple[str, ...]:
    last = part.stop - 1
    place = str(part.start) if part.start == last else f"{part.start}-{last}"
    changed = part.drawn not in (None, ablation.drawn)
    instead = [_short(text(part.instead), style)] if ablation.how == "other" else []
    return (
        place.rjust(8), _short(text(part.token_ids), style), *instead, percent(part.weight),
        f"{part.attribution:+.3f}", f"{part.effect:+10.3f}", f"{part.margin:+9.3f}",
        _short(text([part.drawn or 0]), style) if changed else "",
    )  # fmt: skip


def _short(text: str, style: Style) -> str:
    text_shown = quote(text)
    return (
        text_shown
        if width(text_shown) <= _TEXT
        else clip(text_shown, _TEXT - 1) + style.pick("…", "~")
    )
