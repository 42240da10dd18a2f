"""FP8, MXFP4 and MXFP8: small floats that share scales.

*FP8* (e4m3): bytes with one scale for a matrix, for each output, or for each block of outputs and
inputs. A weight is its byte's number times its scale, in float32. DeepSeek's and Qwen's files call
the scales of blocks `weight_scale_inv`, others `weight_scale`; both are factors. Settings that also
round activations (activation_scheme, input_scale) are ignored: activations are not rounded.

*MXFP4*: numbers of 4 bits (e2m1), of which 32 share a power of two (OCP Microscaling, v1.0).
compressed-tensors and gpt-oss store two of these numbers in a byte, the first in the low half. A
second tensor has the powers' exponents plus 127. GGUF's quant blocks have the same codes in another
order.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import FormatError
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.quantization.grouped import (
    FLOATS,
    Bytes,
    Grouped,
    Lengths,
    MatrixParts,
    bases,
    fields,
    format_of,
    group_of,
)
from cutaway.files.huggingface.shards import Shards
from cutaway.files.weights import FORMATS
from cutaway.files.weights.cursor import quote

# -- FP8 -------------------------------------------------------------------------------------------


E4M3 = "F8_E4M3"
_FP8_SCALES = (".weight_scale_inv", ".weight_scale")
Sides = tuple[int, int]


class Fp8:
    """The method of FP8.

    block: how many outputs and inputs share a scale; None: the scales' shape decides
    """

    def __init__(self, block: Sides | None = None) -> None:
        self.block = block

    @classmethod
    def read(cls, config: JsonObject) -> "Fp8":
        """Read a quantization_config."""
        config.must_be("fmt", "e4m3")
        config.must_be("quant_algo", "FP8")
        return cls(block_of(config, "weight_block_size"))

    def matrices(self, shards: Shards) -> Iterator[Grouped]:
        """Yield all matrices stored as FP8."""
        for base in bases(shards, ".weight"):
            if shards.dtype(f"{base}.weight") == E4M3:
                yield fp8_matrix(MatrixParts(shards, base), self.block)


def block_of(config: JsonObject, key: str) -> Sides | None:
    """Return a block's outputs and inputs; None if the config has no blocks."""
    block = config.get(key)
    if block is None:
        return None
    sound = isinstance(block, list) and len(block) == 2
    if not sound or not all(type(size) is int and size > 0 for size in block):
        config.fail(key, "a list of two whole numbers above 0")
    return block[0], block[1]


def scale_sides(parts: MatrixParts, ending: str, *dtypes: str) -> Sides:
    """Return how many rows and columns of scales there are: (1, 1) for a single scale."""
    shape = parts.shape(ending, *(dtypes or FLOATS))
    if len(shape) > 2:
        raise FormatError(
            f"the tensor {quote(parts.base + ending)} has the shape {shape}, which is no scale "
            "for outputs and groups of inputs"
        )
    padded = (*shape, 1, 1)
    return padded[0], padded[1]


def output_scale_sides(parts: MatrixParts, ending: str, rows: int) -> Sides:
    """Return the same for scales of outputs, or of all; FormatError for other outputs."""
    sides = scale_sides(parts, ending)
    if sides[0] not in (1, rows):
        raise FormatError(
            f"the tensor {quote(parts.base + ending)} has scales for {sides[0]} outputs, and "
            f"there are {rows}; download the model again"
        )
    return sides


