"""What attention adds to scores by how far a token is: ALiBi, and MPNet's learned biases.

Knows the numbers for each head and distance, key minus query.
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
