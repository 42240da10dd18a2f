"""What the definitions of draft heads share, in NumPy."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def norm_rows(x: Array, weight: Array) -> Array:
    """RMSNorm of each row's last axis."""
    result: Array = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight
    return result


def rotate_heads(x: Array, positions: Array) -> Array:
    """Rotate (n, heads, size) with base 5,000: the two of a pair are half a head apart."""
    half = x.shape[-1] // 2
    angle = positions[:, None, None] / 5000.0 ** (np.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    pairs = (a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle))
    return np.concatenate(pairs, axis=-1)
