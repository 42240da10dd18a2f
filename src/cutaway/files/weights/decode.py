"""What the bytes of each format mean: quant blocks in, float32 out.

Knows one short function per format, written as its definition: the oracle of the native kernels.

In every decoder n is the number of quant blocks; the names of the fields are those
of `formats`. Source: `dequantize_row_*` in `ggml-quants.c` of ggml.
"""

from collections.abc import Callable

import numpy as np

from cutaway.files.weights import grouped, low_bit
from cutaway.files.weights.fields import Bytes, Floats, QuantBlocks, column, f32, nibbles, unpack
from cutaway.files.weights.formats import QuantFormat

# Few enough weights that a chunk and its intermediates stay in a core's cache.
_CHUNK_ELEMENTS = 1 << 15


def dequantize(format: QuantFormat, data: Bytes) -> Floats:
    """Decode n quant blocks.

    `data` is uint8 (n * quant_block_bytes,), contiguous; the answer is a new float32
    (n * quant_block_elements,). A scale that is inf or NaN gives inf or NaN weights,
    silently: whether that is wrong is for the owner of the weights to say.
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
    """Bit i of the 32 in qh is the fifth bit of weight i: (n, 32), 0..31."""
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
    4..7 have their low four bits in the third row and their high two on top of the others.
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


_DECODERS: dict[str, Callable[[QuantBlocks], Floats]] = {
    "F32": _plain,
    "F16": _plain,
    "BF16": _bf16,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    **low_bit.DECODERS,
    **grouped.DECODERS,
}
