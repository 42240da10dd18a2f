"""compressed-tensors, as LLM Compressor writes and vLLM reads it: INT4, INT8, FP8, MXFP4, NVFP4.

Weight (out, in) is weight_scale · (q - weight_zero_point), one scale for each group of a row's
weights, for each row, or for all. `weight_packed` has words of codes, q + 2^(bits - 1), lowest bits
first (pack-quantized); `weight` has bytes (int-quantized, float-quantized, naive-quantized). Sizes
are read from the tensors; the config only decides if the folder is refused.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import FormatError
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.quantization.floats import (
    E4M3,
    block_of,
    fp8_matrix,
    mxfp4_matrix,
    output_scale_sides,
    scale_sides,
)
from cutaway.files.huggingface.quantization.grouped import (
    WHOLE_ROW,
    Grouped,
    Lengths,
    MatrixParts,
    Order,
    as_bytes,
    bases,
    fields,
    format_of,
    group_of,
    lengths_of,
    make_in_pieces,
    order_of,
    pack_pairs,
)
from cutaway.files.huggingface.quantization.nvfp4 import nvfp4_matrix
from cutaway.files.huggingface.shards import Shards
from cutaway.files.weights.cursor import quote

FORMATS = (
    "pack-quantized", "int-quantized", "float-quantized", "naive-quantized",
    "mxfp4-pack-quantized", "nvfp4-pack-quantized", "mixed-precision",
)  # fmt: skip
_BITS = (2, 4, 8)  # of codes in words
_SCALE, _ZERO, _GROUPS = ".weight_scale", ".weight_zero_point", ".weight_g_idx"
_GLOBAL = ".weight_global_scale"


class CompressedTensors:
    """The method, as a config describes it.

    lengths: the lengths that groups may have
    block: how many outputs and inputs share a scale, for FP8 with a scale for each block
    """

    def __init__(self, lengths: Lengths, block: tuple[int, int] | None) -> None:
        self.lengths, self.block = lengths, block

    @classmethod
    def read(cls, config: JsonObject) -> "CompressedTensors":
        """Read a quantization_config."""
        config.must_be("format", *FORMATS)
        block, lengths, groups = None, set[int](), config.part("config_groups")
        for name in groups.values:
            group = groups.part(name)
            group.must_be("format", *FORMATS)
            weights = group.part("weights")
            strategy = weights.text("strategy")
            if strategy == "block":
                block = block_of(weights, "block_structure")
            elif strategy == "group":
                lengths |= lengths_of(weights, "group_size")
            else:
                lengths.add(WHOLE_ROW)
        config.part("sparsity_config").must_be("format", "dense")
        config.part("transform_config").must_be("config_groups", {})
        return cls(frozenset(lengths), block)

    def matrices(self, shards: Shards) -> Iterator[Grouped]:
        """Yield all quantised matrices."""
        for base in bases(shards, ".weight_packed"):
            parts = MatrixParts(shards, base)
            if parts.has(_GLOBAL):
                yield nvfp4_matrix(parts, ".weight_packed", _GLOBAL)
            elif parts.dtype(".weight_packed") == "U8":
                yield mxfp4_matrix(parts, ".weight_packed", ".weight_scale")
            else:
                yield _packed_matrix(parts, self.lengths)
        for base in bases(shards, ".weight"):
            dtype = shards.dtype(f"{base}.weight")
            if dtype == "I8":
                yield _byte_matrix(MatrixParts(shards, base), self.lengths)
            elif dtype == E4M3:
                yield fp8_matrix(MatrixParts(shards, base), self.block, self.lengths)


def _packed_matrix(parts: MatrixParts, lengths: Lengths) -> Grouped:
    rows, words = parts.sides(".weight_packed", "I32")
    parts.expect(".weight_shape", (2,), "I64", "I32")
    shape = parts.array(".weight_shape").tolist()
    cols = shape[1]
    bits = next((bits for bits in _BITS if cols > 0 and -(-cols * bits // 32) == words), 0)
    if not bits or shape[0] != rows:
        raise FormatError(
            f"the tensor {quote(parts.base + '.weight_packed')} has {rows} x {words} words for "
            f"{shape[0]} x {cols} weights: cutaway reads codes of 2, 4 or 8 bits; get another one"
        )

    def codes(order: Order | None) -> NDArray[np.uint8]:
        packed = parts.array(".weight_packed")
        return make_in_pieces(
            rows, cols, lambda part: _codes(as_bytes(packed[part]), cols, bits, order)
        )

    return _integers(parts, (rows, cols), bits, codes, lengths)


def _codes(packed: NDArray[np.uint8], cols: int, bits: int, order: Order | None) -> NDArray[Any]:
    if bits == 4 and order is None:
        return packed[:, : cols // 2]
    codes = fields(packed, bits)[:, :cols]
    codes = codes if order is None else codes[:, order]
    return codes ^ np.uint8(0x80) if bits == 8 else pack_pairs(codes)


def _byte_matrix(parts: MatrixParts, lengths: Lengths) -> Grouped:
    rows, cols = parts.sides(".weight", "I8")

    def codes(order: Order | None) -> NDArray[np.uint8]:
        stored = parts.array(".weight").view(np.uint8)
        return stored if order is None else stored[:, order]

    return _integers(parts, (rows, cols), 8, codes, lengths)


def _integers(
    parts: MatrixParts,
    shape: tuple[int, int],
    bits: int,
    codes: Callable[[Order | None], NDArray[np.uint8]],
    lengths: Lengths,
) -> Grouped:
    """Return the matrix.

    codes: reads codes in an order of columns; a byte has two codes if they have at most 4 bits
    """
    rows, cols = shape
    sides = output_scale_sides(parts, _SCALE, rows)
    group = group_of(parts.base + _SCALE, cols, sides[1], lengths)
    order = None
    if parts.has(_GROUPS):
        parts.expect(_GROUPS, (cols,), "I32", "I64")
        groups_of = parts.array(_GROUPS)
        if (groups_of >= 0).any():  # all are -1 where columns are in order
            order = order_of(parts.base + _GROUPS, groups_of, sides[1])
    zero_in_words = _check_zeros(parts, rows, sides, bits)
    kind = "INT8" if bits == 8 else "INT4"
    format = format_of(kind, parts.base + _SCALE, cols, group)

    def read() -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.int16]]:
        grid = (rows, sides[1])
        scales = np.broadcast_to(parts.array(_SCALE).reshape(sides), grid)
        zeros = np.broadcast_to(_zeros(parts, rows, sides, bits, in_words=zero_in_words), grid)
        return codes(order), scales, zeros

    return Grouped(parts.base, tuple(parts.used), shape, format, group, read, order)


def _check_zeros(parts: MatrixParts, rows: int, sides: tuple[int, int], bits: int) -> bool:
    """Whether the matrix has zero points packed into words; FormatError if their shape is wrong."""
    if not parts.has(_ZERO):
        return False
    parts.shape(_ZERO, "I8", "I32")
    if in_words := parts.dtype(_ZERO) == "I32":
        parts.expect(_ZERO, (-(-rows * bits // 32), sides[1]), "I32")
    elif scale_sides(parts, _ZERO, "I8") != sides:
        raise FormatError(
            f"the tensor {quote(parts.base + _ZERO)} has another shape than {_SCALE[1:]}; "
            "download the model again"
        )
    return in_words


def _zeros(
    parts: MatrixParts, rows: int, sides: tuple[int, int], bits: int, *, in_words: bool
) -> NDArray[np.int16]:
    """Return the zero points, as codes of the formats in `weights.formats`."""
    middle = np.int16(0 if bits == 8 else 1 << (bits - 1))
    if not parts.has(_ZERO):
        return np.full(sides, middle)
    stored = parts.array(_ZERO)
    if not in_words:
        return stored.reshape(sides).astype(np.int16) + middle
    codes = fields(as_bytes(stored.T), bits)[:, :rows].T.astype(np.int16)
    return codes - np.int16(128) if bits == 8 else codes
