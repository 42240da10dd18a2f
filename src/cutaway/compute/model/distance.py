"""What attention adds to scores by how far a token is: ALiBi, MPNet's biases, DeBERTa's rows.

Knows the numbers for each head and distance, key minus query; of DeBERTa which row a distance has.
"""

from dataclasses import dataclass
from math import log, log2

import numpy as np
from numpy.typing import NDArray

Table = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Alibi:
    """Minus a slope times the distance, to both sides alike (Press et al. 2021, arXiv 2108.12409).

    largest: of the biases, 8 in the paper; slopes are 2^(-largest · i / heads)
    """

    largest: float = 8.0

    def table(self, reach: int, heads: int, weight: Table | None = None) -> Table:  # noqa: ARG002
        """(heads, 2 · reach + 1), from distance -reach on."""
        power = 1 << int(log2(heads))
        slopes = [2 ** (-self.largest * (i + 1) / power) for i in range(power)]
        slopes += [2 ** (-self.largest / 2 * (2 * i + 1) / power) for i in range(heads - power)]
        distances = abs(np.arange(-reach, reach + 1, dtype=np.float64))
        return (-np.array(slopes)[:, None] * distances).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Buckets:
    """A learned number for each head and bucket of distances, as T5 has it (arXiv 1910.10683).

    Half of the buckets are for tokens behind; of each half the first half are single distances,
    the others grow with the logarithm up to ``farthest``.
    """

    farthest: int = 128

    def table(self, reach: int, heads: int, weight: Table | None = None) -> Table:
        """(heads, 2 · reach + 1); weight: (buckets, heads)."""
        assert weight is not None
        assert weight.shape[1] == heads
        half = len(weight) // 2
        buckets = [
            self._bucket(abs(d), half) + (half if d > 0 else 0) for d in range(-reach, reach + 1)
        ]
        return np.ascontiguousarray(weight[buckets].T, np.float32)

    def _bucket(self, distance: int, count: int) -> int:
        exact = count // 2
        if distance < exact:
            return distance
        share = np.float32(log(distance / exact)) / np.float32(log(self.farthest / exact))
        return min(exact + int(share * (count - exact)), count - 1)


DistanceBias = Alibi | Buckets


@dataclass(frozen=True, slots=True)
class Relative:
    """Which of 2 · span rows a distance has, query minus key (He et al. 2020, arXiv 2006.03654).

    farthest: up to half of the span each distance has a row of its own, and from there on they
              grow with the logarithm up to this one (v2, v3); 0: all have, up to the span
    """

    span: int
    farthest: int = 0

    def rows(self, reach: int) -> NDArray[np.int32]:
        """(2 · reach + 1,), from distance -reach on."""
        distances = np.arange(-reach, reach + 1)
        buckets = self._buckets(distances) if self.farthest else distances
        return np.clip(buckets + self.span, 0, 2 * self.span - 1).astype(np.int32)

    def _buckets(self, distances: NDArray[np.int64]) -> NDArray[np.int64]:
        """In float32, as the model was trained: a distance near a bucket's end is rounded there."""
        middle = self.span // 2
        apart = np.maximum(abs(distances), middle).astype(np.float32)
        share = np.log(apart / np.float32(middle)) / np.log(
            np.float32((self.farthest - 1) / middle)
        )
        grown = np.ceil(share * np.float32(middle - 1)).astype(np.int64) + middle
        return np.where(abs(distances) <= middle, distances, np.sign(distances) * grown)
