"""``cutaway trace why``: why a text ended, and not earlier; or a history of one canvas cell."""

from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from typing import Any

from cutaway.base.counting import check_index, count_from_1
from cutaway.cli.options import arguments
from cutaway.cli.terminal.drawing import names_of, print_report, table
from cutaway.errors import InputError
from cutaway.registry import feature
from cutaway.trace import CellMoment, Trace, cell_life, why
from cutaway.trace.canvas import rule_label
from cutaway.trace.endings import (
    CLOSEST,
    Why,
    constraint_sentences,
    outcome_phrase,
    status_sentence,
)
from cutaway.trace.figures import percent, phrase

EPILOG = """
examples:
  cutaway trace why run.jsonl
  cutaway trace why run.jsonl --closest 20
  cutaway trace why run.jsonl --json          every step
  cutaway trace why run.jsonl -m smollm2      and the end token's logit attribution
  cutaway trace why canvas.jsonl 12           the life of a cell of a canvas

The record alone answers; with a model, the end token's logit attribution is computed, too: at the
step that drew it, or at the one where the text came closest to ending.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway trace why``."""
    arguments.add_trace(parser)
    parser.add_argument(
        "cell", nargs="?", type=arguments.read_cell, metavar="CELL",
        help="of a canvas: what each pass made of this cell, from 1",
    )  # fmt: skip
    closest = "list the N steps at which an end was likeliest"
    arguments.add_number(parser, "--closest", CLOSEST, closest)
    arguments.add_loading_arguments(parser)
    arguments.add_report_arguments(parser)


def run(args: Namespace) -> int:
    """Answer from the trace; with -m, add the end token's logit attribution."""
    if args.closest < 0:
        raise InputError(f"--closest must be 0 or more, not {args.closest}")
    trace = Trace.read(args.file)
    if args.cell is not None:
        if trace.head.decoder:
            check_index("CELL", args.cell, range(trace.head.cells))
        moments = cell_life(trace, args.cell)
        print_report(
            args, lambda: [moment.to_dict() for moment in moments],
            lambda: _life(trace, args.cell, moments),
        )  # fmt: skip
        return 0
    answer = why(trace, args.closest)
    document, lines = answer.to_dict(), _lines(trace, answer)
    if hasattr(args, "model"):
        document["logit_attribution"], more = _attribution(args, trace)
        lines += ["", *more]
    print_report(args, lambda: document, lambda: lines)
    return 0


def _attribution(args: Namespace, trace: Trace) -> tuple[Any, list[str]]:
    """Return the end token's logit attribution, as data and as lines."""
    from cutaway.cli.terminal import console

    with console.load(args) as llm:
        attribution = feature("inside.end_attribution").end_attribution(llm, trace)
        if attribution is None:
            return None, ["No end token is on record, so there is no logit to attribute."]
        return asdict(attribution), [
            attribution.sentence(names_of(llm.tokenizer)),
            phrase("attribution is no effect"),
        ]


def _lines(trace: Trace, answer: Why) -> list[str]:
    lines = [answer.sentence, *constraint_sentences(trace), ""]
    if not answer.moments:
        return [*lines, "No end token is on record at any step."]
    counts = (f"{outcome_phrase(name)} ({count})" for name, count in answer.outcomes.items())
    lines.append(f"At {len(answer.moments)} steps, the end token {', '.join(counts)}.")
    if answer.closest:
        lines.append("The text came closest to ending before at")
        lines += [f"  {status_sentence(trace, moment)}" for moment in answer.closest]
    return lines


# -- a cell of a canvas --------------------------------------------------------------------------


def _life(trace: Trace, cell: int, moments: tuple[CellMoment, ...]) -> list[str]:
    """Return a sentence for each change of a cell, and a row for each pass."""
    assert trace.head.decoder is not None
    place = f"Cell {count_from_1(cell)}, at position {len(trace.head.prompt_token_ids) + cell}"
    rows = [("pass", "best", "p", "bits", "figure", "place", "drawn", "")]
    return [
        f"{place}; the rule: {rule_label(trace.head.decoder.rule)}",
        *(_sentence(trace, moment) for moment in moments if moment.event),
        "",
        *table([*rows, *map(_row, moments)]),
    ]


def _sentence(trace: Trace, moment: CellMoment) -> str:
    at, decoder = f"Pass {count_from_1(moment.index)}", trace.head.decoder
    assert decoder is not None
    rule = decoder.rule
    match moment.event:
        case "forced":
            instead = "" if moment.was is None else f" in the place of '{moment.was}'"
            return f"{at}: '{moment.now}' was given{instead}."
        case "edited":
            return f"{at}: '{moment.now}' took the place of '{moment.was}' (remask {rule.remask})."
        case "masked again":
            token = moment.was if moment.was is not None else moment.drawn
            blank = "noise" if rule.start == "noise" else "the mask"
            return f"{at}: '{token}' made way for {blank} (remask {rule.remask})."
    place = f"{moment.place} of {moment.masked} by {rule.order}"
    line = f"{at}: revealed with '{moment.now}', number {place}."
    if moment.neighbour is None:
        return f"{line} No {'noise' if rule.start == 'noise' else 'masked cell'} was left."
    margin = f"{abs(moment.margin or 0.0):.4g}"
    below = "missed by" if (moment.margin or 0.0) >= 0 else "was ahead by"
    return f"{line} Next in line was cell {count_from_1(moment.neighbour)}, which {below} {margin}."


def _row(moment: CellMoment) -> tuple[str, ...]:
    if moment.figure is None:
        return str(count_from_1(moment.index)), *[""] * 6, moment.event
    place = "" if moment.place is None else f"{moment.place} of {moment.masked}"
    missed = "" if moment.now is None else "kept"
    if moment.now is None and moment.neighbour is not None:
        number = count_from_1(moment.neighbour)
        missed = f"missed by {-(moment.margin or 0.0):.4g} behind cell {number}"
    return (
        str(count_from_1(moment.index)), f"'{moment.best}'", percent(moment.p),
        f"{moment.entropy:.2f}", f"{moment.figure:.4g}", place, f"'{moment.drawn}'",
        moment.event or missed,
    )  # fmt: skip
