"""MXFP4: numbers of 4 bits (e2m1), of which 32 share a power of two (OCP Microscaling, v1.0).

compressed-tensors and gpt-oss have two of them in a byte, the first in its low half, and the
powers' exponents plus 127 beside; GGUF's quant blocks have the same codes in another order.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import FormatError
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.quantization.bits import fields
from cutaway.files.huggingface.quantization.grouped import Bytes, Grouped
from cutaway.files.huggingface.quantization.parts import MatrixParts, bases
from cutaway.files.huggingface.shards import Shards
from cutaway.files.weights import FORMATS
from cutaway.files.weights.cursor import quoted

_GROUP, _NAN = 32, 255
_CODES, _SCALES = ".weight_packed", ".weight_scale"
_BLOCKS, _EXPONENTS = "_blocks", "_scales"


@dataclass(frozen=True)
class _Mxfp4(Grouped):
    def rows(self) -> Bytes:
        """See `Grouped`."""
        codes, exponents, _ = self.read()
        *above, cols = self.shape
        rows = prod(above)
        each = fields(codes.reshape(rows, -1), 4).reshape(rows, cols // _GROUP, 2, _GROUP // 2)
        made = np.empty((rows, cols // _GROUP), FORMATS["MXFP4"].layout)
        made["e"] = exponents.reshape(made.shape)
        made["qs"] = each[:, :, 0] | each[:, :, 1] << np.uint8(4)
        return made.view(np.uint8).reshape(*above, -1)


class Mxfp4:
    """What gpt-oss is published in: a layer's experts together, its other matrices as they are.

    `_blocks` (experts, outputs, groups, 16 bytes) and `_scales` (experts, outputs, groups).
    """

    @classmethod
    def read(cls, _said: JsonObject) -> "Mxfp4":
        """From a quantization_config."""
        return cls()

    def matrices(self, shards: Shards) -> Iterator[Grouped]:
        """All that are quantised."""
        for base in bases(shards, _BLOCKS):
            yield _of_experts(MatrixParts(shards, base))


def _of_experts(parts: MatrixParts) -> Grouped:
    shape = parts.shape(_BLOCKS, "U8")
    if len(shape) != 4 or shape[3] != _GROUP // 2:
        raise FormatError(
            f"the tensor {quoted(parts.base + _BLOCKS)} has the shape {shape}, which is not "
            f"experts, outputs, groups and {_GROUP // 2} bytes; download the model again"
        )
    experts, rows, groups, _ = shape
    parts.expect(_EXPONENTS, shape[:3], "U8", "F8_E8M0")
    read = _reader(parts, _BLOCKS, _EXPONENTS)
    sizes = experts, rows, groups * _GROUP
    return _Mxfp4(parts.base, tuple(parts.used), sizes, "MXFP4", _GROUP, read)


def mxfp4_matrix(parts: MatrixParts) -> Grouped:
    """FormatError for one that is not whole."""
    rows, half = parts.sides(_CODES, "U8")
    cols = 2 * half
    if cols % _GROUP:
        raise FormatError(
            f"the tensor {quoted(parts.base + _CODES)} has rows of {cols} weights, which are no "
            f"whole groups of {_GROUP}; download the model again"
        )
    parts.expect(_SCALES, (rows, cols // _GROUP), "U8", "F8_E8M0")
    read = _reader(parts, _CODES, _SCALES)
    return _Mxfp4(parts.base, tuple(parts.used), (rows, cols), "MXFP4", _GROUP, read)


def _reader(
    parts: MatrixParts, codes: str, exponents: str
) -> Callable[[], tuple[Bytes, NDArray[np.uint8], None]]:
    def read() -> tuple[Bytes, NDArray[np.uint8], None]:
        found = parts.array(exponents)
        if (found == _NAN).any():
            raise FormatError(
                f"the tensor {quoted(parts.base + exponents)} holds scales that are not finite; "
                "download the model again"
            )
        return parts.array(codes), found, None

    return read
