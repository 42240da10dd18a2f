"""Bytes of quantised matrices: random codes under scales of our choice, in any format."""

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway.files.weights import FORMATS, dequantize

BYTE_SCALES = ("MXFP4", "NVFP4")
"""Formats whose scales are not half floats: any byte is a finite scale."""
_ENOUGH = 2048  # blocks from which the deviation of all blocks is estimated


def set_scales(name: str, raw: NDArray[np.uint8], **scales: Any) -> None:
    """Set d, m and dmin of all quant blocks, as far as the format has them, from half floats.

    raw: the bytes, in one dimension; a scale of one byte gets the nearest power of two
    """
    blocks = raw.view(FORMATS[name].layout)
    for field in scales.keys() & set(FORMATS[name].layout.names or ()):
        blocks[field] = scales[field]
    d = np.broadcast_to(np.float16(scales["d"]), len(blocks))
    if name == "IQ1_M":  # each of four words has a quarter of the half float in its upper bits
        quarters = d.view(np.uint16)[:, None] >> np.arange(0, 16, 4, dtype=np.uint16) << 12
        blocks["scales"] = blocks["scales"] & 0x0FFF | quarters
    elif name in BYTE_SCALES:
        power = np.rint(np.log2(d.astype(np.float32)))
        if name == "MXFP4":
            blocks["e"] = 128 + power
        else:
            blocks["scales"] = (np.clip(power + 8, 1, 15).astype(np.uint8) << 3)[:, None]


def random_blocks(
    rng: np.random.Generator, name: str, shape: tuple[int, ...], scale: float
) -> NDArray[np.uint8]:
    """Draw random codes whose weights have mean 0 and deviation about `scale`: (rows, row bytes).

    shape: (rows, columns), or (matrices, rows, columns) for several matrices of one shape
    """
    kind, rows = FORMATS[name], prod(shape[:-1])
    raw = rng.integers(0, 256, (rows, kind.nbytes(shape[-1])), np.uint8)
    if name.startswith("FP8"):
        codes = raw.reshape(-1).view(kind.layout)["qs"]
        codes[codes & 127 == 127] = 0  # else NaN
    flat, some = raw.reshape(-1), raw.reshape(-1)[: _ENOUGH * kind.quant_block_bytes].copy()
    ratio = 0.0
    set_scales(name, some, d=1, m=0, dmin=0)
    mean = dequantize(kind, some).mean()
    if "m" in (kind.layout.names or ()):
        ratio = -mean
    elif "dmin" in (kind.layout.names or ()):
        set_scales(name, some, d=0, dmin=1)
        ratio = -mean / dequantize(kind, some).mean()
        set_scales(name, some, d=1, dmin=ratio)
    blocks = len(flat) // kind.quant_block_bytes
    factor = scale / dequantize(kind, some).std() * rng.uniform(0.5, 1.5, blocks)
    set_scales(name, flat, d=factor, m=factor * ratio, dmin=factor * ratio)
    return raw
