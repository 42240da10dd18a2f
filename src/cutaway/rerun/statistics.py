"""Statistics of the experiments: divergence of two rows, means by band, confidence intervals.

All figures are in bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from cutaway.compute.backends import Logits
from cutaway.trace.figures import to_bits

Curve = NDArray[np.float64]

_DRAWS = 2000  # of the bootstrap
_NORMAL = 1.959964  # standard deviations to either side that include 95 %
_SEED = 0  # fixed, so that one experiment has one answer


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean and its 95 % confidence interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:+.2f} [{self.low:+.2f}, {self.high:+.2f}]"


def log2_softmax(logits: Logits) -> Curve:
    """Return log2 of the probabilities of logits (n, vocab): float64 of the same shape."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return to_bits(wide)


def divergence(of: Logits, under: Logits) -> Curve:
    """Return KL(of ‖ under) in bits of each pair of rows (n, vocab): (n,)."""
    divergences = []
    for a, b in zip(of, under, strict=True):
        p, q = log2_softmax(a[None]), log2_softmax(b[None])
        divergences.append(float(max(0.0, (np.exp2(p) * (p - q)).sum())))
    return np.array(divergences)


def surprise(logits: Logits, token_ids: Sequence[int]) -> Curve:
    """Return -log2 p of each row's token (n,) under logits (n, vocab): (n,)."""
    rows = [float(-log2_softmax(row[None])[0, i]) for row, i in zip(logits, token_ids, strict=True)]
    return np.array(rows)


def bands(length: int) -> list[slice]:
    """Return the bands of positions 0, 1, 2–3, 4–7, …, in which early positions are alone."""
    edges = [0]
    while edges[-1] < length:
        edges.append(min(max(2 * edges[-1], 1), length))
    return [slice(a, b) for a, b in pairwise(edges)]


def span(band: slice) -> str:
    """Return a band for people, who count from 1: "1", "5-8"."""
    first, last = band.start + 1, band.stop
    return str(first) if first == last else f"{first}-{last}"


def estimate(values: Curve) -> Estimate:
    """Return the mean of independent values (n,) with its interval by the percentile bootstrap.

    The interval (Efron 1979) is of the means of 2,000 samples, each of n values that are drawn with
    replacement, from a fixed seed.
    """
    rng = np.random.default_rng(_SEED)
    means = values[rng.integers(0, len(values), (_DRAWS, len(values)))].mean(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return Estimate(float(values.mean()), float(low), float(high))


def rate(came: int, of: int) -> Estimate:
    """Return the rate of an event in independent trials, with Wilson's interval (1927).

    The interval is valid at rates of 0 and 1, too.
    """
    share, z = came / of, _NORMAL**2 / of
    middle, half = (share + z / 2) / (1 + z), sqrt(share * (1 - share) * z + z * z / 4) / (1 + z)
    return Estimate(share, max(middle - half, 0.0), min(middle + half, 1.0))
