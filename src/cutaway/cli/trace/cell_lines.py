"""The life of a cell of a canvas in lines: what ``cutaway trace why FILE CELL`` prints."""

from cutaway.cli.terminal.drawing import table
from cutaway.trace import CellMoment, Trace
from cutaway.trace.canvas import rule_label
from cutaway.trace.figures import percent


def life(trace: Trace, cell: int, moments: tuple[CellMoment, ...]) -> list[str]:
    """A sentence for each thing that happened, and a row for each pass."""
    assert trace.head.decoder is not None
    position = len(trace.head.prompt_token_ids) + cell
    rows = [("pass", "best", "p", "bits", "figure", "place", "drawn", "")]
    return [
        f"Cell {cell}, at position {position}; the rule: {rule_label(trace.head.decoder.rule)}",
        *(_sentence(trace, moment) for moment in moments if moment.event),
        "",
        *table([*rows, *map(_row, moments)]),
    ]


def _sentence(trace: Trace, moment: CellMoment) -> str:
    at, decoder = f"Pass {moment.index}", trace.head.decoder
    assert decoder is not None
    match moment.event:
        case "forced":
            instead = "" if moment.was is None else f" in the place of '{moment.was}'"
            return f"{at}: '{moment.now}' was given{instead}."
        case "edited":
            return f"{at}: '{moment.now}' took the place of '{moment.was}' (remask edit)."
        case "masked again":
            what = moment.was if moment.was is not None else moment.drawn
            return f"{at}: '{what}' made way for the mask (remask {decoder.rule.remask})."
    place = f"{moment.place} of {moment.masked} by {decoder.rule.order}"
    line = f"{at}: revealed with '{moment.now}', number {place}."
    if moment.neighbour is None:
        return f"{line} No masked cell was left."
    margin = f"{abs(moment.margin or 0.0):.4g}"
    below = "missed by" if (moment.margin or 0.0) >= 0 else "was ahead by"
    return f"{line} Next in line was cell {moment.neighbour}, which {below} {margin}."


def _row(moment: CellMoment) -> tuple[str, ...]:
    if moment.figure is None:
        return str(moment.index), *[""] * 6, moment.event
    place = "" if moment.place is None else f"{moment.place} of {moment.masked}"
    missed = ""
    if not moment.event and moment.neighbour is not None:
        missed = f"missed by {-(moment.margin or 0.0):.4g} behind cell {moment.neighbour}"
    return (
        str(moment.index), f"'{moment.best}'", percent(moment.p), f"{moment.entropy:.2f}",
        f"{moment.figure:.4g}", place, f"'{moment.drawn}'", moment.event or missed,
    )  # fmt: skip
