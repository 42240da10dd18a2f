"""How well readings explain what was told: |delta| of each kind of log-probability."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from math import fsum, inf, sqrt
from statistics import median
from typing import Any

from cutaway.features.evidence.oracle.reading import (
    KINDS,
    Kind,
    TokenReading,
    importance_error,
)
from cutaway.features.evidence.oracle.told import Told

MOST, REMOVED = 10.0, 1.0
"""What |delta| counts as, in nats: at most; and where the chain removes a token that was told,
which rounding alone may do at the edge of what survives."""


@dataclass(frozen=True, slots=True)
class Distance:
    """What was told, minus one kind of the model's log-probabilities, over all tokens, in nats.

    mean_abs, median_abs, max_abs  of |delta|
    importance_error               mean |exp(delta) - 1|: the error of importance ratios, of which
                                   reinforcement learning wants each to be 1 at its first step
    removed                        tokens that have no such log-probability: not in the others
    """

    mean_abs: float
    median_abs: float
    max_abs: float
    importance_error: float
    removed: int

    @classmethod
    def of(cls, deltas: Sequence[float | None]) -> "Distance":
        """None: removed. Infinite where every token was."""
        there = [d for d in deltas if d is not None]
        if not there:
            return cls(inf, inf, inf, inf, len(deltas))
        sizes = [abs(d) for d in there]
        ratio = fsum(map(importance_error, there)) / len(there)
        mean, gone = fsum(sizes) / len(sizes), len(deltas) - len(there)
        return cls(mean, median(sizes), max(sizes), ratio, gone)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON, which has no infinity."""
        return {k: None if v == inf else v for k, v in asdict(self).items()}


@dataclass(frozen=True)
class Fit:
    """Readings of answers beside what was told of them, one list of tokens an answer."""

    answers: tuple[Told, ...]
    readings: tuple[tuple[TokenReading, ...], ...]

    def deltas(self, kind: Kind) -> list[list[float | None]]:
        """Told minus read, of each answer's tokens that were told; None where removed."""
        return [
            [_delta(said, one.logprob(kind)) for said, one in pairs if said is not None]
            for pairs in self._pairs()
        ]

    def _pairs(self) -> Iterator[list[tuple[float | None, TokenReading]]]:
        for told, read in zip(self.answers, self.readings, strict=True):
            yield [*zip(told.logprobs, read, strict=True)]

    def sizes(self, kind: Kind) -> list[float]:
        """|delta| of every told token, as it counts."""
        flat = (delta for answer in self.deltas(kind) for delta in answer)
        return [REMOVED if d is None else min(abs(d), MOST) for d in flat]

    def cost(self, kind: Kind) -> float:
        """The mean of ``sizes``: what hypotheses are compared by."""
        sizes = self.sizes(kind)
        return fsum(sizes) / len(sizes)

    @cached_property
    def costs(self) -> dict[Kind, float]:
        """Of each kind."""
        return {kind: self.cost(kind) for kind in KINDS}

    @cached_property
    def kind(self) -> Kind:
        """The kind that explains best what was told; of equal ones the first."""
        return min(KINDS, key=self.costs.__getitem__)

    @property
    def best(self) -> float:
        """The cost of that kind."""
        return self.costs[self.kind]

    def distance(self, kind: Kind) -> Distance:
        """Over all tokens."""
        return Distance.of([delta for answer in self.deltas(kind) for delta in answer])

    @property
    def same_kinds(self) -> list[Kind]:
        """The kinds that cannot be told from the best, such as all at temperature 1."""
        own = self.sizes(self.kind)
        return [k for k in KINDS if k == self.kind or not clearly_less(own, self.sizes(k))]


def _delta(said: float, own: float | None) -> float | None:
    return None if own is None or own == -inf else said - own


def clearly_less(new: Sequence[float], old: Sequence[float]) -> bool:
    """Whether sizes fell by more than chance explains (z above 4), and by a third."""
    gains = [b - a for a, b in zip(new, old, strict=True)]
    n, mean = len(gains), fsum(gains) / len(gains)
    if n < 2 or fsum(new) > fsum(old) * 2 / 3:
        return False
    spread = sqrt(fsum((g - mean) ** 2 for g in gains) / (n - 1) / n)
    return mean > 4 * spread
