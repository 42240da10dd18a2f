"""What the bytes of the low-bit formats mean: tables of values, named patterns, ternary, one bit.

Knows one short function per format, like `decode`, with the same names. *A pattern*: 4 or 8 weights
that are named together by a number; the patterns are in the native extension, which has them once
for both. Source: `dequantize_row_*` in `ggml-quants.c` of ggml.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import InputError
from cutaway.files.weights.fields import (
    Bytes,
    Floats,
    QuantBlocks,
    column,
    f32,
    nibbles,
    pieces,
    unpack,
)

_IQ4 = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)
_E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)  # doubled
_VALUES = {
    "IQ1": (-1, 0, 1),
    **dict.fromkeys(("IQ2_XXS", "IQ2_XS", "IQ2_S"), (8, 25, 43)),
    "IQ3_XXS": (4, 12, 20, 28, 36, 44, 52, 62),
    "IQ3_S": (1, 3, 5, 7, 9, 11, 13, 15),
}
_SEVEN_SIGNS = np.arange(128, dtype=np.uint8)
_SEVEN_SIGNS |= np.unpackbits(_SEVEN_SIGNS[:, None], axis=1).sum(1, dtype=np.uint8) % 2 << 7
"""By the first seven of eight signs, all eight: the minuses are even in number."""


@cache
def _patterns(name: str) -> Floats:
    """The weights of each pattern: (count, 4 or 8)."""
    try:
        from cutaway.base._native import patterns
    except ImportError as error:
        raise InputError(
            f"{name} needs the table of patterns in the native extension, which was not built here"
        ) from error
    count, digits = (4, 3) if name.startswith("IQ3") else (8, 2)
    words = np.array(patterns(name), np.uint16)
    return _looked_up(np.array(_VALUES[name], np.float32), pieces(words, digits, count))


def _named(name: str, numbers: NDArray[Any]) -> Floats:
    """The weights of the patterns with these numbers: (...) -> (..., 4 or 8)."""
    return _looked_up(_patterns(name), numbers)


def _looked_up(table: Floats, index: NDArray[Any]) -> Floats:
    """The rows of a table: (...) -> (..., columns), or (...) where it has none."""
    found: Floats = table[index]
    return found


def _signs(bytes: Bytes) -> Floats:
    """Bit i of a byte is set where weight i is negative: (..., k) -> (..., k, 8) of 1 and -1."""
    return np.float32(1) - np.float32(2) * f32(pieces(bytes, 1, 8))


def _odd(scale: NDArray[Any], unit: float = 1) -> Floats:
    """2·scale + 1, in the given unit."""
    return (f32(scale) * np.float32(2) + np.float32(1)) * np.float32(unit)


def _iq4_nl(b: QuantBlocks) -> Floats:
    return column(b["d"]) * _looked_up(_IQ4, nibbles(b))  # (n, 32)


def _iq4_xs(b: QuantBlocks) -> Floats:
    low = pieces(b["scales_l"], 4, 2).reshape(-1, 8)
    high = pieces(b["scales_h"], 2, 8)  # (n, 8)
    scale = column(b["d"]) * (f32(low | high << 4) - np.float32(32))  # (n, 8)
    return scale[..., None] * _looked_up(_IQ4, unpack(b["qs"], 4).reshape(-1, 8, 32))


def _mxfp4(b: QuantBlocks) -> Floats:
    scale = np.ldexp(np.float32(1), b["e"].astype(np.int32) - 128)  # (n,)
    return column(scale) * _looked_up(_E2M1, nibbles(b))


def _nvfp4(b: QuantBlocks) -> Floats:
    exponent, fraction = b["scales"] >> 3 & 15, f32(b["scales"] & 7)  # (n, 4)
    normal = exponent > 0  # exponents are 7 too large, and the values of the table are doubled
    scale = np.ldexp(
        fraction / np.float32(8) + normal, np.maximum(exponent, 1).astype(np.int32) - 8
    )
    scale[b["scales"] == 0x7F] = 0
    return f32(scale)[..., None] * _looked_up(_E2M1, unpack(b["qs"], 4).reshape(-1, 4, 16))


def _iq3_xxs(b: QuantBlocks) -> Floats:
    scale = column(b["d"]) * _odd(b["signs"] >> 28, 1 / 4)  # (n, 8)
    signs = _signs(_SEVEN_SIGNS[pieces(b["signs"], 7, 4)])  # (n, 8, 4, 8)
    weights = _named("IQ3_XXS", b["qs"]).reshape(signs.shape)
    return scale[..., None, None] * weights * signs


def _iq3_s(b: QuantBlocks) -> Floats:
    scale = column(b["d"]) * _odd(pieces(b["scales"], 4, 2).reshape(-1, 8))
    name = b["qs"] | pieces(b["qh"], 1, 8).reshape(-1, 64).astype(np.uint16) << 8
    signs = _signs(b["signs"]).reshape(-1, 8, 32)
    return scale[..., None] * _named("IQ3_S", name).reshape(signs.shape) * signs


def _iq2_xxs(b: QuantBlocks) -> Floats:
    names, word = pieces(b["qs"][..., 0], 8, 4), b["qs"][..., 1]  # (n, 8, 4), (n, 8)
    scale = column(b["d"]) * _odd(word >> 28, 1 / 8)
    signs = _signs(_SEVEN_SIGNS[pieces(word, 7, 4)])  # (n, 8, 4, 8)
    return scale[..., None, None] * _named("IQ2_XXS", names) * signs


def _iq2_xs(b: QuantBlocks) -> Floats:
    signs = _signs(_SEVEN_SIGNS[b["qs"] >> 9])  # (n, 32, 8)
    return _iq2_scales(b) * (_named("IQ2_XS", b["qs"] & 511) * signs).reshape(-1, 16, 16)


def _iq2_s(b: QuantBlocks) -> Floats:
    name = b["qs"] | pieces(b["qh"], 2, 4).reshape(-1, 32).astype(np.uint16) << 8
    weights = _named("IQ2_S", name) * _signs(b["signs"])  # (n, 32, 8)
    return _iq2_scales(b) * weights.reshape(-1, 16, 16)


def _iq2_scales(b: QuantBlocks) -> Floats:
    """Of each 16 weights: (n, 16, 1)."""
    scale = _odd(pieces(b["scales"], 4, 2).reshape(-1, 16), 1 / 8)
    return (column(b["d"]) * scale)[..., None]


def _iq1_s(b: QuantBlocks) -> Floats:
    scale = column(b["d"]) * _odd(b["qh"] >> 12 & 7)  # (n, 8)
    name = b["qs"] | pieces(b["qh"], 3, 4).reshape(-1, 32) << 8
    delta = np.where(b["qh"] >> 15, np.float32(-1 / 8), np.float32(1 / 8))  # (n, 8)
    weights = _named("IQ1", name).reshape(-1, 8, 32) + delta[..., None]
    return scale[..., None] * weights


def _iq1_m(b: QuantBlocks) -> Floats:
    quarters = b["scales"] >> 12 << np.arange(0, 16, 4, dtype=np.uint16)  # (n, 4), of a half
    d = np.bitwise_or.reduce(quarters, axis=1).astype(np.uint16).view(np.float16)
    scale = column(d) * _odd(pieces(b["scales"], 3, 4).reshape(-1, 16))  # (n, 16)
    high = pieces(b["qh"], 4, 2).reshape(-1, 32)
    name = b["qs"] | (high & 7).astype(np.uint16) << 8
    delta = np.where(high & 8, np.float32(-1 / 8), np.float32(1 / 8))  # (n, 32)
    weights = _named("IQ1", name) + delta[..., None]
    return scale[..., None] * weights.reshape(-1, 16, 16)


def _tq1_0(b: QuantBlocks) -> Floats:
    """A byte is a fraction of 243; multiplying it by 3 puts the next digit above its 8 bits."""
    parts = (b["qs"][:, :32], 5), (b["qs"][:, 32:], 5), (b["qh"], 4)
    digits = [_ternary(part, count).reshape(len(b), -1) for part, count in parts]
    return column(b["d"]) * (f32(np.hstack(digits)) - np.float32(1))  # (n, 256)


def _ternary(packed: Bytes, count: int) -> Bytes:
    """The first digits to the base 3 of each byte: (n, k) -> (n, count, k)."""
    powers = np.uint8(3) ** np.arange(count, dtype=np.uint8)
    rest = packed[:, None] * powers[:, None]  # of 8 bits: whole digits are lost
    return (rest.astype(np.uint16) * 3 >> 8).astype(np.uint8)


def _tq2_0(b: QuantBlocks) -> Floats:
    return column(b["d"]) * (f32(unpack(b["qs"], 2)).reshape(-1, 256) - np.float32(1))


def _q1_0(b: QuantBlocks) -> Floats:
    return column(b["d"]) * -_signs(b["qs"]).reshape(-1, 128)


def _q2_0(b: QuantBlocks) -> Floats:
    return column(b["d"]) * (f32(pieces(b["qs"], 2, 4)).reshape(-1, 64) - np.float32(1))


DECODERS: Mapping[str, Callable[[QuantBlocks], Floats]] = {
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
    "NVFP4": _nvfp4,
    "IQ3_XXS": _iq3_xxs,
    "IQ3_S": _iq3_s,
    "IQ2_XXS": _iq2_xxs,
    "IQ2_XS": _iq2_xs,
    "IQ2_S": _iq2_s,
    "IQ1_S": _iq1_s,
    "IQ1_M": _iq1_m,
    "TQ1_0": _tq1_0,
    "TQ2_0": _tq2_0,
    "Q1_0": _q1_0,
    "Q2_0": _q2_0,
}
"""By name: quant blocks to float32, any shape of the right size."""
