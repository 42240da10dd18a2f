"""A rule applied to the figures of cells: their order, how many go first, which are taken back.

Pure functions. Of cells with equal values, the one at the lowest position comes first.
"""

from dataclasses import dataclass
from math import pi

import numpy as np
from numpy.typing import NDArray

from cutaway.engine.canvas.rule import Rule
from cutaway.sampling.fixed_math import Floats, log, ordered_sum
from cutaway.sampling.luck import mask_luck, order_luck, place_of

Positions = NDArray[np.int64]
_FLOAT_ONE = np.float32(1)


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of n cells, in the order of their positions; each is an array (n,).

    p_drawn            the probability of the token that was drawn
    p_best, p_second   the probabilities of the two likeliest tokens
    entropy            the entropy of the distribution of tokens, in nats
    best_ids           the likeliest tokens after the sampling stages, for rules that compare them
    """

    positions: Positions
    p_drawn: Floats
    p_best: Floats
    p_second: Floats
    entropy: Floats
    best_ids: NDArray[np.int64] | None = None

    def select(self, indices: NDArray[np.int64]) -> "Figures":
        """Return the figures of the cells at these indices."""
        return Figures(
            self.positions[indices], self.p_drawn[indices], self.p_best[indices],
            self.p_second[indices], self.entropy[indices],
            None if self.best_ids is None else self.best_ids[indices],
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


def is_sure(rule: Rule, figures: Figures) -> bool:
    """Whether the mean entropy of cells is below the rule's threshold."""
    mean = ordered_sum(figures.entropy) / len(figures.entropy)
    assert rule.confidence_threshold is not None  # a rule has it with stability_threshold
    return mean < rule.confidence_threshold
