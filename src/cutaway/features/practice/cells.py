"""The next cell of a canvas by hand: the cells of one pass, and the cells that each rule reveals.

The right answer is the result of ``canvas.Canvas.reveal`` with the same figures.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cutaway.base.counting import count_from_1
from cutaway.engine.canvas import Figures, Rule, make_canvas
from cutaway.errors import InputError
from cutaway.features.practice import BITS, COUNT, Numbers, TokenAnswer
from cutaway.features.practice.exercises import Block, Exercise, Table, number, number_rows
from cutaway.features.practice.start import TOKENS, shorten, step_of, visible
from cutaway.sampling import Sampled
from cutaway.sampling.fixed_math import entropy, log
from cutaway.trace import Trace
from cutaway.trace.canvas import sort_by_figure
from cutaway.trace.figures import probability, to_bits

TOPIC = "cells"
THRESHOLD = 0.5
_GAP = "▢"


@dataclass(frozen=True, slots=True)
class Cells:
    """Masked cells of a pass, in the order of their positions.

    text          the canvas, with a gap for each masked cell
    best, drawn   names of each cell's likeliest token, and of the token that its luck drew
    p, second, p_drawn  probabilities of the likeliest, the second likeliest and the drawn token
    entropy       of each cell's distribution, in nats
    made          the pass of the run that the cells come from; None: the sample
    """

    text: str
    best: tuple[str, ...]
    drawn: tuple[str, ...]
    p: tuple[float, ...]
    second: tuple[float, ...]
    p_drawn: tuple[float, ...]
    entropy: tuple[float, ...]
    made: int | None = None

    def __post_init__(self) -> None:
        n = len(self.best)
        if not 2 <= n <= TOKENS:
            raise InputError("best", f" must have 2 to {TOKENS} cells, not {n}")
        for name in ("drawn", "p", "second", "p_drawn", "entropy"):
            if len(getattr(self, name)) != n:
                raise InputError(name, f" must have one for each of the {n} cells")
        for name, highest in (("p", 1), ("second", 1), ("p_drawn", 1), ("entropy", 100)):
            if not all(0 <= figure <= highest for figure in getattr(self, name)):  # nor is any NaN
                raise InputError(name, f" must lie between 0 and {highest}")

    @property
    def introduction(self) -> str:
        """A paragraph on the cells and figures that the exercises give."""
        place = "" if self.made is None else f" in pass {count_from_1(self.made)} of your run"
        return (
            f"Here are {len(self.best)} masked cells{place}. The model has looked at all of them "
            "at once: the likeliest token of each with its probability p, the second likeliest's, "
            "the entropy, and the token that the cell's luck drew. A rule says which of them are "
            "revealed in this pass; the others stay masked, and the next pass looks again."
        )


def _sample() -> Cells:
    """Five cells; each rule reveals a different one first."""
    rows = (
        ("cat", "dog", (0.55, 0.25, *(0.025,) * 8), 1),
        ("sat", "lay", (0.50, 0.08, *(0.03,) * 14), 1),
        ("on", "in", (0.53, 0.47), 1),
        ("warm", "warm", (0.52, 0.20, *(0.04,) * 7), 0),
        ("sofa", "roof", (0.21, 0.20, *(0.059,) * 10), 1),
    )
    return Cells(
        text=f"The {_GAP} {_GAP} {_GAP} the {_GAP} {_GAP}",
        best=tuple(best for best, *_ in rows),
        drawn=tuple(drawn_token for _, drawn_token, *_ in rows),
        p=tuple(p[0] for *_, p, _ in rows),
        second=tuple(p[1] for *_, p, _ in rows),
        p_drawn=tuple(p[at] for *_, p, at in rows),
        entropy=tuple(entropy(log(np.array(p))) for *_, p, _ in rows),
    )


SAMPLE_CELLS = _sample()


def cells_of_trace(trace: Trace, index: int | None = None) -> Cells:
    """Take cells of the recorded pass that revealed a step's token.

    These are the cells that come first in the rule's order. index: the step's index; None takes the
    first pass. InputError if the run has no canvas, or the pass had only one masked cell.
    """
    if trace.head.decoder is None:
        raise InputError("topic", f" {TOPIC}: this trace is of no canvas; record one with denoise")
    pass_index = 0 if index is None else step_of(trace, index).pass_index
    run_pass = trace.passes[pass_index or 0]
    ranked = sort_by_figure(cell for cell in run_pass.cells if len(cell.likely) > 1)
    cells = sorted(ranked[:TOKENS], key=lambda cell: cell.position)
    if len(cells) < 2:
        raise InputError(
            "topic",
            f" {TOPIC}: pass {count_from_1(run_pass.index)} had one masked cell: take another step",
        )
    first, ids = len(trace.head.prompt_token_ids), dict.fromkeys(range(run_pass.block[1]), _GAP)
    for earlier in trace.passes[: run_pass.index + 1]:
        for cell in earlier.cells:
            ids[cell.position] = _GAP if cell.was is None else trace.name_of(cell.was)
    cells_text = "".join(ids[position] for position in range(first, run_pass.block[1]))
    return Cells(
        text=shorten((trace.head.prompt or "") + cells_text),
        best=tuple(visible(trace.name_of(cell.likely[0][0])) for cell in cells),
        drawn=tuple(visible(trace.name_of(cell.token_id)) for cell in cells),
        p=tuple(probability(cell.likely[0][1]) for cell in cells),
        second=tuple(probability(cell.likely[1][1]) for cell in cells),
        p_drawn=tuple(probability(cell.logprob) for cell in cells),
        entropy=tuple(cell.entropy for cell in cells),
        made=run_pass.index,
    )


def reveal_cells(cells: Cells, rule: Rule) -> tuple[list[int], list[float], float]:
    """Reveal cells by ``Canvas.reveal``.

    Returns (rows of the revealed cells, the figures that order the cells, the bound in nats).
    """
    n = len(cells.best)
    canvas = make_canvas(rule, 0, n)
    columns = (cells.p_drawn, cells.p, cells.second, cells.entropy)
    p_drawn, p_best, p_second, entropy = (np.array(column, np.float64) for column in columns)
    cell_figures = Figures(np.arange(n), p_drawn, p_best, p_second, entropy)
    samples = [Sampled(i, i, 1, 0.0, 0) for i in range(n)]
    done = canvas.reveal(samples, cell_figures, 0)
    rows = [i for i, cell in enumerate(canvas.cells) if cell.sampled]
    return rows, done.figures.tolist(), done.bound


def cell_exercises(cells: Cells) -> tuple[Exercise, ...]:
    """Ask which cell each rule reveals next, how many it reveals at once, and the possible loss."""
    return (
        _next(
            cells, Rule(), "the surest cell goes first: that whose likeliest token has the "
            "highest p", "only the column p matters.", "p",
        ),
        _next(
            cells, Rule(order="margin"), "the cell goes first whose likeliest token is furthest "
            "ahead of the second", "subtract the second from p.", "p − second",
        ),
        _next(
            cells, Rule(order="entropy"), "the cell with the lowest entropy goes first",
            "a cell that wavers between two tokens has less than one that wavers among twenty.",
            "−entropy, bits",
        ),
        _next(
            cells, Rule(draws_first=True), "each cell draws its token first, and the cell goes "
            "first whose drawn token has the highest p (LLaDA)", "the last column, and no other.",
            "p of the drawn",
        ),
        *_together(cells),
    )  # fmt: skip


def _cells_table(cells: Cells) -> Table:
    bits = [number(to_bits(nats)) for nats in cells.entropy]
    return number_rows(
        cells.best,
        {
            "p": [number(p) for p in cells.p], "second": [number(p) for p in cells.second],
            "entropy, bits": bits, "drawn": cells.drawn, "its p": [*map(number, cells.p_drawn)],
        },
    )  # fmt: skip


def _next(cells: Cells, rule: Rule, words: str, hint: str, name: str) -> Exercise:
    [row], figures, _ = reveal_cells(cells, rule)
    fates = ["revealed" if i == row else "" for i in range(len(figures))]
    figures = [to_bits(nats) for nats in figures] if rule.order == "entropy" else figures
    columns: dict[str, Sequence[str]] = {name: [*map(number, figures)], "": fates}
    return Exercise(
        TOPIC,
        f"One cell a pass; {words}. Which cell is revealed next? Name it by its likeliest token or "
        "its number.",
        _cells_table(cells),
        TokenAnswer(cells.best, row),
        hint,
        (
            number_rows(cells.best, columns),
            f"{cells.drawn[row]} is the token that its luck drew.",
        ),
    )


def _together(cells: Cells) -> tuple[Exercise, Exercise]:
    rows, _, bound = reveal_cells(cells, Rule(threshold=THRESHOLD))
    fates = ["revealed" if i in rows else "" for i in range(len(cells.p))]
    bits = [number(to_bits(nats)) if i in rows else "" for i, nats in enumerate(cells.entropy)]
    last: tuple[Block, ...] = (
        number_rows(cells.best, {"entropy, bits": bits, "": fates}),
        f"The sum less the largest is {number(to_bits(bound))} bits. One after another, each cell "
        "would have seen the ones before it; together, each was drawn as if the others were still "
        "masked. That is the most that fewer passes cost on average.",
    )
    return (
        Exercise(
            TOPIC,
            f"A threshold reveals at once all cells whose p is {THRESHOLD:g} or more, and the "
            "surest in any case. How many are revealed in this pass?",
            _cells_table(cells),
            Numbers((len(rows),), ("cells",), COUNT),
            "look at p alone.",
            (number_rows(cells.best, {"p": [number(p) for p in cells.p], "": fates}),),
        ),
        Exercise(
            TOPIC,
            "Cells that are revealed together do not see each other. On average that loses at most "
            "the sum of their entropies less the largest. How many bits is it here?",
            _cells_table(cells),
            Numbers((to_bits(bound),), ("bound",), BITS),
            f"of the {len(rows)} that the threshold reveals.",
            last,
        ),
    )
