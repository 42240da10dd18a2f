"""Figures of the experiments: divergence of two rows, a band's mean, how sure a mean is.

Knows NumPy. Refuses to know models and texts. All in bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from cutaway.backends import Logits

Curve = NDArray[np.float64]

_DRAWS = 2000  # of the bootstrap
_SEED = 0  # fixed, so that one experiment has one answer


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean and the interval that holds it with 95 % confidence."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:+.2f} [{self.low:+.2f}, {self.high:+.2f}]"


def log2_softmax(logits: Logits) -> Curve:
    """Of each row of logits (n, vocab): log2 of the probabilities, float64."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=1, keepdims=True))
    wide /= np.log(2)
    return wide


def divergence(of: Logits, under: Logits) -> Curve:
    """KL(of ‖ under) in bits of each pair of rows (n, vocab): what it costs to take one for
    the other. (n,)"""
    pairs = zip(of, under, strict=True)
    return np.array([_divergence(log2_softmax(a[None]), log2_softmax(b[None])) for a, b in pairs])


def surprise(logits: Logits, token_ids: Sequence[int]) -> Curve:
    """-log2 p of the token that each row (n, vocab) was to predict. (n,)"""
    rows = [float(-log2_softmax(row[None])[0, i]) for row, i in zip(logits, token_ids, strict=True)]
    return np.array(rows)


def bands(length: int) -> list[slice]:
    """0, 1, 2–3, 4–7, …: what happens soon is seen alone, what happens late on average."""
    edges = [0]
    while edges[-1] < length:
        edges.append(min(max(2 * edges[-1], 1), length))
    return [slice(a, b) for a, b in pairwise(edges)]


def span(band: slice) -> str:
    """How positions counted from 0 are told to people: "1", "5-8"."""
    first, last = band.start + 1, band.stop
    return str(first) if first == last else f"{first}-{last}"


def estimate(values: Curve) -> Estimate:
    """The mean of independent values (n,) and its interval, by the percentile bootstrap (Efron
    1979): means of 2,000 samples of n drawn with replacement, from a fixed seed."""
    rng = np.random.default_rng(_SEED)
    means = values[rng.integers(0, len(values), (_DRAWS, len(values)))].mean(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return Estimate(float(values.mean()), float(low), float(high))


def _divergence(p: Curve, q: Curve) -> float:
    return float(max(0.0, (np.exp2(p) * (p - q)).sum()))
