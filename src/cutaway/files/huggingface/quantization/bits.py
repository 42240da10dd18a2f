"""Codes of a few bits in bytes: what packing programs do with them, undone."""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
_AT_ONCE = 1 << 22  # codes: bounds the memory of unpacking


def fields(packed: Bytes, bits: int) -> Bytes:
    """Fields of 2, 3, 4 or 8 bits, lowest first, across the bytes: (n, bytes) -> (n, codes)."""
    if bits == 8:
        return packed
    if bits == 3:
        each = np.unpackbits(packed, axis=1, bitorder="little").reshape(len(packed), -1, 3)
        made: Bytes = each @ np.array([1, 2, 4], np.uint8)
        return made
    parts = [packed >> np.uint8(shift) & np.uint8((1 << bits) - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, axis=-1).reshape(len(packed), -1)


def paired(codes: Bytes) -> Bytes:
    """Codes of 4 bits, two to a byte, the first in its low half: (n, codes) -> (n, codes / 2)."""
    made: Bytes = codes[:, ::2] | codes[:, 1::2] << np.uint8(4)
    return made


def as_bytes(words: NDArray[np.int32]) -> Bytes:
    """The bytes of each row of 32-bit words, lowest first: (n, words) -> (n, 4 · words)."""
    return np.ascontiguousarray(words, "<i4").view(np.uint8)


def by_rows(rows: int, width: int, make: Callable[[slice], Bytes]) -> Bytes:
    """What ``make`` makes of rows, few at a time where they are wide."""
    return np.concatenate(
        [make(part) for part in _pieces(rows, max(_AT_ONCE // width, 8) // 8 * 8)]
    )


def _pieces(rows: int, most: int) -> Iterator[slice]:
    for first in range(0, rows, most):
        yield slice(first, min(first + most, rows))
