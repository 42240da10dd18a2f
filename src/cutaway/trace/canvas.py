"""Figures of a canvas from its recorded passes, the canvas after each pass, and a cell's history.

The indices of cells and passes count from 0, as those of steps do.
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
from cutaway.trace.figures import probability, to_bits
from cutaway.trace.read import Trace


@dataclass(frozen=True, slots=True)
class CanvasFigures:
    """Figures of a whole run.

    rows             rows computed in all passes
    tokens           number of ``cells`` with a token after the last recorded pass
    tokens_per_pass  ``tokens`` / ``passes``
    order            Kendall's tau-b between the positions of tokens and the passes that revealed
                     them: 1 is from left to right, -1 from right to left; None if one pass
                     revealed all
    bound_bits       upper bound on the total loss from revealing several cells in one pass, in bits
    edited, masked_again  how often another token, or the mask, replaced a token
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
        """Return a value for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class CellMoment:
    """The effect of a pass on one cell.

    index        index of the pass
    event        "revealed", "forced", "edited", "masked again", or "" if nothing changed
    was, now     names of the cell's tokens before and after the pass; None: masked
    drawn        name of the token drawn for the cell; this and all fields below, except ``masked``,
                 are None if the pass did not look at the cell
    best, p      the likeliest token except the mask, and its probability under the model's own
                 logits
    entropy      entropy in bits
    figure       the figure by which the rule orders cells
    place        the cell's place in that order, from 1, among the ``masked`` cells that the pass
                 looked at, or among all where the rule chooses among all; None: it has no place
    neighbour    for a revealed cell, the first cell in the order that was not revealed; for a cell
                 that stayed masked, the last one that was revealed; None: no such cell
    margin       this cell's figure minus the neighbour's
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
        """Return a value for JSON."""
        return asdict(self)


def check_canvas(trace: Trace) -> None:
    """Raise InputError unless the trace records a canvas."""
    if trace.head.decoder is None:
        raise InputError("the trace is of no canvas: its text was written from left to right")


@plainly
def canvas_figures(trace: Trace) -> CanvasFigures:
    """Return the figures of a canvas; InputError if the trace records none."""
    check_canvas(trace)
    passes, came = trace.passes, came_in(trace.passes)
    return CanvasFigures(
        passes=len(passes),
        rows=sum(canvas_pass.rows for canvas_pass in passes),
        tokens=len(came),
        cells=trace.head.cells,
        tokens_per_pass=len(came) / len(passes) if passes else 0.0,
        order=kendall([*came.values()]),
        bound_bits=to_bits(sum(canvas_pass.bound for canvas_pass in passes)),
        edited=sum(len(find_edited_cells(canvas_pass)) for canvas_pass in passes),
        masked_again=sum(len(canvas_pass.masked_again) for canvas_pass in passes),
    )


def find_edited_cells(canvas_pass: Pass) -> list[PassCell]:
    """Return the cells in which a pass replaced a token by another."""
    return [c for c in canvas_pass.cells if None not in (c.was, c.now) and c.was != c.now]


def standing(passes: Iterable[Pass]) -> list[dict[int, int]]:
    """Return the canvas after each pass: position -> token id; masked cells are absent."""
    stands: dict[int, int] = {}
    states = []
    for canvas_pass in passes:
        updated = {**stands, **canvas_pass.tokens_after}
        stands = {position: token for position, token in updated.items() if token is not None}
        states.append(stands)
    return states


@plainly
def cell_life(trace: Trace, cell: int) -> tuple[CellMoment, ...]:
    """Return the effect of each pass that looked at a cell or masked it again.

    InputError if the canvas has no such cell.
    """
    check_canvas(trace)
    first, states = len(trace.head.prompt_token_ids), standing(trace.passes)
    positions = {
        seen_cell.position - first
        for canvas_pass in trace.passes
        for seen_cell in canvas_pass.cells
    }
    if cell not in positions:
        raise InputError("cell", " must be one that a pass looked at")
    moments = []
    for canvas_pass, before in zip(trace.passes, [{}, *states], strict=False):
        pass_cell = next(
            (seen_cell for seen_cell in canvas_pass.cells if seen_cell.position == first + cell),
            None,
        )
        if pass_cell is not None:
            moments.append(_moment(trace, canvas_pass, pass_cell))
        elif first + cell in canvas_pass.masked_again:
            was = trace.name_of(before[first + cell])
            moments.append(CellMoment(canvas_pass.index, "masked again", was, None))
    return tuple(moments)


