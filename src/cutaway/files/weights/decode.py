"""Decodes the bytes of each format: quant blocks become float32.

Each format has one short function, written as the format is defined; the native kernels are
compared with these functions. In every function n is the number of quant blocks; the names of the
fields are those of `formats`. This module knows no file. Source: `dequantize_row_*` in
`ggml-quants.c` of ggml.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import InputError
from cutaway.files.weights.formats import QuantFormat

# -- fields of quant blocks as arrays --------------------------------------------------------------


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
    """Return codes, (n, 32), 0..15: byte i holds code i in its low half, i + 16 in its high."""
    return unpack(b["qs"], 4).reshape(-1, 32)


def pieces(words: NDArray[Any], bits: int, count: int) -> NDArray[Any]:
    """Split integers into `count` fields of so many bits: (..., k) -> (..., k, count)."""
    shifts = np.arange(0, bits * count, bits, dtype=words.dtype)
    fields: NDArray[Any] = words[..., None] >> shifts & words.dtype.type((1 << bits) - 1)
    return fields


# -- formats that quantised matrices of folders become: a code's number times its group's scale ----


def _int4(b: QuantBlocks) -> Floats:
    return column(b["d"]) * f32(_pairs(b).astype(np.int16) - b["z"][:, None])


def _int8(b: QuantBlocks) -> Floats:
    return column(b["d"]) * f32(b["qs"].astype(np.int16) - b["z"][:, None])


def _affine4(b: QuantBlocks) -> Floats:
    return column(b["d"]) * f32(_pairs(b).view(np.int8) - 8) + column(b["m"])


def _affine8(b: QuantBlocks) -> Floats:
    return column(b["d"]) * f32(b["qs"]) + column(b["m"])


def _fp8(b: QuantBlocks) -> Floats:
    numbers: Floats = E4M3[b["qs"]]
    return column(b["d"]) * numbers


def _nf4(b: QuantBlocks) -> Floats:
    return column(b["d"]) * NF4[_pairs(b)]


def _pairs(b: QuantBlocks) -> Bytes:
    """Return codes, (n, group): byte i holds code 2i in its low half, 2i + 1 in its high."""
    return np.stack([b["qs"] & 15, b["qs"] >> 4], axis=-1).reshape(len(b), -1)


def _e4m3() -> Floats:
    """Return the number of each byte: sign, 4 bits of exponent, 3 of fraction; all ones are NaN.

    Source: Micikevicius et al. 2022, arXiv 2209.05433.
    """
    codes = np.arange(128)
    exponent, fraction = codes >> 3, codes & 7
    normal = (8 + fraction) * 2.0 ** (exponent - 10)
    values = np.where(exponent > 0, normal, fraction * 2.0**-9)
    values[127] = np.nan
    return np.concatenate([values, -values]).astype(np.float32)


E4M3 = _e4m3()
"""The number of each byte of FP8."""

NF4 = np.array(
    [
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
        -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
        0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
        0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
    ],
    np.float32,
)  # fmt: skip
"""The number of each code of NF4 (Dettmers et al. 2023, arXiv 2305.14314, appendix E)."""


# -- low-bit formats: tables of values, named patterns, ternary, one bit ---------------------------


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
"""All eight signs, by the first seven: the number of minuses is even."""


@cache
def _patterns(name: str) -> Floats:
    """Return the weights of each pattern: (count, 4 or 8)."""
    try:
        from cutaway.base._native import patterns
    except ImportError as error:
        raise InputError(
            f"{name} needs the table of patterns in the native extension, which was not built here"
        ) from error
    count, digits = (4, 3) if name.startswith("IQ3") else (8, 2)
    words = np.array(patterns(name), np.uint16)
    return _looked_up(np.array(_VALUES[name], np.float32), pieces(words, digits, count))


def _pattern_weights(name: str, numbers: NDArray[Any]) -> Floats:
    """Return the weights of the patterns with these numbers: (...) -> (..., 4 or 8)."""
    return _looked_up(_patterns(name), numbers)


def _looked_up(table: Floats, index: NDArray[Any]) -> Floats:
    """Look up rows of a table: (...) -> (..., columns); (...) if the table is a vector."""
    rows: Floats = table[index]
    return rows


def _signs(bytes: Bytes) -> Floats:
    """Return -1 for each bit that is set in a byte, else 1: (..., k) -> (..., k, 8)."""
    return np.float32(1) - np.float32(2) * f32(pieces(bytes, 1, 8))


def _odd(scale: NDArray[Any], unit: float = 1) -> Floats:
    """Return 2·scale + 1, in the given unit."""
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
    weights = _pattern_weights("IQ3_XXS", b["qs"]).reshape(signs.shape)
    return scale[..., None, None] * weights * signs


def _iq3_s(b: QuantBlocks) -> Floats:
    scale = column(b["d"]) * _odd(pieces(b["scales"], 4, 2).reshape(-1, 8))
    name = b["qs"] | pieces(b["qh"], 1, 8).reshape(-1, 64).astype(np.uint16) << 8
    signs = _signs(b["signs"]).reshape(-1, 8, 32)
    return scale[..., None] * _pattern_weights("IQ3_S", name).reshape(signs.shape) * signs


def _iq2_xxs(b: QuantBlocks) -> Floats:
    names, word = pieces(b["qs"][..., 0], 8, 4), b["qs"][..., 1]  # (n, 8, 4), (n, 8)
    scale = column(b["d"]) * _odd(word >> 28, 1 / 8)
    signs = _signs(_SEVEN_SIGNS[pieces(word, 7, 4)])  # (n, 8, 4, 8)
    return scale[..., None, None] * _pattern_weights("IQ2_XXS", names) * signs


def _iq2_xs(b: QuantBlocks) -> Floats:
    signs = _signs(_SEVEN_SIGNS[b["qs"] >> 9])  # (n, 32, 8)
    return _iq2_scales(b) * (_pattern_weights("IQ2_XS", b["qs"] & 511) * signs).reshape(-1, 16, 16)


def _iq2_s(b: QuantBlocks) -> Floats:
    name = b["qs"] | pieces(b["qh"], 2, 4).reshape(-1, 32).astype(np.uint16) << 8
    weights = _pattern_weights("IQ2_S", name) * _signs(b["signs"])  # (n, 32, 8)
    return _iq2_scales(b) * weights.reshape(-1, 16, 16)


def _iq2_scales(b: QuantBlocks) -> Floats:
    """Return the scale of each 16 weights: (n, 16, 1)."""
    scale = _odd(pieces(b["scales"], 4, 2).reshape(-1, 16), 1 / 8)
    return (column(b["d"]) * scale)[..., None]


def _iq1_s(b: QuantBlocks) -> Floats:
    scale = column(b["d"]) * _odd(b["qh"] >> 12 & 7)  # (n, 8)
    name = b["qs"] | pieces(b["qh"], 3, 4).reshape(-1, 32) << 8
    delta = np.where(b["qh"] >> 15, np.float32(-1 / 8), np.float32(1 / 8))  # (n, 8)
    weights = _pattern_weights("IQ1", name).reshape(-1, 8, 32) + delta[..., None]
    return scale[..., None] * weights


def _iq1_m(b: QuantBlocks) -> Floats:
    quarters = b["scales"] >> 12 << np.arange(0, 16, 4, dtype=np.uint16)  # (n, 4), of a half
    d = np.bitwise_or.reduce(quarters, axis=1).astype(np.uint16).view(np.float16)
    scale = column(d) * _odd(pieces(b["scales"], 3, 4).reshape(-1, 16))  # (n, 16)
    high = pieces(b["qh"], 4, 2).reshape(-1, 32)
    name = b["qs"] | (high & 7).astype(np.uint16) << 8
    delta = np.where(high & 8, np.float32(-1 / 8), np.float32(1 / 8))  # (n, 32)
    weights = _pattern_weights("IQ1", name) + delta[..., None]
    return scale[..., None] * weights.reshape(-1, 16, 16)


def _tq1_0(b: QuantBlocks) -> Floats:
    """Decode TQ1_0, in which a byte is a fraction in base 3.

    Multiplying a byte by 3 moves its next digit above the 8 bits.
    """
    parts = (b["qs"][:, :32], 5), (b["qs"][:, 32:], 5), (b["qh"], 4)
    digits = [_ternary(part, count).reshape(len(b), -1) for part, count in parts]
    return column(b["d"]) * (f32(np.hstack(digits)) - np.float32(1))  # (n, 256)


def _ternary(packed: Bytes, count: int) -> Bytes:
    """Return the first digits of each byte in base 3: (n, k) -> (n, count, k)."""
    powers = np.uint8(3) ** np.arange(count, dtype=np.uint8)
    rest = packed[:, None] * powers[:, None]  # of 8 bits: whole digits are lost
    return (rest.astype(np.uint16) * 3 >> 8).astype(np.uint8)


def _tq2_0(b: QuantBlocks) -> Floats:
    return column(b["d"]) * (f32(unpack(b["qs"], 2)).reshape(-1, 256) - np.float32(1))


def _q1_0(b: QuantBlocks) -> Floats:
    return column(b["d"]) * -_signs(b["qs"]).reshape(-1, 128)


def _q2_0(b: QuantBlocks) -> Floats:
    return column(b["d"]) * (f32(pieces(b["qs"], 2, 4)).reshape(-1, 64) - np.float32(1))


# -- the formats of most files ---------------------------------------------------------------------


# Few enough weights that a chunk and its intermediates stay in a core's cache.
_CHUNK_ELEMENTS = 1 << 15


def dequantize(format: QuantFormat, data: Bytes) -> Floats:
    """Decode n quant blocks.

    `data` is uint8 (n * quant_block_bytes,), contiguous; the result is a new float32
    (n * quant_block_elements,). A scale that is inf or NaN gives inf or NaN weights without an
    error: the caller decides whether that is wrong.
    Raises ValueError if `data` is not a whole number of quant blocks.
    """
    quant_blocks: QuantBlocks = data.view(format.layout)  # (n,)
    decode = _DECODERS[format.name]
    out = np.empty((len(quant_blocks), format.quant_block_elements), np.float32)
    step = _CHUNK_ELEMENTS // format.quant_block_elements
    with np.errstate(invalid="ignore", over="ignore"):  # inf and NaN are the answer
        for start in range(0, len(quant_blocks), step):
            chunk = out[start : start + step]  # (<= step, quant_block_elements)
            chunk[...] = decode(quant_blocks[start : start + step]).reshape(chunk.shape)
    return out.reshape(-1)


def _plain(b: QuantBlocks) -> Floats:
    return f32(b["x"])  # (n,)


def _bf16(b: QuantBlocks) -> Floats:
    return (b["x"].astype(np.uint32) << 16).view(np.float32)  # (n,): the upper half of a float32


def _q4_0(b: QuantBlocks) -> Floats:
    q = nibbles(b).astype(np.int8) - 8  # (n, 32), -8..7
    return column(b["d"]) * f32(q)


def _q4_1(b: QuantBlocks) -> Floats:
    return column(b["d"]) * f32(nibbles(b)) + column(b["m"])


def _q5_0(b: QuantBlocks) -> Floats:
    q = _fives(b).astype(np.int8) - 16  # (n, 32), -16..15
    return column(b["d"]) * f32(q)


def _q5_1(b: QuantBlocks) -> Floats:
    return column(b["d"]) * f32(_fives(b)) + column(b["m"])


def _q8_0(b: QuantBlocks) -> Floats:
    return column(b["d"]) * f32(b["qs"])  # (n, 32)


def _fives(b: QuantBlocks) -> Bytes:
    """Return codes, (n, 32), 0..31: bit i of the 32 in qh is the fifth bit of code i."""
    high = np.unpackbits(b["qh"], axis=-1, bitorder="little")  # (n, 32)
    return nibbles(b) | high << np.uint8(4)


def _q2_k(b: QuantBlocks) -> Floats:
    q = unpack(b["qs"], 2).reshape(-1, 16, 16)  # (n, groups, 16), 0..3
    scale = column(b["d"]) * f32(b["scales"] & 15)  # (n, 16)
    shift = column(b["dmin"]) * f32(b["scales"] >> 4)  # (n, 16)
    return scale[..., None] * f32(q) - shift[..., None]


def _q3_k(b: QuantBlocks) -> Floats:
    low = unpack(b["qs"], 2).reshape(-1, 16, 16)  # (n, groups, 16)
    high = unpack(b["qh"], 1).reshape(
        -1, 16, 16
    )  # (n, groups, 16): bit i of byte k, weight 32i + k
    q = (low | high << 2).astype(np.int8) - 4  # -4..3
    # A group's 6-bit scale: four bits in the first 8 bytes, two more in the last 4.
    nibbles = unpack(b["scales"][:, :8], 4).reshape(-1, 16)
    pairs = unpack(b["scales"][:, 8:], 2).reshape(-1, 16)
    scale = (nibbles | pairs << 4).astype(np.int8) - 32  # (n, 16), -32..31
    return (column(b["d"]) * f32(scale))[..., None] * f32(q)


def _q4_k(b: QuantBlocks) -> Floats:
    q = unpack(b["qs"], 4).reshape(-1, 8, 32)  # (n, groups, 32), 0..15
    scale, shift = _scales_and_shifts(b)
    return scale * f32(q) - shift


def _q5_k(b: QuantBlocks) -> Floats:
    low = unpack(b["qs"], 4).reshape(-1, 8, 32)  # (n, groups, 32)
    high = unpack(b["qh"], 1)  # (n, 8, 32): bit g of byte k is the fifth bit of weight 32g + k
    scale, shift = _scales_and_shifts(b)
    return scale * f32(low | high << 4) - shift


def _scales_and_shifts(b: QuantBlocks) -> tuple[Floats, Floats]:
    """Unpack the 8 scales and 8 shifts of 6 bits, each (n, 8, 1), from 12 bytes.

    Groups 0..3 lie in the low six bits of the first two rows of four bytes; groups
    4..7 have their low four bits in the third row, and their high two bits in the top two bits of
    the first two rows.
    """
    first, second, third = np.moveaxis(b["scales"], 1, 0)  # each (n, 4)
    scale = np.hstack([first & 63, third & 15 | first >> 6 << 4])  # (n, 8), 0..63
    shift = np.hstack([second & 63, third >> 4 | second >> 6 << 4])  # (n, 8), 0..63
    return (
        (column(b["d"]) * f32(scale))[..., None],
        (column(b["dmin"]) * f32(shift))[..., None],
    )


def _q6_k(b: QuantBlocks) -> Floats:
    low = unpack(b["ql"], 4).reshape(-1, 16, 16)  # (n, groups, 16)
    high = unpack(b["qh"], 2).reshape(-1, 16, 16)  # (n, groups, 16)
    q = (low | high << 4).astype(np.int8) - 32  # -32..31
    scale = column(b["d"]) * f32(b["scales"])  # (n, 16)
    return scale[..., None] * f32(q)


_OF_EACH_LENGTH = {
    "INT4": _int4, "INT8": _int8, "AFFINE4": _affine4, "AFFINE8": _affine8, "FP8": _fp8,
}  # fmt: skip
_DECODERS: Mapping[str, Callable[[QuantBlocks], Floats]] = {
    "F32": _plain, "F16": _plain, "BF16": _bf16, "NF4": _nf4, "MXFP4": _mxfp4, "NVFP4": _nvfp4,
    "Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1, "Q8_0": _q8_0,
    "Q2_K": _q2_k, "Q3_K": _q3_k, "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl, "IQ4_XS": _iq4_xs, "IQ3_XXS": _iq3_xxs, "IQ3_S": _iq3_s,
    "IQ2_XXS": _iq2_xxs, "IQ2_XS": _iq2_xs, "IQ2_S": _iq2_s, "IQ1_S": _iq1_s, "IQ1_M": _iq1_m,
    "TQ1_0": _tq1_0, "TQ2_0": _tq2_0, "Q1_0": _q1_0, "Q2_0": _q2_0,
    **{f"{kind}_G{n}": by for kind, by in _OF_EACH_LENGTH.items() for n in (32, 64, 128)},
}  # fmt: skip
"""Decoders by name. Each returns float32 in some shape of the right size."""
