"""NVFP4: numbers of 4 bits (e2m1), of which 16 share a float of 8 bits (e4m3), and a whole factor.

Also the other methods of NVIDIA's ModelOpt, which are told apart by the dtypes of codes and scales.

NVIDIA's ModelOpt stores two numbers in a byte of `weight`, the first in the low half, the scales in
`weight_scale`, and the matrix's factor in `weight_scale_2`. compressed-tensors calls the numbers
`weight_packed`, and stores 1 / factor as `weight_global_scale`. GGUF's quant blocks have the same
numbers and scales in another order, and its tensors ``.scale`` the factors.

ModelOpt's AWQ has `pre_quant_scale` (in), by which what a matrix reads is multiplied, where it is
not in the norm before; its codes are NVFP4's, or integers of 4 bits. Those of W4A8_AWQ have a
`weight_scale_2`, too: by its reciprocal a GPU multiplies their scales before it rounds weights to
FP8. cutaway does not round them, so that this number is not needed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import FormatError
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.quantization.floats import (
    E4M3,
    fp8_matrix,
    mxfp4_matrix,
    mxfp8_matrix,
)
from cutaway.files.huggingface.quantization.grouped import (
    FLOATS,
    Bytes,
    Grouped,
    MatrixParts,
    bases,
    fields,
    format_of,
    group_of,
    pack_pairs,
    read_factor,
    smooth,
)
from cutaway.files.huggingface.shards import Shards
from cutaway.files.weights import FORMATS
from cutaway.files.weights.cursor import quote

_GROUP, _BLOCK = 16, FORMATS["NVFP4"].quant_block_elements
_LARGEST = 0x7E  # the byte of e4m3's largest number
_ALGORITHMS = (
    "FP8", "FP8_PER_CHANNEL_PER_TOKEN", "NVFP4", "NVFP4_AWQ", "W4A16_NVFP4", "W4A8_NVFP4_FP8",
    "W4A16_AWQ", "W4A8_AWQ", "W4A8_MXFP4_FP8", "MXFP8", "MIXED_PRECISION",
)  # fmt: skip
_CODES, _SCALES, _FACTOR = ".weight", ".weight_scale", ".weight_scale_2"
_OF_AWQ = ".pre_quant_scale"


@dataclass(frozen=True)
class Nvfp4Matrix(Grouped):
    """A matrix whose blocks are laid out as GGUF has them."""

    def rows(self) -> Bytes:
        """See `Grouped`."""
        codes, scales, _ = self.read()
        *above, cols = self.shape
        blocks = np.empty((prod(above), cols // _BLOCK), FORMATS["NVFP4"].layout)
        halves = fields(codes, 4).reshape(*blocks.shape, _BLOCK // _GROUP, 2, _GROUP // 2)
        blocks["scales"] = scales.reshape(*blocks.shape, -1)
        blocks["qs"] = halves[..., 0, :] | halves[..., 1, :] << np.uint8(4)
        return blocks.view(np.uint8).reshape(*above, -1)


def check_rows(name: str, cols: int) -> None:
    """Raise FormatError for rows that are not whole blocks; name: of the tensor of codes."""
    if cols % _BLOCK:
        raise FormatError(
            f"the tensor {quote(name)} has rows of {cols} weights, and cutaway "
            f"reads NVFP4 in rows of whole multiples of {_BLOCK}: take the model in another format"
        )


def read_e4m3(parts: MatrixParts, ending: str) -> Bytes:
    """Return the bytes of scales; FormatError if one is below 0 or not finite."""
    scales: Bytes = parts.array(ending)
    if (scales > _LARGEST).any():
        raise FormatError(
            f"the tensor {quote(parts.base + ending)} holds scales that are not "
            "finite, or below 0; download the model again"
        )
    return scales


class ModelOpt:
    """The method of ModelOpt; dtypes say what a matrix is, so that its settings are not needed."""

    @classmethod
    def read(cls, config: JsonObject) -> "ModelOpt":
        """Read a quantization_config, or hf_quant_config.json."""
        if config.get("quantization") is not None:
            config = config.part("quantization")
        config.must_be("quant_algo", *_ALGORITHMS)
        return cls()

    def matrices(self, shards: Shards) -> Iterator[Grouped]:
        """Yield all quantised matrices."""
        for base in bases(shards, _CODES):
            parts = MatrixParts(shards, base)
            if parts.dtype(_CODES) in (E4M3, "U8"):
                yield smooth(_matrix(parts), parts, _OF_AWQ)


def _matrix(parts: MatrixParts) -> Grouped:
    """Return the matrix that the dtypes of its codes and scales mean."""
    is_float8 = parts.dtype(_CODES) == E4M3
    match parts.dtype(_SCALES) if parts.has(_SCALES) else "":
        case "U8" if is_float8:
            return mxfp8_matrix(parts, _CODES, _SCALES, parts.sides(_CODES, E4M3))
        case "U8":
            return mxfp4_matrix(parts, _CODES, _SCALES)
        case _ if is_float8:
            return fp8_matrix(parts, None)
        case dtype if dtype in FLOATS:
            return _int4_matrix(parts)
        case _:
            return nvfp4_matrix(parts, _CODES, _FACTOR)


def _int4_matrix(parts: MatrixParts) -> Grouped:
    """Return a matrix of AWQ, whose bytes have the codes of two outputs, the first in the low half.

    weight (out / 2, in) has codes from -8 to 7, and weight_scale (out, in / group) their scales.
    """
    half, cols = parts.sides(_CODES, "U8")
    _, groups = parts.sides(_SCALES, *FLOATS)
    parts.expect(_SCALES, (2 * half, groups), *FLOATS)
    if parts.has(_FACTOR):
        parts.expect_number(_FACTOR, *FLOATS)
    group = group_of(parts.base + _SCALES, cols, groups)
    format = format_of("INT4", parts.base + _CODES, cols, group)

    def read() -> tuple[Bytes, NDArray[np.float32], NDArray[np.int8]]:
        stored = parts.array(_CODES) ^ np.uint8(0x88)  # 8 more
        codes = np.stack([stored & np.uint8(15), stored >> np.uint8(4)], axis=1).reshape(-1, cols)
        return pack_pairs(codes), parts.array(_SCALES), np.full((2 * half, groups), 8, "i1")

    return Grouped(parts.base, tuple(parts.used), (2 * half, cols), format, group, read)


def nvfp4_matrix(
    parts: MatrixParts, codes: str, factor: str | None, scales: str = _SCALES
) -> Grouped:
    """Return the matrix; codes, factor (None: there is none), scales: these tensors' endings."""
    rows, half = parts.sides(codes, "U8")
    cols = 2 * half
    check_rows(parts.base + codes, cols)
    parts.expect(scales, (rows, cols // _GROUP), E4M3)

    def read() -> tuple[Bytes, Bytes, None]:
        return parts.array(codes), read_e4m3(parts, scales), None

    number = None if factor is None else _factor(parts, factor)
    name, used = parts.base, tuple(parts.used)
    return Nvfp4Matrix(name, used, (rows, cols), "NVFP4", _GROUP, read, factor=number)


def _factor(parts: MatrixParts, ending: str) -> NDArray[np.float32]:
    parts.expect_number(ending, "F32")
    return read_factor(parts, ending, is_inverse=ending == ".weight_global_scale")
