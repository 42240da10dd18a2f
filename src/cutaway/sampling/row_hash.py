"""The hash of a row of logits, and the fingerprint of a run: a hash of the hashes of its rows.

Equal hashes mean equal logits, to the last bit. A row's hash is a wrapping 64-bit sum, so that any
order of adding gives the same number; native/sample_kernels.inc computes it as well.
"""

import numpy as np
from numpy.typing import NDArray

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX = np.uint64(0xD6E8FEB86659FD93)  # the multiplier of Pelle Evensen's rrmxmx
_HALF = np.uint64(32)

START = 0xC07A_0A1D
"""The fingerprint of a run without rows."""


def row_hash(logits: NDArray[np.float32]) -> int:
    """64-bit hash of a row of logits (vocab,): the sum of a mix of each value's bits and place."""
    x = np.ascontiguousarray(logits).view(np.uint32).astype(np.uint64)
    x += np.arange(1, len(x) + 1, dtype=np.uint64) * GOLDEN
    x ^= x >> _HALF
    x *= MIX
    x ^= x >> _HALF
    return int(x.sum(dtype=np.uint64))


def chain_hash(so_far: int, row: int) -> int:
    """Append one row's hash to the fingerprint of the rows before it."""
    mixed = (so_far ^ row) * int(MIX) % 2**64
    return (mixed ^ (mixed >> 29)) * int(GOLDEN) % 2**64
