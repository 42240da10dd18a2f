"""MXFP4: numbers of 4 bits (e2m1), of which 32 share a power of two (OCP Microscaling, v1.0).

compressed-tensors has two of them in a byte, the first in its low half, and the powers' exponents
plus 127 beside; GGUF's quant blocks have the same codes in another order.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import FormatError
from cutaway.files.huggingface.quantization.bits import fields
from cutaway.files.huggingface.quantization.grouped import Bytes, Grouped
from cutaway.files.huggingface.quantization.parts import MatrixParts
from cutaway.files.weights import FORMATS
from cutaway.files.weights.cursor import quoted

_GROUP, _NAN = 32, 255
_CODES, _SCALES = ".weight_packed", ".weight_scale"


@dataclass(frozen=True)
class _Mxfp4(Grouped):
    def rows(self) -> Bytes:
        """See `Grouped`."""
        codes, exponents, _ = self.read()
        rows, cols = self.shape
        each = fields(codes, 4).reshape(rows, cols // _GROUP, 2, _GROUP // 2)
        made = np.empty((rows, cols // _GROUP), FORMATS["MXFP4"].layout)
        made["e"] = exponents
        made["qs"] = each[:, :, 0] | each[:, :, 1] << np.uint8(4)
        return made.view(np.uint8).reshape(rows, -1)


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

    def read() -> tuple[Bytes, NDArray[np.uint8], None]:
        exponents = parts.array(_SCALES)
        if (exponents == _NAN).any():
            raise FormatError(
                f"the tensor {quoted(parts.base + _SCALES)} holds scales that are not finite; "
                "download the model again"
            )
        return parts.array(_CODES), exponents, None

    return _Mxfp4(parts.base, tuple(parts.used), (rows, cols), "MXFP4", _GROUP, read)
