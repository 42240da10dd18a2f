"""NVFP4: numbers of 4 bits (e2m1), of which 16 share a float of 8 bits (e4m3), and a whole factor.

NVIDIA's ModelOpt stores two numbers in a byte of `weight`, the first in the low half, the scales in
`weight_scale`, and the matrix's factor in `weight_scale_2`. compressed-tensors calls the numbers
`weight_packed`, and stores 1 / factor as `weight_global_scale`. GGUF's quant blocks have the same
numbers and scales in another order, and its tensors ``.scale`` the factors.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np

from cutaway.errors import FormatError
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.quantization.floats import E4M3, Fp8
from cutaway.files.huggingface.quantization.grouped import (
    Bytes,
    Grouped,
    MatrixParts,
    bases,
    fields,
    read_factor,
)
from cutaway.files.huggingface.shards import Shards
from cutaway.files.weights import FORMATS
from cutaway.files.weights.cursor import quote

_GROUP, _BLOCK = 16, FORMATS["NVFP4"].quant_block_elements
_LARGEST = 0x7E  # the byte of e4m3's largest number
_ALGORITHMS = ("FP8", "NVFP4", "MIXED_PRECISION")
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
        for base in bases(shards, _OF_AWQ):
            raise FormatError(
                f"the tensor {quote(base + _OF_AWQ)} multiplies what a matrix reads (AWQ), which "
                "is not supported; take the model in another format"
            )
        yield from Fp8().matrices(shards)
        for base in bases(shards, ".weight_scale_2"):
            if shards.dtype(f"{base}.weight") == "U8":
                yield nvfp4_matrix(MatrixParts(shards, base), ".weight", ".weight_scale_2")


def nvfp4_matrix(parts: MatrixParts, codes: str, factor: str) -> Grouped:
    """Return the matrix; codes and factor: the endings of these tensors."""
    rows, half = parts.sides(codes, "U8")
    cols = 2 * half
    check_rows(parts.base + codes, cols)
    parts.expect(".weight_scale", (rows, cols // _GROUP), E4M3)
    if parts.shape(factor, "F32") not in ((), (1,)):
        raise FormatError(
            f"the tensor {quote(parts.base + factor)} has the shape {parts.shape(factor, 'F32')}, "
            "and a matrix has one factor; download the model again"
        )

    def read() -> tuple[Bytes, Bytes, None]:
        return parts.array(codes), read_e4m3(parts, ".weight_scale"), None

    number = read_factor(parts, factor, is_inverse=factor == ".weight_global_scale")
    name, used = parts.base, tuple(parts.used)
    return Nvfp4Matrix(name, used, (rows, cols), "NVFP4", _GROUP, read, factor=number)
