"""The hash of one row of logits: two rows with equal hashes have equal bits.

It is a wrapping 64-bit sum, so that any order of adding gives the same number;
native/sample_kernels.inc computes it as well. engine/fingerprint.py makes one hash of those of many
rows.
"""

import numpy as np
from numpy.typing import NDArray

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX = np.uint64(0xD6E8FEB86659FD93)  # the multiplier of Pelle Evensen's rrmxmx
_HALF = np.uint64(32)


def row_hash(logits: NDArray[np.float32]) -> int:
    """64-bit hash of a row of logits (vocab,): the sum of a mix of each value's bits and place."""
    x = np.ascontiguousarray(logits).view(np.uint32).astype(np.uint64)
    x += np.arange(1, len(x) + 1, dtype=np.uint64) * GOLDEN
    x ^= x >> _HALF
    x *= MIX
    x ^= x >> _HALF
    return int(x.sum(dtype=np.uint64))