def fp8_matrix(
    parts: MatrixParts,
    block: Sides | None,
    lengths: Lengths = frozenset(),
    *,
    codes: str = ".weight",
    scales: tuple[str, ...] = _FP8_SCALES,
) -> Grouped:
    """Return the matrix.

    block: as in `Fp8`; lengths: of groups in matrices without blocks; codes, scales: the endings of
    these tensors, of which the first that is there has the scales
    """
    shape = rows, cols = parts.sides(codes, E4M3)
    ending = next((name for name in scales if parts.has(name)), scales[-1])
    sides = scale_sides(parts, ending)
    block_size = _block_size(shape, sides, block, mixed=bool(lengths))
    if block_size is None:
        blocks = "equal blocks" if block is None else f"blocks of {block[0]} x {block[1]}"
        raise FormatError(
            f"the tensor {quote(parts.base + ending)} has {sides[0]} x {sides[1]} scales, which "
            f"are not those of {blocks} of {rows} x {cols} weights; download the model again"
        )
    high, group = block_size
    if block is None:
        group_of(parts.base + ending, cols, sides[1], lengths)
    format = format_of("FP8", parts.base + ending, cols, group)

    def read() -> tuple[NDArray[np.uint8], NDArray[np.float32], None]:
        stored = parts.array(codes)
        check_fp8(stored, parts.base + codes)
        return stored, parts.array(ending).reshape(sides)[np.arange(rows) // high], None

    return Grouped(parts.base, tuple(parts.used), shape, format, group, read)


def check_fp8(codes: Bytes, name: str) -> None:
    """Raise FormatError if a number of FP8 is not finite; name: of their tensor."""
    if (codes & 0x7F == 0x7F).any():
        raise FormatError(
            f"the tensor {quote(name)} holds weights that are not finite; download the model again"
        )


def _block_size(shape: Sides, scales: Sides, block: Sides | None, *, mixed: bool) -> Sides | None:
    """Return how many outputs and inputs share a scale; None if the scales do not fit.

    Blocks of a config may be cut off at the ends of a matrix; if the config has no blocks, all
    blocks are equal. mixed: whether the config also has matrices without blocks
    """
    if block is not None and scales == (-(-shape[0] // block[0]), -(-shape[1] // block[1])):
        return block[0], min(block[1], shape[1])
    if block is not None and not mixed:
        return None
    if shape[0] % scales[0] or shape[1] % scales[1]:
        return None
    return shape[0] // scales[0], shape[1] // scales[1]


# -- MXFP4 -----------------------------------------------------------------------------------------


_GROUP, _NAN = 32, 255
_BLOCKS, _EXPONENTS = "_blocks", "_scales"


@dataclass(frozen=True)
class Mxfp4Matrix(Grouped):
    """A matrix whose blocks are laid out as GGUF has them."""

    def rows(self) -> Bytes:
        """See `Grouped`."""
        codes, exponents, _ = self.read()
        *above, cols = self.shape
        rows = prod(above)
        halves = fields(codes.reshape(rows, -1), 4).reshape(rows, cols // _GROUP, 2, _GROUP // 2)
        blocks = np.empty((rows, cols // _GROUP), FORMATS["MXFP4"].layout)
        blocks["e"] = exponents.reshape(blocks.shape)
        blocks["qs"] = halves[:, :, 0] | halves[:, :, 1] << np.uint8(4)
        return blocks.view(np.uint8).reshape(*above, -1)


class Mxfp4:
    """The method of gpt-oss, which quantises all experts of a layer together, and nothing else.

    `_blocks` (experts, outputs, groups, 16 bytes) and `_scales` (experts, outputs, groups).
    """

    @classmethod
    def read(cls, _config: JsonObject) -> "Mxfp4":
        """Return the method; a quantization_config has no settings for it."""
        return cls()

    def matrices(self, shards: Shards) -> Iterator[Grouped]:
        """Yield all quantised matrices."""
        for base in bases(shards, _BLOCKS):
            yield _experts_matrix(MatrixParts(shards, base))


def _experts_matrix(parts: MatrixParts) -> Grouped:
    shape = parts.shape(_BLOCKS, "U8")
    if len(shape) != 4 or shape[3] != _GROUP // 2:
        raise FormatError(
            f"the tensor {quote(parts.base + _BLOCKS)} has the shape {shape}, which is not "
            f"experts, outputs, groups and {_GROUP // 2} bytes; download the model again"
        )
    experts, rows, groups, _ = shape
    parts.expect(_EXPONENTS, shape[:3], "U8", "F8_E8M0")
    read = _reader(parts, _BLOCKS, _EXPONENTS)
    sizes = experts, rows, groups * _GROUP
    return Mxfp4Matrix(parts.base, tuple(parts.used), sizes, "MXFP4", _GROUP, read)


def mxfp4_matrix(parts: MatrixParts, codes: str, exponents: str) -> Grouped:
    """Return the matrix; codes, exponents: the endings of these tensors."""
    rows, half = parts.sides(codes, "U8")
    cols = 2 * half
    _check_groups(parts.base + codes, cols)
    parts.expect(exponents, (rows, cols // _GROUP), "U8", "F8_E8M0")
    read = _reader(parts, codes, exponents)
    return Mxfp4Matrix(parts.base, tuple(parts.used), (rows, cols), "MXFP4", _GROUP, read)


def _check_groups(name: str, cols: int) -> None:
    """Raise FormatError for rows that are no whole groups; name: of the tensor of codes."""
    if cols % _GROUP:
        raise FormatError(
            f"the tensor {quote(name)} has rows of {cols} weights, which are no whole groups of "
            f"{_GROUP}; download the model again"
        )


def _reader(
    parts: MatrixParts, codes: str, exponents: str
) -> Callable[[], tuple[Bytes, NDArray[np.uint8], None]]:
    def read() -> tuple[Bytes, NDArray[np.uint8], None]:
        return parts.array(codes), read_exponents(parts, exponents), None

    return read


def mxfp8_matrix(parts: MatrixParts, codes: str, exponents: str, shape: tuple[int, ...]) -> Grouped:
    """Return the matrix of MXFP8, or of all experts: floats e4m3, of which 32 share a power of two.

    codes, exponents: the endings of these tensors; codes may be in words
    """
    *above, cols = shape
    rows = prod(above)
    _check_groups(parts.base + codes, cols)
    parts.expect(exponents, (*above, cols // _GROUP), "U8", "F8_E8M0")

    def read() -> tuple[Bytes, NDArray[np.float32], None]:
        floats = np.ascontiguousarray(parts.array(codes)).view(np.uint8).reshape(rows, cols)
        check_fp8(floats, parts.base + codes)
        powers = read_exponents(parts, exponents).reshape(rows, -1).astype(np.int32)
        return floats, np.ldexp(np.float32(1), powers - 127), None

    return Grouped(parts.base, tuple(parts.used), shape, f"FP8_G{_GROUP}", _GROUP, read)


def read_exponents(parts: MatrixParts, ending: str) -> Bytes:
    """Return exponents of powers of two, plus 127; FormatError if a power is not finite."""
    exponents: Bytes = parts.array(ending)
    if (exponents == _NAN).any():
        raise FormatError(
            f"the tensor {quote(parts.base + ending)} holds scales that are not finite; "
            "download the model again"
        )
    return exponents
