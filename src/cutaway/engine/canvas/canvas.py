"""The cells of one text, and the block of them that is being revealed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cutaway.engine.canvas.reveal import (
    BlockProgress,
    Figures,
    bound,
    edited,
    figure,
    how_many,
    masked_again,
    ranked,
)  # fmt: skip
from cutaway.engine.canvas.rule import Rule
from cutaway.sampling import Sampled
from cutaway.sampling.fixed_math import Floats, exp

MOST_EDITS = 16
"""How many passes look for edits at most, once no cell of a block is masked."""


@dataclass(slots=True)
class Cell:
    """Masked, or revealed.

    drawn   the draw that it was revealed with; None while it is masked
    passed  the index of that pass
    """

    drawn: Sampled | None = None
    passed: int = -1

    @property
    def token_id(self) -> int | None:
        """Its token; None while it is masked."""
        return None if self.drawn is None else self.drawn.token_id


class Revealed(NamedTuple):
    """What a pass did to the cells that it computed.

    figures       of each cell; the rule's order follows them
    masked_again  cells that were masked again
    bound         see ``reveal.bound``
    """

    figures: Floats
    masked_again: list[int]
    bound: float


@dataclass(slots=True)
class Canvas:
    """The state of one canvas. Cells are counted from 0.

    rule     how it is revealed
    first    position of the first cell
    blocks   of cells, (first, after the last), in the order in which they are finished
    passes   in the schedule of each block
    block    the current one
    index    passes so far, over all blocks
    step     of the current block in its schedule
    edits    passes over the current block that began without masked cells
    is_done  whether the current block is finished
    """

    rule: Rule
    first: int
    cells: list[Cell]
    blocks: list[tuple[int, int]]
    passes: list[int]
    block: int = 0
    index: int = 0
    step: int = 0
    edits: int = 0
    is_done: bool = False

    @property
    def is_full(self) -> bool:
        """Whether all blocks are finished."""
        return self.block == len(self.blocks)

    @property
    def span(self) -> tuple[int, int]:
        """The current block: its first cell, and the one after its last."""
        return self.blocks[self.block]

    @property
    def masked(self) -> list[int]:
        """The masked cells of the current block."""
        return [i for i in range(*self.span) if self.cells[i].drawn is None]

    @property
    def asked(self) -> list[int]:
        """The cells that the next pass computes."""
        if self.rule.remask == "edit":
            return list(range(*self.span))
        return sorted({*self.masked, *self.forced})

    @property
    def forced(self) -> dict[int, int]:
        """Cells of the current block that are forced in the next pass, and their tokens."""
        return {
            cell: token_id
            for passed, cell, token_id in self.rule.forced_cells
            if passed == self.index and cell in range(*self.span)
        }

    def token_ids(self, mask_id: int) -> list[int]:
        """The token of each cell, or the mask."""
        return [mask_id if cell.drawn is None else cell.drawn.token_id for cell in self.cells]

    def reveal(self, drawn: Sequence[Sampled], of: Figures, seed: int) -> Revealed:
        """Apply the rule to the computed cells and their draws."""
        asked = self.asked
        masked = np.array([self.cells[cell].drawn is None for cell in asked], np.bool_)
        values = figure(self.rule, of, seed, self._progress)
        given = {n for n, cell in enumerate(asked) if cell in self.forced}
        fresh = sorted(self._fresh(of, values, masked) | {n for n in given if masked[n]})
        other = np.array(
            [self.cells[c].token_id != d.token_id for c, d in zip(asked, drawn, strict=True)]
        )
        changed = {*np.flatnonzero(edited(self.rule, of, ~masked & other)), *(given - {*fresh})}
        for n in (*fresh, *changed):
            self.cells[asked[n]] = Cell(drawn[n], self.index)
        again = self._mask_again(seed)
        self.edits += not masked.any()
        self.index, self.step = self.index + 1, self.step + 1
        self.is_done = not self.masked and self._is_finished(bool(changed))
        return Revealed(values, again, bound(of.entropy[np.array(fresh, np.int64)]))

    def next_block(self) -> None:
        """Go to the next block."""
        self.block, self.step, self.edits, self.is_done = self.block + 1, 0, 0, False

    def _fresh(self, of: Figures, values: Floats, masked: NDArray[np.bool_]) -> set[int]:
        """Which of the masked cells are revealed."""
        which = np.flatnonzero(masked)
        if not len(which):
            return set()
        order = which[ranked(values[which], of.positions[which])]
        number = how_many(self.rule, of.some(order), self._progress)
        while not number and self.rule.remask == "none":  # no pass without a revealed cell
            self.step += 1
            number = how_many(self.rule, of.some(order), self._progress)
        return {int(n) for n in order[:number]}

    @property
    def _progress(self) -> BlockProgress:
        start, end = self.span
        return BlockProgress(self.step, self.passes[self.block], end - start, self.index)

    def _mask_again(self, seed: int) -> list[int]:
        """Mask what the rule does not keep; the cells, in order."""
        cells = [i for i in range(*self.span) if self.cells[i].drawn]
        if self.rule.remask == "sigma":  # not those of this pass
            cells = [i for i in cells if self.cells[i].passed < self.index]
        logprobs = np.array([d.logprob for i in cells if (d := self.cells[i].drawn)])
        positions = np.array(cells, np.int64) + self.first
        found = masked_again(self.rule, positions, exp(logprobs), seed, self._progress)
        for position in found:
            self.cells[position - self.first] = Cell()
        return [position - self.first for position in found]

    def _is_finished(self, has_edited: bool) -> bool:
        """Whether a block without masked cells is finished."""
        if self.rule.remask != "edit":
            return True
        return self.edits > 0 and (not has_edited or self.edits == MOST_EDITS)


def make_canvas(rule: Rule, first: int, length: int, model_block: int | None = None) -> Canvas:
    """An empty canvas at a position.

    model_block: the block size of a model with block attention, counted from position 0; the canvas
    then has the model's blocks
    """
    if model_block is None:
        size = rule.block or length
        ends = [min(end, length) for end in range(size, length + size, size)]
    else:
        size = model_block
        ends = [min(end, length) for end in range(size - first % size, length + size, size)]
        ends = ends[: ends.index(length) + 1]
    blocks = list(zip([0, *ends], ends, strict=False))
    return Canvas(
        rule, first, [Cell() for _ in range(length)], blocks, _passes(rule, blocks, length)
    )


def _passes(rule: Rule, blocks: Sequence[tuple[int, int]], length: int) -> list[int]:
    """Each block's share of the steps, at most its number of cells if each step must reveal one."""
    sizes, steps = [end - start for start, end in blocks], rule.steps
    if steps is None:
        return sizes
    shares = [max(1, steps * end // length - steps * start // length) for start, end in blocks]
    for _ in range(sum(shares) - max(steps, len(blocks))):  # small blocks were given too many
        shares[shares.index(max(shares))] -= 1
    capped = rule.schedule == "even" and rule.remask in ("none", "edit")
    return [min(pair) for pair in zip(shares, sizes, strict=True)] if capped else shares


def most_computed(rule: Rule, cells: int, attention: str | int) -> int:
    """The most cells that all passes over a canvas compute.

    attention: of the model, see ``Limits``; a number is the size of its blocks
    """
    block = min(rule.block or cells, cells) if isinstance(attention, str) else min(attention, cells)
    passes = cells if rule.steps is None else min(rule.steps, cells)
    if rule.remask == "none":
        return passes * (block + 1) // 2 + block
    return (max(passes, rule.steps or 0) + MOST_EDITS * -(-cells // block)) * block
