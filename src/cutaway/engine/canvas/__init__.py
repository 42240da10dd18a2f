"""A canvas: cells that are revealed in any order, and the rules that say which and when.

Here are the cells of one text, the block of them that is being revealed, and a rule applied to it:
by pure functions of the cells' figures, their order, how many are revealed, which are masked again.
Ties go to the lowest position.
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
_ONE = np.float32(1)


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of n cells, in the order of their positions; probabilities and nats, (n,) each.

    drawn, best, second  probability of the token that was drawn, and of the two likeliest
    entropy              of all tokens
    """

    positions: Positions
    drawn: Floats
    best: Floats
    second: Floats
    entropy: Floats

    def some(self, which: NDArray[np.int64]) -> "Figures":
        """The figures of these cells."""
        return Figures(
            self.positions[which], self.drawn[which], self.best[which], self.second[which],
            self.entropy[which],
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class BlockProgress:
    """How far a block is when a pass has been computed.

    index  of the pass among the ``passes`` of the block's schedule
    cells  of the block that were masked at its beginning
    made   passes over the canvas before this one
    """

    index: int
    passes: int
    cells: int
    made: int


def figure(rule: Rule, of: Figures, seed: int, at: BlockProgress) -> Floats:
    """The figure by which cells are ordered, (n,): the highest goes first."""
    values = _figure(rule, of, seed, at)
    if rule.order_temperature > 0:
        places = [place_of(int(p), at.made) for p in of.positions]
        values = values / rule.order_temperature - log(-log(order_luck(seed, places)))
    return values


def _figure(rule: Rule, of: Figures, seed: int, at: BlockProgress) -> Floats:
    match rule.order:
        case "margin":
            return of.best - of.second
        case "entropy":
            return -of.entropy
        case "random":
            return order_luck(seed, [place_of(int(p), at.made) for p in of.positions])
        case "left":
            return -of.positions.astype(np.float64)
    return confidence(rule, of)


def confidence(rule: Rule, of: Figures) -> Floats:
    """The probability of the drawn token, or of the likeliest."""
    return of.drawn if rule.draws_first else of.best


def ranked(values: Floats, positions: Positions) -> NDArray[np.int64]:
    """Indices of cells in their order."""
    return np.lexsort((positions, -values))


def how_many(rule: Rule, best_first: Figures, at: BlockProgress) -> int:
    """How many of these masked cells are revealed, the first ones first."""
    masked, sure = len(best_first.positions), confidence(rule, best_first)
    if rule.threshold is not None:
        return max(1, int(np.count_nonzero(sure >= rule.threshold)))
    if rule.factor is not None:
        n = np.arange(1, masked + 1)
        return max(1, int(np.max(np.where(sure >= 1 - rule.factor / (n + 1), n, 0))))
    if rule.entropy_bound is not None:
        sums = np.cumsum(best_first.entropy) - np.maximum.accumulate(best_first.entropy)
        return max(1, int(np.searchsorted(sums, rule.entropy_bound, side="right")))
    return min(masked, _scheduled(rule, masked, at))


def _scheduled(rule: Rule, masked: int, at: BlockProgress) -> int:
    left = at.passes - at.index
    if rule.remask == "lowest":
        return masked
    if rule.schedule == "even":
        base, more = divmod(at.cells, at.passes)
        return base + (at.index < more) if left > 1 else masked
    if left <= 1:
        return masked
    if rule.schedule == "dream":
        now, then = (1 - k / at.passes * (1 - 1e-3) for k in (at.index, at.index + 1))
        return int(masked * (1 - then / now))
    kept, to_keep = _kept(rule, at.index, at), _kept(rule, at.index + 1, at)
    stays = float((_ONE - to_keep) / (_ONE - kept))  # probability that a masked cell stays masked
    refilled = _sigma(rule, at) * float(kept / (_ONE - kept))
    return int(np.round(masked * (1 - stays + refilled)))


def _kept(rule: Rule, index: int, at: BlockProgress) -> np.float32:
    """The share of cells that a schedule has revealed before a pass, rounded as in dLLM."""
    time = np.float32((at.passes - index) / at.passes)
    done = _ONE - time
    if rule.schedule == "cosine":
        done = _ONE - np.cos(np.float32(pi / 2) * done)
    return np.float32(done)


def _sigma(rule: Rule, at: BlockProgress) -> float:
    """The probability that a revealed cell is masked again in this pass (ReMDM, capped)."""
    now, then = (float(_kept(rule, at.index + n, at)) for n in (0, 1))
    if rule.remask != "sigma" or now <= 0:
        return 0.0
    return min(rule.remask_rate, (1 - then) / now)


def masked_again(
    rule: Rule, positions: Positions, drawn: Floats, seed: int, at: BlockProgress
) -> list[int]:
    """Positions of revealed cells that are masked again.

    positions, drawn: of the block's revealed cells, with the probability of each when it was drawn
    """
    if rule.remask == "lowest":
        number = at.cells * (at.passes - at.index - 1) // at.passes
        lowest = ranked(-drawn, positions)[:number]
        return sorted(positions[lowest].tolist())
    if rule.remask == "sigma" and len(positions):
        places = [place_of(int(p), at.made) for p in positions]
        return [int(p) for p in positions[mask_luck(seed, places) < _sigma(rule, at)]]
    return []


def edited(rule: Rule, of: Figures, other: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which cells get the drawn token; other: which of them have another token, (n,)."""
    return other & (of.drawn > rule.edit_threshold) & (rule.remask == "edit")


def bound(entropies: Floats) -> float:
    """The most nats that revealing cells together can lose: all entropies except the largest."""
    return ordered_sum(entropies) - float(np.max(entropies)) if len(entropies) else 0.0


# -- the cells -------------------------------------------------------------------------------------

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
