"""Experts of Inkling 2's own folders: NVFP4 or MXFP8, and those of a layer in one tensor.

`w13_weight` and `w2_weight` have all experts' codes, and `_scale` what 16 or 32 weights share.
*NVFP4* packs two numbers in a byte, the first in the low half; each expert's factor is its
`_amax` / `_outer_scale_denominator`. *MXFP8* has floats e4m3 and powers of two, and no factors.
The tensors tell which layers have which: what the configs say of it is not read.
"""

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import FormatError
from cutaway.files.huggingface.quantization.floats import E4M3, mxfp8_matrix
from cutaway.files.huggingface.quantization.grouped import (
    FLOATS,
    Bytes,
    Grouped,
    MatrixParts,
    bases,
)
from cutaway.files.huggingface.quantization.nvfp4 import Nvfp4Matrix, check_rows, read_e4m3
from cutaway.files.huggingface.shards import Shards
from cutaway.files.weights.cursor import quote

_CODES, _SCALES, _LARGEST, _DENOMINATOR = "", "_scale", "_amax", "_outer_scale_denominator"
_EXPERTS = (".experts.w13_weight", ".experts.w2_weight")
_GROUP = 16  # of NVFP4


class InklingExperts:
    """The method of the publisher's folders, which quantise experts and nothing else."""

    MODELS = ("inkling2", "inkling2_text", "inkling2_loop", "inkling2_loop_text")

    @classmethod
    def are_in(cls, tensors: Iterable[str]) -> bool:
        """Whether a folder with these tensors has such experts."""
        ends = tuple(name + _SCALES for name in _EXPERTS)
        return any(name.endswith(ends) for name in tensors)

    def matrices(self, shards: Shards) -> Iterator[Grouped]:
        """Yield the matrices of each layer's experts."""
        for base in bases(shards, _SCALES):
            if base.endswith(_EXPERTS):
                yield _matrix(MatrixParts(shards, base))


def _matrix(parts: MatrixParts) -> Grouped:
    shape = parts.shape(_CODES, "U8", E4M3)
    if len(shape) != 3:
        raise FormatError(
            f"the tensor {quote(parts.base)} has {len(shape)} dimensions, not the 3 of experts, "
            "outputs and inputs; download the model again"
        )
    if parts.dtype(_CODES) == "U8":
        return _nvfp4(parts, shape)
    return mxfp8_matrix(parts, _CODES, _SCALES, shape)


def _nvfp4(parts: MatrixParts, packed: tuple[int, ...]) -> Grouped:
    experts, rows, half = packed
    shape = experts, rows, 2 * half
    check_rows(parts.base, shape[2])
    parts.expect(_SCALES, (experts, rows, shape[2] // _GROUP), E4M3)

    def read() -> tuple[Bytes, Bytes, None]:
        codes = parts.array(_CODES).reshape(experts * rows, half)
        return codes, read_e4m3(parts, _SCALES), None

    factors = _read_factors(parts, experts)
    used = tuple(parts.used)
    return Nvfp4Matrix(parts.base, used, shape, "NVFP4", _GROUP, read, factor=factors)


def _read_factors(parts: MatrixParts, experts: int) -> NDArray[np.float32]:
    """Return what each expert's products are multiplied by; 0 for one without weights."""
    parts.expect(_LARGEST, (experts,), *FLOATS)
    parts.expect_number(_DENOMINATOR, *FLOATS)
    with np.errstate(all="ignore"):  # what comes of it is checked
        factors: NDArray[np.float32] = parts.array(_LARGEST) / parts.array(_DENOMINATOR)
    if not ((factors >= 0) & np.isfinite(factors)).all():
        raise FormatError(
            f"the tensor {quote(parts.base + _LARGEST)} divided by "
            f"{quote(parts.base + _DENOMINATOR)} must be finite numbers, 0 or above; download the "
            "model again"
        )
    return factors
