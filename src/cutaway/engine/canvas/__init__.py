"""A canvas of masked or noisy cells, and how a rule decides which of them a pass reveals.

This module has the cells of one text and the current block. The rule's arithmetic is in
``figures``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cutaway.engine.canvas.figures import (
    BlockProgress,
    Figures,
    bound,
    choose_masked_again,
    count_revealed,
    figure,
    find_edits,
    is_sure,
    rank,
)
from cutaway.engine.canvas.rule import (
    RULES,
    SETTING_WORDS,
    SETTINGS,
    STARTS,
    ForcedCell,
    Rule,
    Setting,
    read_rule,
    rule_of_text,
    with_usual,
)
from cutaway.sampling import Sampled
from cutaway.sampling.fixed_math import Floats, exp

__all__ = [
    "RULES", "SETTINGS", "SETTING_WORDS", "STARTS", "Canvas", "Cell", "Figures", "ForcedCell",
    "Revealed", "Rule", "Setting", "make_canvas", "most_computed", "most_passes", "read_rule",
    "rule_of_text", "with_usual",
]  # fmt: skip

# -- the cells -------------------------------------------------------------------------------------

MOST_EDITS = 16
"""The most passes that look for edits once no cell of a block is masked."""


@dataclass(slots=True)
class Cell:
    """One cell: masked, noisy or revealed.

    sampled     the draw that revealed it; None while it is not revealed
    pass_index  the pass that revealed it
    """

    sampled: Sampled | None = None
    pass_index: int = -1

    @property
    def token_id(self) -> int | None:
        """The token that was drawn for the cell; None while it is not revealed."""
        return None if self.sampled is None else self.sampled.token_id


class Revealed(NamedTuple):
    """The effect of a pass on the cells that it computed.

    figures       the value of each computed cell, by which the rule orders cells
    masked_again  cells that were masked again
    bound         see ``bound``
    """

    figures: Floats
    masked_again: list[int]
    bound: float


@dataclass(slots=True)
class Canvas:
    """The state of one canvas. Cells are counted from 0.

    rule     the rule that reveals the cells
    first    position of the first cell
    blocks   (first cell, one after the last), in the order in which they are finished
    passes   how many passes the schedule of each block has
    block    number of the current block
    index    passes so far, over all blocks
    step     number of the current pass in the block's schedule
    edits    passes over the current block that began without masked cells
    likeliest  the likeliest tokens of the block's cells in each of the last passes, where a block
             may end once they no longer change
    is_done  whether the current block is finished
    forced_tokens  of each pass that has forced cells, their tokens by cell
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
    likeliest: list[tuple[int, ...]] = field(default_factory=list)
    is_done: bool = False
    forced_tokens: dict[int, dict[int, int]] = field(init=False)

    def __post_init__(self) -> None:
        self.forced_tokens = {}
        for pass_index, cell, token_id in self.rule.forced_cells:
            self.forced_tokens.setdefault(pass_index, {})[cell] = token_id

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
        return [i for i in range(*self.span) if self.cells[i].sampled is None]

    @property
    def next_cells(self) -> list[int]:
        """The cells that the next pass computes."""
        if self.rule.remask in ("edit", "unchosen"):
            return list(range(*self.span))
        return sorted({*self.masked, *self.forced})

    @property
    def forced(self) -> dict[int, int]:
        """Cells of the current block that are forced in the next pass, and their tokens."""
        tokens, block = self.forced_tokens.get(self.index, {}), range(*self.span)
        return {cell: token_id for cell, token_id in tokens.items() if cell in block}

    def token_ids(self, unrevealed: Sequence[int]) -> list[int]:
        """Return each cell's token; that of ``unrevealed`` for a cell that is not revealed."""
        return [
            other if cell.sampled is None else cell.sampled.token_id
            for cell, other in zip(self.cells, unrevealed, strict=True)
        ]

    @property
    def temperature(self) -> float:
        """The next pass's temperature, by which the request's is multiplied."""
        return self.rule.temperature(self.step, self.passes[self.block])

    def reveal(self, sampled: Sequence[Sampled], figures: Figures, seed: int) -> Revealed:
        """Apply the rule to the computed cells and their draws; return the effect."""
        cells = self.next_cells
        if self.rule.remask == "unchosen":
            return self._choose_anew(sampled, figures, seed)
        masked = np.array([self.cells[cell].sampled is None for cell in cells], np.bool_)
        values = figure(self.rule, figures, seed, self._progress)
        in_pass = self.forced
        forced = {n for n, cell in enumerate(cells) if cell in in_pass}
        revealed = sorted(
            self._choose_revealed(figures, values, masked) | {n for n in forced if masked[n]}
        )
        other = np.array(
            [self.cells[c].token_id != d.token_id for c, d in zip(cells, sampled, strict=True)]
        )
        changed = {
            *np.flatnonzero(find_edits(self.rule, figures, ~masked & other)),
            *(forced - {*revealed}),
        }
        for n in (*revealed, *changed):
            self.cells[cells[n]] = Cell(sampled[n], self.index)
        again = self._mask_again(seed)
        self.edits += not masked.any()
        self.index, self.step = self.index + 1, self.step + 1
        self.is_done = not self.masked and self._is_finished(bool(changed))
        return Revealed(values, again, bound(figures.entropy[np.array(revealed, np.int64)]))

    def _choose_anew(self, sampled: Sequence[Sampled], figures: Figures, seed: int) -> Revealed:
        """Reveal the cells of the block that the rule chooses of all; the others go back."""
        cells, forced = self.next_cells, self.forced
        values = figure(self.rule, figures, seed, self._progress)
        choice = self._choose_revealed(figures, values, np.ones(len(cells), np.bool_))
        choice |= {n for n, cell in enumerate(cells) if cell in forced}
        again = [
            cell
            for n, cell in enumerate(cells)
            if n not in choice and self.cells[cell].sampled is not None
        ]
        for n, cell in enumerate(cells):
            self.cells[cell] = Cell(sampled[n], self.index) if n in choice else Cell()
        self.is_done = self._is_last(figures)
        self.index, self.step = self.index + 1, self.step + 1
        entropies = figures.entropy[np.array(sorted(choice), np.int64)]
        return Revealed(values, again, bound(entropies))

    def _is_last(self, figures: Figures) -> bool:
        """Whether the block ends with this pass: no pass is left, or it is stable and sure."""
        stability = self.rule.stability_threshold
        if self.step + 1 == self.passes[self.block]:
            return True
        if stability is None or figures.best_ids is None:
            return False
        before, now = self.likeliest, tuple(figures.best_ids.tolist())
        self.likeliest = [*before, now][-stability:] if stability else []
        is_stable = len(before) == stability and all(tokens == now for tokens in before)
        return is_stable and is_sure(self.rule, figures)

    def finish(self, sampled: Sequence[Sampled]) -> None:
        """Give each cell of the block, which is done, its token in place of noise or mask."""
        for cell, draw in zip(self.next_cells, sampled, strict=True):
            self.cells[cell] = Cell(draw, self.index - 1)

    def next_block(self) -> None:
        """Go to the next block."""
        self.block, self.step, self.edits, self.is_done = self.block + 1, 0, 0, False
        self.likeliest = []

    def _choose_revealed(
        self, figures: Figures, values: Floats, masked: NDArray[np.bool_]
    ) -> set[int]:
        """Choose which of the masked cells are revealed."""
        indices = np.flatnonzero(masked)
        if not len(indices):
            return set()
        order = indices[rank(values[indices], figures.positions[indices])]
        number = count_revealed(self.rule, figures.select(order), self._progress)
        while not number and self.rule.remask == "none":  # no pass without a revealed cell
            self.step += 1
            number = count_revealed(self.rule, figures.select(order), self._progress)
        return {int(n) for n in order[:number]}

    @property
    def _progress(self) -> BlockProgress:
        start, end = self.span
        return BlockProgress(self.step, self.passes[self.block], end - start, self.index)

    def _mask_again(self, seed: int) -> list[int]:
        """Mask the cells again that the rule chooses; return them in order."""
        cells = [i for i in range(*self.span) if self.cells[i].sampled]
        if self.rule.remask == "sigma":  # not those of this pass
            cells = [i for i in cells if self.cells[i].pass_index < self.index]
        logprobs = np.array([d.logprob for i in cells if (d := self.cells[i].sampled)])
        positions = np.array(cells, np.int64) + self.first
        remasked = choose_masked_again(self.rule, positions, exp(logprobs), seed, self._progress)
        for position in remasked:
            self.cells[position - self.first] = Cell()
        return [position - self.first for position in remasked]

    def _is_finished(self, has_edited: bool) -> bool:
        """Whether a block without masked cells is finished."""
        if self.rule.remask != "edit":
            return True
        return self.edits > 0 and (not has_edited or self.edits == MOST_EDITS)


