"""GPTQ, as AutoGPTQ and GPTQModel pack it (Frantar et al. 2022, arXiv 2210.17323).

Weight (out, in) is scales[g, out] · (code - zero), g = g_idx[in]. `qweight` (in · bits / 32, out)
holds the codes of one output one after the other, lowest bits first; `qzeros` (groups, out · bits /
32) likewise those that stand for 0, which files of the first version store less 1. With act-order
the columns of a group lie apart, and g_idx says whose they are.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import FormatError
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.quantization.bits import as_bytes, by_rows, fields, paired
from cutaway.files.huggingface.quantization.grouped import (
    Grouped,
    Lengths,
    Order,
    format_of,
    group_of,
    lengths_of,
    order_of,
)
from cutaway.files.huggingface.quantization.parts import FLOATS, MatrixParts, bases
from cutaway.files.huggingface.shards import Shards
from cutaway.files.weights.cursor import quoted

BITS = (2, 3, 4, 8)


@dataclass(frozen=True)
class Gptq:
    """What a config says.

    bits     of a code, where no g_idx tells
    least    what a stored zero of 0 means
    lengths  of groups
    """

    bits: int
    least: int
    lengths: Lengths

    @classmethod
    def read(cls, said: JsonObject) -> "Gptq":
        """From a quantization_config."""
        said.must_be("checkpoint_format", "gptq", "gptq_v2")
        said.must_be("format", "gptq", "gptq_v2")
        said.must_be("is_marlin_format", False)
        said.must_be("pack_dtype", "int32")
        said.must_be("bits", 4, *BITS)
        version = said.get("checkpoint_format") or said.get("format")
        changes = said.part("dynamic")  # matrices that have a size of their own
        lengths = frozenset[int]() if changes else lengths_of(said, "group_size")
        return cls(said.get("bits") or 4, 0 if version == "gptq_v2" else 1, lengths)

    def matrices(self, shards: Shards) -> Iterator[Grouped]:
        """All that are packed so."""
        for base in bases(shards, ".qweight"):
            yield self._matrix(MatrixParts(shards, base))

    def _matrix(self, parts: MatrixParts) -> Grouped:
        words, rows = parts.sides(".qweight", "I32")
        cols = words * 32 // self.bits
        if parts.has(".g_idx"):
            cols = prod(parts.shape(".g_idx", "I32"))
            parts.expect(".g_idx", (cols,), "I32")
        bits = 32 * words // cols
        if bits not in BITS or bits * cols != 32 * words:
            raise FormatError(
                f"the tensor {quoted(parts.base + '.qweight')} has {words} words for {cols} "
                f"inputs: cutaway reads codes of {', '.join(map(str, BITS))} bits"
            )
        groups, _ = parts.sides(".scales", *FLOATS)
        parts.expect(".scales", (groups, rows), *FLOATS)
        parts.expect(".qzeros", (groups, -(-rows * bits // 32)), "I32")
        order = None
        if parts.has(".g_idx"):
            order = order_of(f"{parts.base}.g_idx", parts.array(".g_idx"), groups)
        group = group_of(f"{parts.base}.scales", cols, groups, self.lengths)
        kind = "INT8" if bits == 8 else "INT4"
        format = format_of(kind, f"{parts.base}.qweight", cols, group)

        def read() -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[Any]]:
            qweight = parts.array(".qweight")
            codes = by_rows(
                rows, cols, lambda part: _codes(as_bytes(qweight[:, part].T), bits, order)
            )
            zeros = self._zeros(parts, rows, bits)
            return codes, parts.array(".scales").T, zeros.T

        return Grouped(parts.base, tuple(parts.used), (rows, cols), format, group, read, order)

    def _zeros(self, parts: MatrixParts, rows: int, bits: int) -> NDArray[np.int16]:
        stored = fields(as_bytes(parts.array(".qzeros")), bits)[:, :rows]
        zeros = stored.astype(np.int16) + np.int16(self.least)
        if bits == 8:
            zeros -= np.int16(128)
        if zeros.max() > 127:
            raise FormatError(
                f"the tensor {quoted(parts.base + '.qzeros')} holds a zero of 256, which no code "
                "of 8 bits is; download the model again"
            )
        return zeros


def _codes(packed: NDArray[np.uint8], bits: int, order: Order | None) -> NDArray[np.uint8]:
    """Codes of 4 bits in pairs, or of 8 bits less 128, in the order of columns that is wanted."""
    if bits == 4 and order is None:
        return packed
    codes = fields(packed, bits)
    if order is not None:
        codes = codes[:, order]
    return codes ^ np.uint8(0x80) if bits == 8 else paired(codes)
