"""What follows from the recorded passes of a canvas: figures, its state over time, a cell's life.

Cells are counted from 0, as steps are.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from math import sqrt
from typing import Any

import numpy as np

from cutaway.base.arithmetic import plainly
from cutaway.engine.canvas import Rule
from cutaway.engine.events import Pass, PassCell
from cutaway.errors import InputError
from cutaway.trace.figures import in_bits, probability
from cutaway.trace.read import Trace


@dataclass(frozen=True, slots=True)
class CanvasFigures:
    """Figures of a whole run.

    rows             computed in all passes
    tokens           cells that have a token after the last recorded pass, of ``cells`` in all
    tokens_per_pass  ``tokens`` / ``passes``
    order            Kendall's tau-b between the passes that revealed the tokens and their
                     positions: 1 is from left to right, -1 from right to left; None where one
                     pass revealed all
    bound_bits       the most that revealing cells together can have lost, summed over the passes
    edited, masked_again  how often a token was replaced by another, or by the mask
    """

    passes: int
    rows: int
    tokens: int
    cells: int
    tokens_per_pass: float
    order: float | None
    bound_bits: float
    edited: int
    masked_again: int

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class CellMoment:
    """What a pass did to one cell.

    index        of the pass
    event        "revealed", "forced", "edited", "masked again", or "" where nothing changed
    was, now     names of its tokens before and after the pass; None: masked
    drawn        name of the token drawn for it; this and all below are None where the pass did
                 not look at the cell
    best, p      the likeliest token but the mask, and its probability under the model's own logits
    entropy      in bits
    figure       by which the rule orders cells
    place        in that order, from 1, among the ``masked`` cells that the pass looked at; None:
                 the cell was not masked
    neighbour    for a revealed cell, the first in the order that was not revealed; for one that
                 stayed masked, the last that was; None: there is none
    margin       this cell's figure less the neighbour's
    """

    index: int
    event: str
    was: str | None
    now: str | None
    drawn: str | None = None
    best: str | None = None
    p: float | None = None
    entropy: float | None = None
    figure: float | None = None
    place: int | None = None
    masked: int = 0
    neighbour: int | None = None
    margin: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


def check_canvas(trace: Trace) -> None:
    """InputError unless the trace is of a canvas."""
    if trace.head.decoder is None:
        raise InputError("the trace is of no canvas: its text was written from left to right")


@plainly
def canvas_figures(trace: Trace) -> CanvasFigures:
    """The figures of a canvas; InputError where the trace is of none."""
    check_canvas(trace)
    passes, came = trace.passes, came_in(trace.passes)
    return CanvasFigures(
        passes=len(passes),
        rows=sum(made.rows for made in passes),
        tokens=len(came),
        cells=trace.head.cells,
        tokens_per_pass=len(came) / len(passes) if passes else 0.0,
        order=kendall([*came.values()]),
        bound_bits=in_bits(sum(made.bound for made in passes)),
        edited=sum(len(edited(made)) for made in passes),
        masked_again=sum(len(made.masked_again) for made in passes),
    )


def edited(made: Pass) -> list[PassCell]:
    """The cells whose token a pass replaced by another."""
    return [c for c in made.cells if None not in (c.was, c.now) and c.was != c.now]


def standing(passes: Iterable[Pass]) -> list[dict[int, int]]:
    """The canvas after each pass: position -> token id; masked cells are absent."""
    stands: dict[int, int] = {}
    states = []
    for made in passes:
        both = {**stands, **made.tokens_after}
        stands = {position: token for position, token in both.items() if token is not None}
        states.append(stands)
    return states


@plainly
def cell_life(trace: Trace, cell: int) -> tuple[CellMoment, ...]:
    """What each pass that looked at a cell, or masked it again, did to it. InputError for no such
    cell."""
    check_canvas(trace)
    first, states = len(trace.head.prompt_token_ids), standing(trace.passes)
    known = {one.position - first for made in trace.passes for one in made.cells}
    if cell not in known:
        raise InputError(
            "cell", f" must be one that a pass looked at, 0 to {max(known, default=0)}"
        )
    moments = []
    for made, before in zip(trace.passes, [{}, *states], strict=False):
        own = next((one for one in made.cells if one.position == first + cell), None)
        if own is not None:
            moments.append(_moment(trace, made, own))
        elif first + cell in made.masked_again:
            was = trace.name_of(before[first + cell])
            moments.append(CellMoment(made.index, "masked again", was, None))
    return tuple(moments)


def rule_label(rule: Rule) -> str:
    """A rule's settings in a line, with the number of its forced cells."""
    settings = {"order": rule.order} | rule.to_json()
    if rule.forced_cells:
        settings["forced_cells"] = len(rule.forced_cells)
    return ", ".join(f"{name} {value}" for name, value in settings.items())


def in_order(cells: Iterable[PassCell]) -> list[PassCell]:
    """The masked cells in the order of their figures; ties go to the lowest position."""
    return sorted((c for c in cells if c.was is None), key=lambda c: (-c.figure, c.position))


def _moment(trace: Trace, made: Pass, own: PassCell) -> CellMoment:
    first, line, event = len(trace.head.prompt_token_ids), in_order(made.cells), _event(made, own)
    forced = _forced(trace, made)
    chosen = [c for c in line if c.now is not None and c.position not in forced]
    left = [c for c in line if c.now is None]
    if event in ("revealed", "edited") and own.position in forced:
        event = "forced"
    other = (left[:1] if own.now is not None else chosen[-1:]) if own.was is None else []
    best = own.likely[0] if own.likely else None
    return CellMoment(
        index=made.index,
        event=event,
        was=None if own.was is None else trace.name_of(own.was),
        now=None if own.now is None else trace.name_of(own.now),
        drawn=trace.name_of(own.token_id),
        best=best and trace.name_of(best[0]),
        p=best and probability(best[1]),
        entropy=in_bits(own.entropy),
        figure=own.figure,
        place=line.index(own) + 1 if own in line else None,
        masked=len(line),
        neighbour=other[0].position - first if other else None,
        margin=own.figure - other[0].figure if other else None,
    )


def _event(made: Pass, own: PassCell) -> str:
    if own.position in made.masked_again:
        return "masked again"
    if own.was == own.now:
        return ""
    return "revealed" if own.was is None else "edited"


def _forced(trace: Trace, made: Pass) -> set[int]:
    """Positions whose token was forced in a pass."""
    decoder, first = trace.head.decoder, len(trace.head.prompt_token_ids)
    given = decoder.rule.forced_cells if decoder else ()
    return {first + one.cell for one in given if one.pass_index == made.index}


def came_in(passes: Iterable[Pass]) -> dict[int, int]:
    """Position, in order -> the pass that put its final token there; masked cells are absent."""
    came: dict[int, int] = {}
    for made in passes:
        for cell in made.cells:
            if cell.now is None:
                came.pop(cell.position, None)
            elif cell.now != cell.was:
                came[cell.position] = made.index
        for position in made.masked_again:
            came.pop(position, None)
    return dict(sorted(came.items()))


def kendall(passes: list[int]) -> float | None:
    """Kendall's tau-b between these numbers and their order; None where all are equal."""
    of = np.array(passes, np.int64)
    signs = [np.sign(of[i + 1 :] - of[i]) for i in range(len(of) - 1)]
    apart = sum(int(np.count_nonzero(sign)) for sign in signs)
    pairs = len(of) * (len(of) - 1) // 2
    return sum(int(sign.sum()) for sign in signs) / sqrt(pairs * apart) if apart else None
