"""BitNet b1.58: weights of -1, 0 and 1, times one number for a matrix.

Ma et al. 2024, arXiv 2402.17764. `weight` (out / 4, in) has in bits 2i and 2i + 1 the codes of rows
from i · out / 4 on; a code is its weight + 1. `weight_scale` is the number, or its inverse
(`bitlinear`). Master weights ("online") are floats, which are rounded: the number is their mean
magnitude.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import fsum

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import FormatError
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.quantization.grouped import (
    FLOATS,
    Bytes,
    Grouped,
    MatrixParts,
    bases,
    read_factor,
)
from cutaway.files.huggingface.shards import Shards
from cutaway.files.weights import FORMATS
from cutaway.files.weights.cursor import quote

_FORMATS = ("TQ2_0", "Q2_0")
_LEAST = np.float32(1e-5)  # of a mean magnitude
_TOO_LARGE = np.float32(65408)  # the nearest BF16 is beyond any half


@dataclass(frozen=True)
class TernaryMatrix(Grouped):
    """A matrix whose ``read`` returns a code for each weight, (rows, columns)."""

    def rows(self) -> Bytes:
        """See `Grouped`."""
        codes, scale, _ = self.read()
        rows, cols = self.shape
        format = FORMATS[self.format]
        blocks = np.empty((rows, cols // format.quant_block_elements), format.layout)
        blocks["d"] = scale
        shifts = np.array([0, 2, 4, 6], np.uint8)
        if self.format == "TQ2_0":
            packed = codes.reshape(rows, -1, 2, 4, 32) << shifts[:, None]
            blocks["qs"] = np.bitwise_or.reduce(packed, axis=3)
        else:
            packed = codes.reshape(*blocks.shape, -1, 4) << shifts
            blocks["qs"] = np.bitwise_or.reduce(packed, axis=3)
        return blocks.view(np.uint8).reshape(rows, -1)


class BitNet:
    """The method. is_inverse: whether weight_scale is 1 / scale; is_master: as in the module."""

    def __init__(self, *, is_inverse: bool, is_master: bool, floats: tuple[str, ...]) -> None:
        self._is_inverse, self._is_master, self._floats = is_inverse, is_master, floats

    @classmethod
    def read(cls, config: JsonObject) -> "BitNet":
        """Read a quantization_config."""
        config.must_be("use_rms_norm", False)
        config.must_be("linear_class", "bitlinear", "autobitlinear")
        config.must_be("quantization_mode", "offline", "online")
        is_auto = config.text("linear_class") == "autobitlinear"
        is_master = is_auto and config.text("quantization_mode") == "online"
        floats = config.get("modules_to_not_convert") or ["lm_head"]
        if not isinstance(floats, list) or not all(isinstance(name, str) for name in floats):
            config.fail("modules_to_not_convert", "a list of names")
        return cls(is_inverse=not is_auto, is_master=is_master, floats=tuple(floats))

    def matrices(self, shards: Shards) -> Iterator[Grouped]:
        """Yield all matrices of -1, 0 and 1."""
        if not self._is_master:
            for base in bases(shards, ".weight_scale"):
                yield self._read_packed(MatrixParts(shards, base))
            return
        for base in bases(shards, "_proj.weight"):
            if not any(name in base for name in self._floats):
                yield _round_master(MatrixParts(shards, f"{base}_proj"))

    def _read_packed(self, parts: MatrixParts) -> Grouped:
        height, cols = parts.sides(".weight", "U8")
        parts.expect(".weight_scale", (1,), *FLOATS)
        factor = read_factor(parts, ".weight_scale", is_inverse=self._is_inverse)

        def read() -> tuple[Bytes, NDArray[np.float32], None]:
            packed = parts.array(".weight")
            fields = [packed >> np.uint8(shift) & np.uint8(3) for shift in (0, 2, 4, 6)]
            codes = np.concatenate(fields)
            if codes.max() > 2:
                raise FormatError(
                    f"the tensor {quote(parts.base + '.weight')} holds the code 3, and a weight is "
                    "-1, 0 or 1 (codes 0, 1 and 2); download the model again"
                )
            return codes, np.ones(1, np.float32), None

        return TernaryMatrix(
            parts.base, tuple(parts.used), (4 * height, cols), _format_of(parts, cols), cols, read,
            factor=factor,
        )  # fmt: skip


def _round_master(parts: MatrixParts) -> Grouped:
    """Return a matrix of master weights as transformers rounds it, its number in BF16 or F16."""
    shape = parts.sides(".weight", "BF16", "F16")
    dtype = parts.dtype(".weight")

    def read() -> tuple[Bytes, NDArray[np.float32], None]:
        weights = parts.array(".weight")
        magnitude = _mean_magnitude(weights)
        if not magnitude < _TOO_LARGE:
            raise FormatError(
                f"the tensor {quote(parts.base + '.weight')} holds weights that are not finite, or "
                "too large; download the model again"
            )
        scale = np.reciprocal(np.maximum(magnitude, _LEAST))
        codes = np.clip(np.rint(weights * scale), -1, 1) + 1
        return codes.astype(np.uint8), _nearest(dtype, np.reciprocal(scale)), None

    format = _format_of(parts, shape[1])
    return TernaryMatrix(parts.base, tuple(parts.used), shape, format, shape[1], read)


def _mean_magnitude(weights: NDArray[np.float32]) -> np.float32:
    """Return the nearest float32 to the mean, whose sum has one order on all processors."""
    columns = np.add.reduce(np.abs(weights), axis=0, dtype=np.float64)  # row after row
    return np.float32(fsum(columns) / weights.size)


def _nearest(dtype: str, number: np.float32) -> NDArray[np.float32]:
    """Return the nearest BF16 or F16, (1,); the even one where two are as near."""
    if dtype == "F16":
        return np.array([np.float16(number)], np.float32)
    bits = np.array([number], np.float32).view(np.uint32)
    nearest = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    return (nearest << np.uint32(16)).view(np.float32)


def _format_of(parts: MatrixParts, cols: int) -> str:
    for format in _FORMATS:
        if cols % FORMATS[format].quant_block_elements == 0:
            return format
    raise FormatError(
        f"the tensor {quote(parts.base + '.weight')} has rows of {cols}, and cutaway reads rows of "
        "whole multiples of 64: take the model as a .gguf file"
    )
