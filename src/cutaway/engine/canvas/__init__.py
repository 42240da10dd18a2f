"""A canvas of masked cells, and how a rule decides which of them a pass reveals.

This module has the cells of one text, the current block, and the rule's arithmetic: pure functions
of the cells' figures order the cells, count those to reveal and choose those to mask again. Of
cells with equal values, the one at the lowest position comes first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import pi
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cutaway.engine.canvas.rule import (
    RULES,
    SETTING_WORDS,
    SETTINGS,
    ForcedCell,
    Rule,
    Setting,
    read_rule,
    rule_of_text,
)
from cutaway.sampling import Sampled
from cutaway.sampling.fixed_math import Floats, exp, log, ordered_sum
from cutaway.sampling.luck import mask_luck, order_luck, place_of

__all__ = [
    "RULES", "SETTINGS", "SETTING_WORDS", "Canvas", "Cell", "Figures", "ForcedCell", "Revealed",
    "Rule", "Setting", "make_canvas", "most_computed", "read_rule", "rule_of_text",
]  # fmt: skip

# -- a rule applied to figures ---------------------------------------------------------------------

Positions = NDArray[np.int64]
_FLOAT_ONE = np.float32(1)


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of n cells, in the order of their positions; each is an array (n,).

    p_drawn            the probability of the token that was drawn
    p_best, p_second   the probabilities of the two likeliest tokens
    entropy            the entropy of the distribution of tokens, in nats
    """

    positions: Positions
    p_drawn: Floats
    p_best: Floats
    p_second: Floats
    entropy: Floats

    def select(self, indices: NDArray[np.int64]) -> "Figures":
        """Return the figures of the cells at these indices."""
        return Figures(
            self.positions[indices], self.p_drawn[indices], self.p_best[indices],
            self.p_second[indices], self.entropy[indices],
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class BlockProgress:
    """Where one pass is in the schedule of its block.

    index          the pass's index among the ``passes`` of the block's schedule
    cells          number of cells of the block
    passes_before  passes over the canvas before this one
    """

    index: int
    passes: int
    cells: int
    passes_before: int


def figure(rule: Rule, figures: Figures, seed: int, progress: BlockProgress) -> Floats:
    """Return the value of each cell, (n,), by which cells are ordered: the highest goes first."""
    values = _figure(rule, figures, seed, progress)
    if rule.order_temperature > 0:
        places = [place_of(int(p), progress.passes_before) for p in figures.positions]
        values = values / rule.order_temperature - log(-log(order_luck(seed, places)))
    return values


def _figure(rule: Rule, figures: Figures, seed: int, progress: BlockProgress) -> Floats:
    match rule.order:
        case "margin":
            return figures.p_best - figures.p_second
        case "entropy":
            return -figures.entropy
        case "random":
            return order_luck(
                seed, [place_of(int(p), progress.passes_before) for p in figures.positions]
            )
        case "left":
            return -figures.positions.astype(np.float64)
    return confidence(rule, figures)


def confidence(rule: Rule, figures: Figures) -> Floats:
    """Return each cell's confidence, (n,): p_drawn if the rule draws first, else p_best."""
    return figures.p_drawn if rule.draws_first else figures.p_best


def rank(values: Floats, positions: Positions) -> NDArray[np.int64]:
    """Return the indices that sort cells by value, the highest first."""
    return np.lexsort((positions, -values))


def count_revealed(rule: Rule, best_first: Figures, progress: BlockProgress) -> int:
    """Return how many masked cells to reveal, from the first of ``best_first`` on."""
    masked, sure = len(best_first.positions), confidence(rule, best_first)
    if rule.threshold is not None:
        return max(1, int(np.count_nonzero(sure >= rule.threshold)))
    if rule.factor is not None:
        n = np.arange(1, masked + 1)
        return max(1, int(np.max(np.where(sure >= 1 - rule.factor / (n + 1), n, 0))))
    if rule.entropy_bound is not None:
        sums = np.cumsum(best_first.entropy) - np.maximum.accumulate(best_first.entropy)
        return max(1, int(np.searchsorted(sums, rule.entropy_bound, side="right")))
    return min(masked, _count_by_schedule(rule, masked, progress))


def _count_by_schedule(rule: Rule, masked: int, progress: BlockProgress) -> int:
    passes_left = progress.passes - progress.index
    if rule.remask == "lowest":
        return masked
    if rule.schedule == "even":
        base, more = divmod(progress.cells, progress.passes)
        return base + (progress.index < more) if passes_left > 1 else masked
    if passes_left <= 1:
        return masked
    if rule.schedule == "dream":
        now, then = (
            1 - k / progress.passes * (1 - 1e-3) for k in (progress.index, progress.index + 1)
        )
        return int(masked * (1 - then / now))
    revealed, to_reveal = (
        _share_revealed(rule, progress.index, progress),
        _share_revealed(rule, progress.index + 1, progress),
    )
    stays = float(
        (_FLOAT_ONE - to_reveal) / (_FLOAT_ONE - revealed)
    )  # probability that a masked cell stays masked
    refilled = _sigma(rule, progress) * float(revealed / (_FLOAT_ONE - revealed))
    return int(np.round(masked * (1 - stays + refilled)))


def _share_revealed(rule: Rule, index: int, progress: BlockProgress) -> np.float32:
    """Return the share of cells that a schedule has revealed before a pass, rounded as in dLLM."""
    time = np.float32((progress.passes - index) / progress.passes)
    done = _FLOAT_ONE - time
    if rule.schedule == "cosine":
        done = _FLOAT_ONE - np.cos(np.float32(pi / 2) * done)
    return np.float32(done)


def _sigma(rule: Rule, progress: BlockProgress) -> float:
    """The probability that a revealed cell is masked again in this pass: ReMDM's, with a cap."""
    now, then = (float(_share_revealed(rule, progress.index + n, progress)) for n in (0, 1))
    if rule.remask != "sigma" or now <= 0:
        return 0.0
    return min(rule.remask_rate, (1 - then) / now)


def choose_masked_again(
    rule: Rule, positions: Positions, p_drawn: Floats, seed: int, progress: BlockProgress
) -> list[int]:
    """Return the positions of revealed cells that are masked again.

    positions: the positions of the block's revealed cells
    p_drawn: the probability of each one's token in the pass that revealed the cell
    """
    if rule.remask == "lowest":
        number = progress.cells * (progress.passes - progress.index - 1) // progress.passes
        lowest = rank(-p_drawn, positions)[:number]
        return sorted(positions[lowest].tolist())
    if rule.remask == "sigma" and len(positions):
        places = [place_of(int(p), progress.passes_before) for p in positions]
        return [int(p) for p in positions[mask_luck(seed, places) < _sigma(rule, progress)]]
    return []


def find_edits(rule: Rule, figures: Figures, other: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return a mask, (n,), of the cells that get their drawn token in place of their own.

    other: the revealed cells whose token differs from the drawn one, (n,)
    """
    return other & (figures.p_drawn > rule.edit_threshold) & (rule.remask == "edit")


def bound(entropies: Floats) -> float:
    """Return the most nats that revealing cells together can lose.

    This is the sum of all entropies but the largest.
    """
    return ordered_sum(entropies) - float(np.max(entropies)) if len(entropies) else 0.0


# -- the cells -------------------------------------------------------------------------------------

MOST_EDITS = 16
"""The most passes that look for edits once no cell of a block is masked."""


@dataclass(slots=True)
class Cell:
    """One cell, masked or revealed.

    sampled     the draw that revealed it; None while it is masked
    pass_index  the pass that revealed it
    """

    sampled: Sampled | None = None
    pass_index: int = -1

    @property
    def token_id(self) -> int | None:
        """The cell's token; None while it is masked."""
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
        return [i for i in range(*self.span) if self.cells[i].sampled is None]

    @property
    def next_cells(self) -> list[int]:
        """The cells that the next pass computes."""
        if self.rule.remask == "edit":
            return list(range(*self.span))
        return sorted({*self.masked, *self.forced})

    @property
    def forced(self) -> dict[int, int]:
        """Cells of the current block that are forced in the next pass, and their tokens."""
        return {
            cell: token_id
            for pass_index, cell, token_id in self.rule.forced_cells
            if pass_index == self.index and cell in range(*self.span)
        }

    def token_ids(self, mask_id: int) -> list[int]:
        """Return each cell's token; ``mask_id`` for a masked cell."""
        return [mask_id if cell.sampled is None else cell.sampled.token_id for cell in self.cells]

    def reveal(self, sampled: Sequence[Sampled], figures: Figures, seed: int) -> Revealed:
        """Apply the rule to the computed cells and their draws; return the effect."""
        cells = self.next_cells
        masked = np.array([self.cells[cell].sampled is None for cell in cells], np.bool_)
        values = figure(self.rule, figures, seed, self._progress)
        forced = {n for n, cell in enumerate(cells) if cell in self.forced}
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

    def next_block(self) -> None:
        """Go to the next block."""
        self.block, self.step, self.edits, self.is_done = self.block + 1, 0, 0, False

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
    if steps is None:
        return sizes
    shares = [max(1, steps * end // length - steps * start // length) for start, end in blocks]
    for _ in range(sum(shares) - max(steps, len(blocks))):  # the minimum of 1 gave out too many
        shares[shares.index(max(shares))] -= 1
    capped = rule.schedule == "even" and rule.remask in ("none", "edit")
    return [min(pair) for pair in zip(shares, sizes, strict=True)] if capped else shares


def most_computed(rule: Rule, cells: int, attention: str | int) -> int:
    """The most cells that all passes over a canvas compute.

    attention: the model's ``Limits.attention``
    """
    block = min(rule.block or cells, cells) if isinstance(attention, str) else min(attention, cells)
    passes = cells if rule.steps is None else min(rule.steps, cells)
    if rule.remask == "none":
        return passes * (block + 1) // 2 + block
    return (max(passes, rule.steps or 0) + MOST_EDITS * -(-cells // block)) * block
