"""The formats in which a GGUF file stores numbers.

Knows, for each format, its name, its ggml type id and the bytes of one *quant block*: the smallest
group of weights that is stored together and shares its scales.

Source: `ggml-common.h` and `enum ggml_type` in `ggml.h` of ggml.
"""

from typing import Any, NamedTuple

import numpy as np


class QuantFormat(NamedTuple):
    """One storage format; `layout` is the C struct of a quant block, without padding."""

    name: str
    type_id: int | None  # enum ggml_type, the number in the file; None: in no GGUF file
    quant_block_elements: int  # weights in one quant block
    layout: np.dtype[Any]

    @property
    def quant_block_bytes(self) -> int:
        """Bytes of one quant block."""
        return self.layout.itemsize

    def nbytes(self, elements: int) -> int:
        """Bytes of `elements` weights, a multiple of `quant_block_elements`."""
        return elements // self.quant_block_elements * self.quant_block_bytes


def _format(name: str, type_id: int | None, elements: int, *fields: tuple[Any, ...]) -> QuantFormat:
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
    _format("IQ4_NL", 20, 32, _D, ("qs", "u1", 16)),
    _format(
        "IQ4_XS", 23, 256, _D, ("scales_h", "<u2"), ("scales_l", "u1", 4), ("qs", "u1", (8, 16))
    ),
    _format("MXFP4", 39, 32, ("e", "u1"), ("qs", "u1", 16)),
    _format("NVFP4", 40, 64, ("scales", "u1", 4), ("qs", "u1", (4, 8))),
    _format("IQ3_XXS", 18, 256, _D, ("qs", "u1", 64), ("signs", "<u4", 8)),
    _format(
        "IQ3_S", 21, 256, _D,
        ("qs", "u1", 64), ("qh", "u1", 8), ("signs", "u1", 32), ("scales", "u1", 4),
    ),
    _format("IQ2_XXS", 16, 256, _D, ("qs", "<u4", (8, 2))),
    _format("IQ2_XS", 17, 256, _D, ("qs", "<u2", 32), ("scales", "u1", 8)),
    _format(
        "IQ2_S", 22, 256, _D,
        ("qs", "u1", 32), ("signs", "u1", 32), ("qh", "u1", 8), ("scales", "u1", 8),
    ),
    _format("IQ1_S", 19, 256, _D, ("qs", "u1", 32), ("qh", "<u2", 8)),
    _format("IQ1_M", 29, 256, ("qs", "u1", 32), ("qh", "u1", 16), ("scales", "<u2", 4)),
    _format("TQ1_0", 34, 256, ("qs", "u1", 48), ("qh", "u1", 4), _D),
    _format("TQ2_0", 35, 256, ("qs", "u1", (2, 32)), _D),
    _format("Q1_0", 41, 128, _D, ("qs", "u1", 16)),
    _format("Q2_0", 42, 64, _D, ("qs", "u1", 16)),
)  # fmt: skip

_FLOAT_SCALE, _FLOAT_MINIMUM = ("d", "<f4"), ("m", "<f4")
_GROUPS = (32, 64, 128)
# The formats that quantised matrices of folders become, without loss: each group has a float32
# scale; its length is the longest of these that divides the folder's. Weights 2i and 2i + 1 are the
# halves of byte i; z is the code that stands for 0. In AFFINE4 and AFFINE8 m is added to d times
# codes, which are -8 to 7 (stored plus 8) and 0 to 255.
_OF_FOLDERS = (
    *(
        _format(f"INT4_G{n}", None, n, _FLOAT_SCALE, ("z", "i1"), ("qs", "u1", n // 2))
        for n in _GROUPS
    ),
    *(_format(f"INT8_G{n}", None, n, _FLOAT_SCALE, ("z", "i1"), ("qs", "i1", n)) for n in _GROUPS),
    *(
        _format(f"AFFINE4_G{n}", None, n, _FLOAT_SCALE, _FLOAT_MINIMUM, ("qs", "u1", n // 2))
        for n in _GROUPS
    ),
    *(
        _format(f"AFFINE8_G{n}", None, n, _FLOAT_SCALE, _FLOAT_MINIMUM, ("qs", "u1", n))
        for n in _GROUPS
    ),
    *(_format(f"FP8_G{n}", None, n, _FLOAT_SCALE, ("qs", "u1", n)) for n in _GROUPS),
    _format("NF4", None, 64, _FLOAT_SCALE, ("qs", "u1", 32)),
)

FORMATS: dict[str, QuantFormat] = {format.name: format for format in (*_ALL, *_OF_FOLDERS)}
"""Every format that cutaway reads, by name."""

FORMATS_BY_ID: dict[int, QuantFormat] = {
    format.type_id: format for format in _ALL if format.type_id is not None
}
"""The formats of GGUF by ggml type id."""

# Only for errors, which can then use the format's usual name.
_UNREAD = {
    9: "Q8_1", 15: "Q8_K", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8", 36: "IQ4_NL_4_4",
}  # fmt: skip
_OF_ACTIVATIONS = (9, 15)  # ggml multiplies matrices by these


def unread(type_id: int) -> str:
    """Describe a ggml type that is not in `FORMATS_BY_ID`, and what to do.

    Return the rest of a sentence: `IQ4_NL_4_4 (type 36), and cutaway reads F32, F16 …`.
    """
    name = f"{_UNREAD.get(type_id, 'an unknown format')} (type {type_id})"
    if type_id in _OF_ACTIVATIONS:
        return f"{name}, which is for activations while a model runs; get the model again"
    read = ", ".join(format.name for format in FORMATS_BY_ID.values())
    return f"{name}, and cutaway reads {read}; get the model in one of these"
