"""The formats in which keys and values are stored, and the definition of q8_0."""

import numpy as np
from numpy.typing import NDArray

KV_FORMATS = ("f16", "q8_0")
"""What ``kv=`` takes. f16: the cpu backend stores halves, and the reference float32."""
_PER_SCALE = 32
_MOST = np.float32(65504)  # of a half


def q8_0(x: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float16]]:
    """Numbers (…, head_dim) as codes of that shape and scales (…, ceil(head_dim / 32)).

    Each 32 numbers, the last perhaps fewer, share a scale: the half next to max|x| / 127. A code is
    x / scale to the nearest integer, ties to even, at most 127. What a half cannot hold counts as
    the largest that it can.
    """
    dim = x.shape[-1]
    padded = np.zeros((*x.shape[:-1], -(-dim // _PER_SCALE) * _PER_SCALE), np.float32)
    padded[..., :dim] = np.where(x < _MOST, x, _MOST)  # NaN too
    blocks = np.maximum(padded, -_MOST).reshape(*x.shape[:-1], -1, _PER_SCALE)
    scales = (np.abs(blocks).max(-1) / np.float32(127)).astype(np.float16)
    steps = scales.astype(np.float32)[..., None]
    with np.errstate(divide="ignore", invalid="ignore"):
        exact = np.where(steps > 0, blocks / steps, np.float32(0))
    codes = np.rint(np.clip(exact, -127, 127)).astype(np.int8)
    return codes.reshape(padded.shape)[..., :dim], scales


def as_q8_0(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """The numbers that q8_0 stores for these: code · scale, exact in float32."""
    codes, scales = q8_0(x)
    steps = np.repeat(scales.astype(np.float32), _PER_SCALE, axis=-1)
    value: NDArray[np.float32] = codes * steps[..., : x.shape[-1]]
    return value