def rule_label(rule: Rule) -> str:
    """Return a rule's settings as one line, with the number of its forced cells."""
    settings = {"order": rule.order} | rule.to_json()
    if rule.forced_cells:
        settings["forced_cells"] = len(rule.forced_cells)
    return ", ".join(f"{name} {value}" for name, value in settings.items())


def sort_by_figure(cells: Iterable[PassCell], *, masked: bool = True) -> list[PassCell]:
    """Return cells in the order of their figures; ties go to the lowest position.

    masked: only those that were masked before the pass
    """
    line = (cell for cell in cells if cell.was is None or not masked)
    return sorted(line, key=lambda cell: (-cell.figure, cell.position))


def _moment(trace: Trace, canvas_pass: Pass, cell: PassCell) -> CellMoment:
    first, event = len(trace.head.prompt_token_ids), _event(canvas_pass, cell)
    line = sort_by_figure(canvas_pass.cells, masked=not trace.head.chooses_anew)
    forced = _forced_positions(trace, canvas_pass)
    unmasked = [c for c in line if c.now is not None and c.position not in forced]
    left = [c for c in line if c.now is None]
    if event in ("revealed", "edited") and cell.position in forced:
        event = "forced"
    other = (left[:1] if cell.now is not None else unmasked[-1:]) if cell in line else []
    best = cell.likely[0] if cell.likely else None
    return CellMoment(
        index=canvas_pass.index,
        event=event,
        was=None if cell.was is None else trace.name_of(cell.was),
        now=None if cell.now is None else trace.name_of(cell.now),
        drawn=trace.name_of(cell.token_id),
        best=best and trace.name_of(best[0]),
        p=best and probability(best[1]),
        entropy=to_bits(cell.entropy),
        figure=cell.figure,
        place=line.index(cell) + 1 if cell in line else None,
        masked=len(line),
        neighbour=other[0].position - first if other else None,
        margin=cell.figure - other[0].figure if other else None,
    )


def _event(canvas_pass: Pass, cell: PassCell) -> str:
    if cell.position in canvas_pass.masked_again:
        return "masked again"
    if cell.was == cell.now:
        return ""
    return "revealed" if cell.was is None else "edited"


def passes_over(trace: Trace, cell: int) -> range:
    """Return the indices of the passes over the block of a cell."""
    position = len(trace.head.prompt_token_ids) + cell
    passes = [p.index for p in trace.passes if position in range(*p.block)]
    return range(passes[0], passes[-1] + 1) if passes else range(0)


def _forced_positions(trace: Trace, canvas_pass: Pass) -> set[int]:
    """Return the positions at which the rule forces a token in a pass."""
    decoder, first = trace.head.decoder, len(trace.head.prompt_token_ids)
    forced_cells = decoder.rule.forced_cells if decoder else ()
    return {first + cell.cell for cell in forced_cells if cell.pass_index == canvas_pass.index}


def came_in(passes: Iterable[Pass]) -> dict[int, int]:
    """Map each position, in order, to the pass of its final token; masked cells are absent."""
    came: dict[int, int] = {}
    for canvas_pass in passes:
        for cell in canvas_pass.cells:
            if cell.now is None:
                came.pop(cell.position, None)
            elif cell.now != cell.was:
                came[cell.position] = canvas_pass.index
        for position in canvas_pass.masked_again:
            came.pop(position, None)
    return dict(sorted(came.items()))


def kendall(passes: list[int]) -> float | None:
    """Return Kendall's tau-b between these numbers and their order; None if all are equal."""
    numbers = np.array(passes, np.int64)
    signs = [np.sign(numbers[i + 1 :] - numbers[i]) for i in range(len(numbers) - 1)]
    apart = sum(int(np.count_nonzero(sign)) for sign in signs)
    pairs = len(numbers) * (len(numbers) - 1) // 2
    return sum(int(sign.sum()) for sign in signs) / sqrt(pairs * apart) if apart else None
