"""GPTQ, AWQ and AutoRound: integers of a few bits, packed in words.

A weight (out, in) is scales[g, out] · (code - zero).

*GPTQ*, as AutoGPTQ and GPTQModel pack it (Frantar et al. 2022, arXiv 2210.17323): g = g_idx[in].
`qweight` (in · bits / 32, out) has the codes of one output one after the other, lowest bits first;
`qzeros` (groups, out · bits / 32) has the zero points likewise, minus 1 in files of the first
version. With act-order the columns of a group are scattered, and g_idx has the group of each.

*AWQ*, as AutoAWQ packs it for its gemm kernels (Lin et al. 2023, arXiv 2306.00978): g = in / group.
A word of `qweight` (in, out / 8) and of `qzeros` (groups, out / 8) has the codes of 8 outputs, the
even ones below the odd ones.

*AutoRound* (Cheng et al. 2023, arXiv 2309.05516): its integers are packed as in GPTQ or in AWQ.
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
    fields,
    format_of,
    group_of,
    lengths_of,
    make_in_pieces,
    order_of,
    pack_pairs,
)
from cutaway.files.huggingface.shards import Shards
from cutaway.files.weights.cursor import quote

# -- GPTQ ------------------------------------------------------------------------------------------


BITS = (2, 3, 4, 8)


@dataclass(frozen=True)
class Gptq:
    """The method, as a config describes it.

    least    the zero point that a stored 0 stands for
    lengths  the lengths that groups may have
    """

    least: int
    lengths: Lengths

    @classmethod
    def read(cls, config: JsonObject) -> "Gptq":
        """Read a quantization_config."""
        config.must_be("checkpoint_format", "gptq", "gptq_v2")
        config.must_be("format", "gptq", "gptq_v2")
        config.must_be("is_marlin_format", False)
        config.must_be("pack_dtype", "int32")
        config.must_be("bits", 4, *BITS)
        version = config.get("checkpoint_format") or config.get("format")
        changes = config.part("dynamic")  # matrices that have a size of their own
        lengths = frozenset[int]() if changes else lengths_of(config, "group_size")
        return cls(0 if version == "gptq_v2" else 1, lengths)

    def matrices(self, shards: Shards) -> Iterator[Grouped]:
        """Yield all packed matrices."""
        for base in bases(shards, ".qweight"):
            yield self._matrix(MatrixParts(shards, base))

    def _matrix(self, parts: MatrixParts) -> Grouped:
        words, rows = parts.sides(".qweight", "I32")
        bits, cols = _bits_and_inputs(parts, words, rows)
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
            codes = make_in_pieces(
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
                f"the tensor {quote(parts.base + '.qzeros')} holds a zero of 256, which no code "
                "of 8 bits is; download the model again"
            )
        return zeros


def _bits_and_inputs(parts: MatrixParts, words: int, rows: int) -> tuple[int, int]:
    """Return how many bits a code has, and how many inputs a row; matrices of a model may differ.

    The inputs are counted by g_idx; without it, the words of the zero points have as many bits.
    """
    if parts.has(".g_idx"):
        cols = prod(parts.shape(".g_idx", "I32"))
        parts.expect(".g_idx", (cols,), "I32")
        bits = 32 * words // cols
    else:
        bits = 32 * parts.sides(".qzeros", "I32")[1] // rows
        cols = 32 * words // bits if bits else 0
    if bits not in BITS or bits * cols != 32 * words:
        raise FormatError(
            f"the tensor {quote(parts.base + '.qweight')} has {words} words for {cols} "
            f"inputs: cutaway reads codes of {', '.join(map(str, BITS))} bits"
        )
    return bits, cols


def _codes(packed: NDArray[np.uint8], bits: int, order: Order | None) -> NDArray[np.uint8]:
    """Return codes with columns in this order.

    Codes of 4 bits are packed in pairs; 128 is subtracted from codes of 8 bits.
    """
    if bits == 4 and order is None:
        return packed
    codes = fields(packed, bits)
    if order is not None:
        codes = codes[:, order]
    return codes ^ np.uint8(0x80) if bits == 8 else pack_pairs(codes)


# -- AWQ -------------------------------------------------------------------------------------------


_OUTPUTS = 8  # of a word
_PLACES = np.array([0, 4, 1, 5, 2, 6, 3, 7])  # place of each output's code in a word, lowest first


class Awq:
    """The method, whose codes have 4 bits. lengths: the lengths that groups may have."""

    def __init__(self, lengths: Lengths) -> None:
        self.lengths = lengths

    @classmethod
    def read(cls, config: JsonObject) -> "Awq":
        """Read a quantization_config."""
        config.must_be("bits", 4)
        config.must_be("w_bit", 4)
        version = config.text("version") or "gemm"
        if version.lower() != "gemm":
            config.refuse("version", "only 'gemm' is: its weights are packed otherwise")
        return cls(lengths_of(config, "group_size", "q_group_size"))

    def matrices(self, shards: Shards) -> Iterator[Grouped]:
        """Yield all packed matrices."""
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
            return pack_pairs(_unpack_outputs(qweight[:, of_words]))

        zeros = _unpack_outputs(parts.array(".qzeros"))
        return make_in_pieces(rows, cols, codes), parts.array(".scales").T, zeros

    return Grouped(parts.base, tuple(parts.used), (rows, cols), format, group, read)


def _unpack_outputs(words: NDArray[np.int32]) -> NDArray[np.uint8]:
    """Unpack the codes in words (n, outputs / 8): (outputs, n)."""
    codes = fields(as_bytes(words), 4).reshape(len(words), -1, _OUTPUTS)
    return np.ascontiguousarray(codes[:, :, _PLACES].reshape(len(words), -1).T)


# -- AutoRound: the names of its packings; what it stores less 1 is in its inference/backend.py ----


_GPTQ = {"auto_round:auto_gptq": "gptq", "auto_round:gptqmodel": "gptq_v2", "auto_round": "gptq_v2"}
"""GPTQ's version by packing_format."""
_AWQ = "auto_round:auto_awq"


def read_auto_round(config: JsonObject) -> Gptq | Awq:
    """Read a quantization_config.

    FormatError for other packings, and floats. Matrices may have bits and groups of their own.
    """
    config.must_be("data_type", "int")
    if config.part("extra_config").values:
        config = JsonObject({**config.values, "group_size": None}, config.file)
    packing = config.text("packing_format") or ""
    if packing == _AWQ:
        return Awq.read(config)
    if packing not in _GPTQ:
        config.refuse("packing_format", f"{', '.join([*_GPTQ, _AWQ])} are")
    return Gptq.read(
        JsonObject({**config.values, "checkpoint_format": _GPTQ[packing]}, config.file)
    )
