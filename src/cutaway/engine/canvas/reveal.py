"""A rule applied to figures of cells: their order, how many are revealed, which are masked again.

Pure functions. Ties go to the lowest position.
"""

from dataclasses import dataclass
from math import pi

import numpy as np
from numpy.typing import NDArray

from cutaway.engine.canvas.rule import Rule
from cutaway.sampling.fixed_math import Floats, log, ordered_sum
from cutaway.sampling.luck import mask_luck, order_luck, place_of

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
