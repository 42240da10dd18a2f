"""Rotary positions: how far each pair of numbers rotates from one position to the next.

Su et al. 2021, arXiv 2104.09864. Knows the formula and how models extend it to longer texts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, inf, log, pi

from cutaway.errors import FormatError


@dataclass(frozen=True, slots=True, kw_only=True)
class Yarn:
    """Fast pairs keep their frequency, slow ones are divided by ``factor``, with a ramp between.

    Peng et al. 2023, arXiv 2309.00071.

    original_context  tokens that the model was first trained for
    fast, slow        a pair that rotates at least, or at most, so often within that many tokens is
                      fast, or slow
    truncates         whether the ramp begins and ends at a pair, not in between (gpt-oss)
    """

    factor: float
    original_context: int
    fast: float = 32.0
    slow: float = 1.0
    truncates: bool = True

    @property
    def attention_factor(self) -> float:
        """By which queries and keys grow, so that attention stays as sharp."""
        return 0.1 * log(self.factor) + 1.0 if self.factor > 1 else 1.0

    def scaled(self, frequencies: list[float], base: float) -> list[float]:
        """The frequencies of all pairs."""
        last = 2 * len(frequencies) - 1
        low, high = (
            len(frequencies) * log(self.original_context / (rotations * 2 * pi)) / log(base)
            for rotations in (self.fast, self.slow)
        )
        if self.truncates:
            low, high = floor(low), ceil(high)
        first, end = max(low, 0), min(high, last)
        width = max(end - first, 0.001)
        ramps = [min(max((i - first) / width, 0.0), 1.0) for i in range(len(frequencies))]
        pairs = zip(frequencies, ramps, strict=True)
        return [f / self.factor * ramp + f * (1 - ramp) for f, ramp in pairs]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """How one model rotates its queries and keys.

    dim               numbers of a head that are rotated, the first ones
    rotate_half       whether pair i is (i, i + dim / 2); else the neighbours (2i, 2i + 1)
    linear_factor     positions are divided by it (Chen et al. 2023, arXiv 2306.15595)
    attention_factor  by which the rotated numbers are multiplied
    """

    dim: int
    base: float
    rotate_half: bool = False
    linear_factor: float = 1.0
    yarn: Yarn | None = None
    attention_factor: float = 1.0

    def frequencies(self, factors: Sequence[float] | None = None) -> list[float]:
        """Radians a position of each pair: base^(-2i / dim), scaled.

        factors: the model's own divisor of each pair, as llama 3.1 and phi 4 have them
        """
        plain = [self.base ** (-2.0 * i / self.dim) for i in range(self.dim // 2)]
        if factors is not None:
            if not all(0 < factor < inf for factor in factors):
                raise FormatError(
                    "the model's rope factors must be positive numbers: convert it again"
                )
            plain = [f / float(factor) for f, factor in zip(plain, factors, strict=True)]
        if self.yarn is not None:
            return self.yarn.scaled(plain, self.base)
        return [f / self.linear_factor for f in plain] if self.linear_factor != 1 else plain


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowingRope(Rope):
    """Of queries that grow with their positions, as Llama 4's do (Ministral 3).

    What is rotated is multiplied by 1 + growth · log(1 + ⌊(position + offset) / period⌋), too.
    turns: whether anything is rotated; else that is all (Llama 4)
    """

    growth: float
    period: int
    offset: int = 0
    turns: bool = True

    def frequencies(self, factors: Sequence[float] | None = None) -> list[float]:
        """See ``Rope``."""
        return Rope.frequencies(self, factors) if self.turns else [0.0] * (self.dim // 2)
