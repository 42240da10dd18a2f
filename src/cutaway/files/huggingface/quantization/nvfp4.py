"""NVFP4: numbers of 4 bits (e2m1), of which 16 share a float of 8 bits (e4m3), and a whole factor.

NVIDIA's ModelOpt stores two numbers in a byte of `weight`, the first in the low half, the scales in
`weight_scale`, and the matrix's factor in `weight_scale_2`. compressed-tensors calls the numbers
`weight_packed`, and stores 1 / factor as `weight_global_scale`. GGUF's quant blocks have the same
numbers and scales in another order, and its tensors ``.scale`` the factors.

ModelOpt's AWQ has `pre_quant_scale` (in), by which what a matrix reads is multiplied, where it is
not in the norm before; its codes are NVFP4's, or integers of 4 bits.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import FormatError
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.quantization.floats import E4M3, Fp8
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
_ALGORITHMS = ("FP8", "NVFP4", "NVFP4_AWQ", "W4A16_AWQ", "MIXED_PRECISION")
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
    """The method of ModelOpt's FP8 and NVFP4; a matrix's dtype says which of the two it is."""

    @classmethod
    def read(cls, config: JsonObject) -> "ModelOpt":
        """Read a quantization_config, or hf_quant_config.json."""
        if config.get("quantization") is not None:
            config = config.part("quantization")
        config.must_be("quant_algo", *_ALGORITHMS)
        return cls()

    def matrices(self, shards: Shards) -> Iterator[Grouped]:
        """Yield all matrices stored as FP8 or NVFP4."""
        yield from Fp8().matrices(shards)
        for base in bases(shards, ".weight"):
            parts = MatrixParts(shards, base)
            if parts.dtype(".weight") == "U8":
                if parts.has(".weight_scale_2"):
                    matrix = nvfp4_matrix(parts, ".weight", ".weight_scale_2")
                else:
                    matrix = _int4_matrix(parts)
                yield smooth(matrix, parts, _OF_AWQ)


def _int4_matrix(parts: MatrixParts) -> Grouped:
    """Return a matrix of AWQ, whose bytes have the codes of two outputs, the first in the low half.

    weight (out / 2, in) has codes from -8 to 7, and weight_scale (out, in / group) their scales.
    """
    half, cols = parts.sides(".weight", "U8")
    _, groups = parts.sides(".weight_scale", *FLOATS)
    parts.expect(".weight_scale", (2 * half, groups), *FLOATS)
    group = group_of(f"{parts.base}.weight_scale", cols, groups)
    format = format_of("INT4", f"{parts.base}.weight", cols, group)

    def read() -> tuple[Bytes, NDArray[np.float32], NDArray[np.int8]]:
        stored = parts.array(".weight") ^ np.uint8(0x88)  # 8 more
        codes = np.stack([stored & np.uint8(15), stored >> np.uint8(4)], axis=1).reshape(-1, cols)
        return pack_pairs(codes), parts.array(".weight_scale"), np.full((2 * half, groups), 8, "i1")

    return Grouped(parts.base, tuple(parts.used), (2 * half, cols), format, group, read)


def nvfp4_matrix(
    parts: MatrixParts, codes: str, factor: str | None, scales: str = ".weight_scale"
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
