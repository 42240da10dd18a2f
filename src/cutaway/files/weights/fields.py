"""Fields of quant blocks as arrays: what the decoders have in common.

In every function n is the number of quant blocks.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
QuantBlocks = NDArray[np.void]  # (n,) structs of the format's layout


def f32(field: NDArray[Any]) -> Floats:
    """Return the same numbers as float32."""
    return field.astype(np.float32)


def column(field: NDArray[Any]) -> Floats:
    """Return one scale per quant block, ready to broadcast: (n,) -> (n, 1)."""
    return f32(field)[:, None]


def unpack(packed: Bytes, bits: int) -> Bytes:
    """Split each byte into its `bits`-wide fields, lowest first: (..., k) -> (..., 8/bits, k)."""
    out = np.empty((*packed.shape[:-1], 8 // bits, packed.shape[-1]), np.uint8)
    for i in range(8 // bits):
        np.right_shift(packed, i * bits, out=out[..., i, :])
    return np.bitwise_and(out, (1 << bits) - 1, out=out)


def nibbles(b: QuantBlocks) -> Bytes:
    """Byte i holds weight i in its low half and weight i + 16 in its high half: (n, 32), 0..15."""
    return unpack(b["qs"], 4).reshape(-1, 32)


def pieces(words: NDArray[Any], bits: int, count: int) -> NDArray[Any]:
    """Split integers into `count` fields of so many bits: (..., k) -> (..., k, count)."""
    shifts = np.arange(0, bits * count, bits, dtype=words.dtype)
    found: NDArray[Any] = words[..., None] >> shifts & words.dtype.type((1 << bits) - 1)
    return found
