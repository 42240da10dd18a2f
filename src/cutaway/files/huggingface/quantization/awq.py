"""AWQ, as AutoAWQ packs it for its gemm kernels (Lin et al. 2023, arXiv 2306.00978).

Weight (out, in) is scales[g, out] · (code - zero), g = in / group. A word of `qweight` (in, out /
8) and of `qzeros` (groups, out / 8) holds the codes of 8 outputs, the even ones below the odd ones.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.quantization.bits import as_bytes, by_rows, fields, paired
from cutaway.files.huggingface.quantization.grouped import (
    Grouped,
    Lengths,
    format_of,
    group_of,
    lengths_of,
)
from cutaway.files.huggingface.quantization.parts import FLOATS, MatrixParts, bases
from cutaway.files.huggingface.shards import Shards

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