def make_canvas(rule: Rule, first: int, length: int, model_block: int | None = None) -> Canvas:
    """Return an empty canvas at a position.

    model_block: the block size of a block-causal model. The model's blocks are counted from
    position 0, and each block of the canvas ends where one of them ends, or with the canvas
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
    """Return each block's number of passes: at most one per cell if every pass must reveal one."""
    sizes, steps = [end - start for start, end in blocks], rule.steps
    if rule.max_passes is not None:
        return [rule.max_passes] * len(blocks)
    if steps is None:
        return sizes
    shares = [max(1, steps * end // length - steps * start // length) for start, end in blocks]
    for _ in range(sum(shares) - max(steps, len(blocks))):  # the minimum of 1 gave out too many
        shares[shares.index(max(shares))] -= 1
    capped = rule.schedule == "even" and rule.remask in ("none", "edit")
    return [min(pair) for pair in zip(shares, sizes, strict=True)] if capped else shares


def most_passes(rule: Rule, cells: int, attention: str | int) -> int:
    """Return the most passes over a canvas; attention: the model's ``Limits.attention``."""
    blocks = -(-cells // _block_size(rule, cells, attention))
    if rule.max_passes is not None:
        return rule.max_passes * blocks
    passes = cells if rule.steps is None else max(rule.steps, blocks)
    if rule.remask == "none":
        return min(passes, cells)
    return passes + MOST_EDITS * blocks


def most_computed(rule: Rule, cells: int, attention: str | int) -> int:
    """Return the most cells that all passes over a canvas compute; see ``most_passes``."""
    block, passes = _block_size(rule, cells, attention), most_passes(rule, cells, attention)
    if rule.remask == "none" and rule.max_passes is None:
        return passes * (block + 1) // 2 + block
    return passes * block


def _block_size(rule: Rule, cells: int, attention: str | int) -> int:
    size = (rule.block or cells) if isinstance(attention, str) else attention
    return max(min(size, cells), 1)
