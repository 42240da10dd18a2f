"""What the bytes of the formats mean that quantised matrices of folders become.

Knows one short function per format, like `decode`, with the same names. A weight is the number of
its code times its group's scale, a float32, rounded once.
"""

from collections.abc import Callable, Mapping

import numpy as np

from cutaway.files.weights.fields import Bytes, Floats, QuantBlocks, column, f32


def _int4(b: QuantBlocks) -> Floats:
    return column(b["d"]) * f32(_pairs(b).astype(np.int16) - b["z"][:, None])


def _int8(b: QuantBlocks) -> Floats:
    return column(b["d"]) * f32(b["qs"].astype(np.int16) - b["z"][:, None])


def _fp8(b: QuantBlocks) -> Floats:
    numbers: Floats = E4M3[b["qs"]]
    return column(b["d"]) * numbers


def _nf4(b: QuantBlocks) -> Floats:
    return column(b["d"]) * NF4[_pairs(b)]


def _pairs(b: QuantBlocks) -> Bytes:
    """Byte i holds weight 2i in its low half and weight 2i + 1 in its high half: (n, group)."""
    return np.stack([b["qs"] & 15, b["qs"] >> 4], axis=-1).reshape(len(b), -1)


def _e4m3() -> Floats:
    """Of each byte: a sign, 4 bits of exponent and 3 of fraction; NaN is all ones, infinity none.

    Source: Micikevicius et al. 2022, arXiv 2209.05433.
    """
    codes = np.arange(128)
    exponent, fraction = codes >> 3, codes & 7
    normal = (8 + fraction) * 2.0 ** (exponent - 10)
    values = np.where(exponent > 0, normal, fraction * 2.0**-9)
    values[127] = np.nan
    return np.concatenate([values, -values]).astype(np.float32)


E4M3 = _e4m3()
"""What the bytes of FP8 stand for."""

NF4 = np.array(
    [
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
        -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
        0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
        0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
    ],
    np.float32,
)  # fmt: skip
"""What the codes of NF4 stand for (Dettmers et al. 2023, arXiv 2305.14314, appendix E)."""


_OF_EACH_LENGTH = {"INT4": _int4, "INT8": _int8, "FP8": _fp8}
DECODERS: Mapping[str, Callable[[QuantBlocks], Floats]] = {
    **{f"{kind}_G{n}": by for kind, by in _OF_EACH_LENGTH.items() for n in (32, 64, 128)},
    "NF4": _nf4,
}
"""By name: quant blocks to float32, any shape of the right size."""
