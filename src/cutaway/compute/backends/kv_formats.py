"""The formats in which keys and values are stored, and the definition of each.

Knows numbers, codes and scales; not how a backend lays them out.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cutaway.base.checks import shown
from cutaway.errors import InputError

KV_FORMATS = ("f16", "q8_0", "q5_1", "q4_0")
"""Of what ``kv=`` names. f16: the cpu backend stores halves, and the reference float32."""
PER_SCALE = 32
_MOST = np.float32(65504)  # of a half

Floats = NDArray[np.float32]


def check_kv(kv: Any) -> str:
    """The name of ``kv``: of KV_FORMATS, or KEYS,VALUES of two that differ. InputError."""
    formats = kv.split(",") if isinstance(kv, str) else []
    if not 1 <= len(formats) <= 2 or not {*formats} <= {*KV_FORMATS}:
        raise InputError(
            f"kv must be one of {', '.join(KV_FORMATS)}, or two as KEYS,VALUES, not {shown(kv)}"
        )
    return ",".join(dict.fromkeys(formats))


def keys_and_values(kv: str) -> tuple[str, str]:
    """The formats of keys and of values that ``check_kv`` gave."""
    keys, _, values = kv.partition(",")
    return keys, values or keys


class Coded(NamedTuple):
    """Numbers (…, head_dim) as codes of that shape, and what goes with every 32 of them.

    scales, minima: (…, ceil(head_dim / 32)); a number is code · scale + minimum, rounded once,
    which changes nothing where the minimum is 0 or, in q4_0, -8 · scale. A scale is NaN where one
    of its numbers is, since no code says that.
    """

    codes: NDArray[np.int8]
    scales: NDArray[np.float16]
    minima: NDArray[np.float32]

    def numbers(self) -> Floats:
        """What they stand for: every format's numbers are exact in float64."""
        dim = self.codes.shape[-1]
        scales, minima = (
            np.repeat(each.astype(np.float64), PER_SCALE, axis=-1)[..., :dim]
            for each in (self.scales, self.minima)
        )
        return (self.codes * scales + minima).astype(np.float32)


def q8_0(x: Floats) -> Coded:
    """A scale is the half next to max|x| / 127; a code is -127 … 127."""
    blocks = _blocks(x)
    scales = (np.abs(blocks).max(-1) / np.float32(127)).astype(np.float16)
    return Coded(_codes(x, blocks, scales, -127, 127), scales, np.zeros(scales.shape, np.float32))


def q5_1(x: Floats) -> Coded:
    """The minimum is the half next to the least; a scale that next to (most - least) / 31."""
    blocks = _blocks(x)
    least = blocks.min(-1) + np.float32(0)  # -0 is 0
    scales = ((blocks.max(-1) - least) / np.float32(31)).astype(np.float16)
    minima = least.astype(np.float16).astype(np.float32)
    return Coded(_codes(x, blocks - minima[..., None], scales, 0, 31), scales, minima)


def q4_0(x: Floats) -> Coded:
    """A scale is the half next to a -8th of the number farthest from 0, the positive of two.

    A code is 0 … 15, and stands for eight less.
    """
    blocks = _blocks(x)
    most, least = blocks.max(-1), blocks.min(-1)
    farthest = np.where(most >= -least, most, least)
    scales = (np.float32(0) - farthest / np.float32(8)).astype(np.float16)
    codes = _codes(x, blocks, scales, -8, 7) + np.int8(8)
    return Coded(codes, scales, scales.astype(np.float32) * np.float32(-8))


def _keeping_nan(coder: Callable[[Floats], Coded]) -> Callable[[Floats], Coded]:
    """A coder whose scale of 32 numbers is NaN where one of them is."""

    def coded(x: Floats) -> Coded:
        codes, scales, minima = coder(x)
        lacking = np.isnan(_padded(x)).any(-1)
        return Coded(codes, np.where(lacking, np.float16(np.nan), scales), minima)

    return coded


CODERS: dict[str, Callable[[Floats], Coded]] = {
    "q8_0": _keeping_nan(q8_0), "q5_1": _keeping_nan(q5_1), "q4_0": _keeping_nan(q4_0),
}  # fmt: skip
"""By format; f16 has no codes."""


def as_stored(format: str, x: Floats) -> Floats:
    """The numbers that a format with codes stores for these; of f16, the numbers themselves."""
    return x if format == "f16" else CODERS[format](x).numbers()


def _blocks(x: Floats) -> Floats:
    """(…, ceil(head_dim / 32), 32): as far as a half goes."""
    return _padded(np.maximum(np.where(x < _MOST, x, _MOST), -_MOST))  # NaN is the largest


def _padded(x: Floats) -> Floats:
    """(…, ceil(head_dim / 32), 32): the last number fills up the last 32."""
    pad = [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % PER_SCALE)]
    return np.pad(x, pad, mode="edge").reshape(*x.shape[:-1], -1, PER_SCALE)


def _codes(
    x: Floats, blocks: Floats, scales: NDArray[np.float16], low: int, high: int
) -> NDArray[np.int8]:
    """The nearest whole multiples of the scales, ties to even; 0 where the scale is 0."""
    steps = scales.astype(np.float32)[..., None]
    with np.errstate(divide="ignore", invalid="ignore"):
        exact = np.where(steps != 0, blocks / steps, np.float32(0))
    whole = np.rint(np.clip(exact, low, high)).astype(np.int8)
    codes: NDArray[np.int8] = whole.reshape(*x.shape[:-1], -1)[..., : x.shape[-1]]
    return codes
