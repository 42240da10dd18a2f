"""The formats in which a GGUF file stores numbers.

Knows, for each format, its name, its ggml type id and the bytes of one *quant block*: the smallest
group of weights that is stored together and shares its scales.

Source: `ggml-common.h` and `enum ggml_type` in `ggml.h` of ggml.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class QuantFormat:
    """One storage format; `layout` is the C struct of a quant block, without padding."""

    name: str
    type_id: int  # enum ggml_type, the number in the file
    quant_block_elements: int  # weights in one quant block
    layout: np.dtype[Any]

    @property
    def quant_block_bytes(self) -> int:
        """Bytes of one quant block."""
        return self.layout.itemsize

    def nbytes(self, elements: int) -> int:
        """Bytes of `elements` weights, a multiple of `quant_block_elements`."""
        return elements // self.quant_block_elements * self.quant_block_bytes


def _format(name: str, type_id: int, elements: int, *fields: tuple[Any, ...]) -> QuantFormat:
    return QuantFormat(name, type_id, elements, np.dtype(list(fields)))


# d scales the integers q, and m (or dmin) shifts them. The K formats hold 256 weights
# in 8 or 16 groups, whose own small integer scales are themselves scaled by d and dmin.
_D, _M, _DMIN = ("d", "<f2"), ("m", "<f2"), ("dmin", "<f2")
_SCALES = ("scales", "u1", (3, 4))

_ALL = (
    _format("F32", 0, 1, ("x", "<f4")),
    _format("F16", 1, 1, ("x", "<f2")),
    _format("BF16", 30, 1, ("x", "<u2")),
    _format("Q4_0", 2, 32, _D, ("qs", "u1", 16)),
    _format("Q4_1", 3, 32, _D, _M, ("qs", "u1", 16)),
    _format("Q5_0", 6, 32, _D, ("qh", "u1", 4), ("qs", "u1", 16)),
    _format("Q5_1", 7, 32, _D, _M, ("qh", "u1", 4), ("qs", "u1", 16)),
    _format("Q8_0", 8, 32, _D, ("qs", "i1", 32)),
    _format("Q2_K", 10, 256, ("scales", "u1", 16), ("qs", "u1", (2, 32)), _D, _DMIN),
    _format("Q3_K", 11, 256, ("qh", "u1", 32), ("qs", "u1", (2, 32)), ("scales", "u1", 12), _D),
    _format("Q4_K", 12, 256, _D, _DMIN, _SCALES, ("qs", "u1", (4, 32))),
    _format("Q5_K", 13, 256, _D, _DMIN, _SCALES, ("qh", "u1", 32), ("qs", "u1", (4, 32))),
    _format(
        "Q6_K", 14, 256, ("ql", "u1", (2, 64)), ("qh", "u1", (2, 32)), ("scales", "i1", 16), _D
    ),
)

FORMATS: dict[str, QuantFormat] = {format.name: format for format in _ALL}
"""Every format that cutaway reads, by name."""

FORMATS_BY_ID: dict[int, QuantFormat] = {format.type_id: format for format in _ALL}
"""The same formats by ggml type id."""

# Only so that a refusal can use the word in the file's name.
_UNREAD = {
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL",
    21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip


def type_name(type_id: int) -> str:
    """Return the name of a ggml type, read or not, for people: `IQ4_NL (type 20)`."""
    known = {id: format.name for id, format in FORMATS_BY_ID.items()} | _UNREAD
    return f"{known.get(type_id, 'an unknown format')} (type {type_id})"
