"""BitNet's matrices: packed, four rows in a byte, or master weights that are rounded when read."""

from typing import Any

import numpy as np

from support.quantised.method import Array, Method, Quantised, bf16


def bitnet(*, linear: str = "autobitlinear", online: bool = False) -> Method:
    config = {
        "quant_method": "bitnet", "linear_class": linear, "modules_to_not_convert": None,
        "quantization_mode": "online" if online else "offline",
    }  # fmt: skip

    def draw(rng: np.random.Generator, shape: tuple[int, int], _: Any) -> Quantised:
        return _round(rng, shape) if online else _pack(rng, shape, linear)

    return Method(config, draw, "TQ2_0")


def _pack(rng: np.random.Generator, shape: tuple[int, int], linear: str) -> Quantised:
    weights = rng.integers(-1, 2, shape)
    stored, scale = bf16(np.array([rng.uniform(0.05, 0.1)]))
    rows = shape[0] // 4
    packed = np.zeros((rows, shape[1]), np.uint8)
    for row, numbers in enumerate(weights):
        packed[row % rows] |= (numbers + 1).astype(np.uint8) << 2 * (row // rows)
    if linear == "bitlinear":  # divides by its scale
        stored, scale = bf16(1 / scale)
        scale = np.float32(1) / scale
    matrix: Array = weights * scale
    return Quantised({".weight": packed, ".weight_scale": stored}, matrix.astype(np.float32))


def _round(rng: np.random.Generator, shape: tuple[int, int]) -> Quantised:
    """Draw weights whose mean magnitude, 0.0625, is a BF16."""
    signs = rng.choice([-1.0, 1.0], shape)
    sizes = np.full(shape, 0.0625)
    sizes[::2], sizes[1::2] = 0.0625 / 4, 0.0625 * 7 / 4  # rounded to 0, and to 1
    stored, weights = bf16(signs * sizes)
    mean = np.abs(weights).mean()
    matrix = np.clip(np.rint(weights / mean), -1, 1) * mean
    return Quantised({".weight": stored}, matrix.astype(np.float32))
