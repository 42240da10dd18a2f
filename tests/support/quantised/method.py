"""A method of quantisation, and shared parts: drawn codes and scales, and words of codes."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Typed(NamedTuple):
    """Bytes of numbers whose dtype NumPy lacks: "BF16" or "F8_E4M3"."""

    dtype: str
    data: Array


class Quantised(NamedTuple):
    """The tensors of a matrix, by the endings of their names, and the matrix: float32 (out, in).

    metadata: what the file itself says of the matrix, beside its tensors
    """

    parts: Mapping[str, Array | Typed]
    matrix: Array
    metadata: str = ""


class Method(NamedTuple):
    """A row of `METHODS`.

    config  config.json's quantization_config
    draw    makes a matrix: (rng, shape, act-order's orders by width) -> Quantised
    format  the format to which cutaway converts most matrices
    floats  whether activations stay unrounded
    key     the key of config.json that has ``config``
    """

    config: Mapping[str, Any]
    draw: Callable[[np.random.Generator, tuple[int, int], dict[int, Array]], Quantised]
    format: str
    floats: bool = False
    key: str = "quantization_config"


def smooth_inputs(method: Method, ending: str) -> Method:
    """Return the method with a factor for each input in a tensor of its own, as AWQ has it."""

    def draw(
        rng: np.random.Generator, shape: tuple[int, int], orders: dict[int, Array]
    ) -> Quantised:
        parts, matrix, metadata = method.draw(rng, shape, orders)
        stored, factors = bf16(rng.uniform(0.5, 1.5, shape[1]))
        return Quantised({**parts, ending: stored}, matrix * factors, metadata)

    return method._replace(draw=draw, format="F32", floats=True)


def drawn_codes(rng: np.random.Generator, shape: tuple[int, int], bits: int) -> Array:
    return rng.integers(0, 1 << bits, shape)


def drawn_scales(rng: np.random.Generator, shape: tuple[int, ...], cols: int, bits: int) -> Array:
    """Draw scales for matrices of an ordinary size."""
    scales: Array = 1.2 / np.sqrt(cols) / 2 ** (bits - 1) * rng.uniform(0.5, 1.5, shape)
    return scales


def bf16(numbers: Array) -> tuple[Typed, Array]:
    """Truncate numbers to BF16; return them as a file stores them, and as float32."""
    upper = np.ascontiguousarray(numbers, np.float32).view(np.uint32) >> 16
    return Typed("BF16", upper.astype(np.uint16)), (upper << 16).view(np.float32)


def packed_words(fields: Array, bits: int) -> Array:
    """Pack codes (n, count) to words (n, count · bits / 32), lowest bits first, across words."""
    count = fields.shape[1]
    words = np.zeros((len(fields), -(-count * bits // 32)), np.uint64)
    for i in range(count):
        word, bit = divmod(i * bits, 32)
        value = fields[:, i].astype(np.uint64) << np.uint64(bit)
        words[:, word] |= value & np.uint64(0xFFFFFFFF)
        if bit + bits > 32:
            words[:, word + 1] |= value >> np.uint64(32)
    return words.astype(np.uint32).view(np.int32)
