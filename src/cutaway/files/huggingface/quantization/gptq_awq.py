"""GPTQ, AWQ and AutoRound: integers of a few bits, packed in words.

A weight (out, in) is scales[g, out] · (code - zero).

*GPTQ*, as AutoGPTQ and GPTQModel pack it (Frantar et al. 2022, arXiv 2210.17323): g = g_idx[in].
`qweight` (in · bits / 32, out) holds the codes of one output one after the other, lowest bits
first; `qzeros` (groups, out · bits / 32) likewise those that stand for 0, which files of the first
version store less 1. With act-order the columns of a group lie apart, and g_idx says whose they
are.

*AWQ*, as AutoAWQ packs it for its gemm kernels (Lin et al. 2023, arXiv 2306.00978): g = in / group.
A word of `qweight` (in, out / 8) and of `qzeros` (groups, out / 8) holds the codes of 8 outputs,
the even ones below the odd ones.

*AutoRound* (Cheng et al. 2023, arXiv 2309.05516): its integers lie as those of GPTQ or of AWQ.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import FormatError
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.quantization.grouped import (
    FLOATS,
    Grouped,
    Lengths,
    MatrixParts,
    Order,
    as_bytes,
    bases,
    by_rows,
    fields,
    format_of,
    group_of,
    lengths_of,
    order_of,
    paired,
)
from cutaway.files.huggingface.shards import Shards
from cutaway.files.weights.cursor import quoted

# -- GPTQ ------------------------------------------------------------------------------------------


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


# -- AWQ -------------------------------------------------------------------------------------------


_OUTPUTS = 8  # of a word
_PLACES = np.array([0, 4, 1, 5, 2, 6, 3, 7])  # of each output's code in a word, lowest first


class Awq:
    """Codes of 4 bits. lengths: of groups."""

    def __init__(self, lengths: Lengths) -> None:
        self.lengths = lengths

    @classmethod
    def read(cls, said: JsonObject) -> "Awq":
        """From a quantization_config."""
        said.must_be("bits", 4)
        said.must_be("w_bit", 4)
        version = said.text("version") or "gemm"
        if version.lower() != "gemm":
            said.refuse("version", "only 'gemm' is: its weights are packed otherwise")
        return cls(lengths_of(said, "group_size", "q_group_size"))

    def matrices(self, shards: Shards) -> Iterator[Grouped]:
        """All that are packed so."""
        for base in bases(shards, ".qweight"):
            yield _matrix(MatrixParts(shards, base), self.lengths)


def _matrix(parts: MatrixParts, lengths: Lengths) -> Grouped:
    cols, words = parts.sides(".qweight", "I32")
    rows = words * _OUTPUTS
    groups, _ = parts.sides(".scales", *FLOATS)
    parts.expect(".scales", (groups, rows), *FLOATS)
    parts.expect(".qzeros", (groups, words), "I32")
    group = group_of(f"{parts.base}.scales", cols, groups, lengths)
    format = format_of("INT4", f"{parts.base}.qweight", cols, group)

    def read() -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.uint8]]:
        qweight = parts.array(".qweight")

        def codes(part: slice) -> NDArray[np.uint8]:
            of_words = slice(part.start // _OUTPUTS, part.stop // _OUTPUTS)
            return paired(_by_output(qweight[:, of_words]))

        zeros = _by_output(parts.array(".qzeros"))
        return by_rows(rows, cols, codes), parts.array(".scales").T, zeros

    return Grouped(parts.base, tuple(parts.used), (rows, cols), format, group, read)


def _by_output(words: NDArray[np.int32]) -> NDArray[np.uint8]:
    """The codes in words (n, outputs / 8): (outputs, n)."""
    codes = fields(as_bytes(words), 4).reshape(len(words), -1, _OUTPUTS)
    return np.ascontiguousarray(codes[:, :, _PLACES].reshape(len(words), -1).T)


# -- AutoRound: the names of its packings; what it stores less 1 is in its inference/backend.py ----


_GPTQ = {"auto_round:auto_gptq": "gptq", "auto_round:gptqmodel": "gptq_v2", "auto_round": "gptq_v2"}
"""By packing_format: the version."""
_AWQ = "auto_round:auto_awq"
_UNQUANTISED = 16  # bits, and more


def read_auto_round(said: JsonObject) -> Gptq | Awq:
    """From a quantization_config; FormatError for other packings, floats and matrices of other
    bits."""
    said.must_be("data_type", "int")
    _check_alike(said)
    packing = said.text("packing_format") or ""
    if packing == _AWQ:
        return Awq.read(said)
    if packing not in _GPTQ:
        said.refuse("packing_format", f"{', '.join([*_GPTQ, _AWQ])} are")
    return Gptq.read(JsonObject({**said.values, "checkpoint_format": _GPTQ[packing]}, said.file))


def _check_alike(said: JsonObject) -> None:
    """Refuse matrices of other bits than the most: their sizes do not say which have which."""
    others = said.part("extra_config")
    for name in others.values:
        own = others.part(name)
        bits = own.get("bits") or said.get("bits")
        if isinstance(bits, int) and bits >= _UNQUANTISED:
            continue
        if any(own.get(key) not in (None, said.get(key)) for key in ("bits", "group_size")):
            others.refuse(name, "only matrices of the same bits and group_size are")
