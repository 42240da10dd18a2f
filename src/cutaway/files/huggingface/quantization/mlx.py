"""MLX's affine integers, as mlx-lm writes them: weight (out, in) is scales · code + biases.

`weight` (out, in · bits / 32) has words of codes, lowest bits first; `scales` and `biases` (out, in
/ group_size) are floats. A bias is a float, no code that stands for 0. The experts of a layer are
one matrix each of (experts, out, in). Codes of 4 bits are GGUF's
Q4_1, whose scale and minimum are halves; those of other bits have no such format, and become
float32.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import FormatError
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.quantization.grouped import (
    FLOATS,
    Bytes,
    Grouped,
    MatrixParts,
    as_bytes,
    bases,
    fields,
    group_of,
)
from cutaway.files.huggingface.shards import Shards
from cutaway.files.weights import FORMATS
from cutaway.files.weights.cursor import quote

BITS = (2, 3, 4, 5, 6, 8)
_LENGTH = FORMATS["Q4_1"].quant_block_elements
_EXACT = ("F16", "BF16")
"""Floats that halves hold: of BF16, all but those beyond 65,504 and the last bits below 1e-5."""


@dataclass(frozen=True)
class AffineMatrix(Grouped):
    """A matrix of codes with a factor and a summand for each group, which ``read`` returns."""

    def rows(self) -> Bytes:
        """See `Grouped`."""
        codes, factors, summands = self.read()
        assert summands is not None
        *above, cols = self.shape
        rows = prod(above)
        if self.format == "F32":
            grouped = codes.reshape(rows, -1, self.group)
            numbers = np.multiply(grouped, factors[..., None], dtype=np.float32)
            numbers += summands[..., None]
            as_stored: Bytes = numbers.reshape(*above, cols).view(np.uint8)
            return as_stored
        halves = codes.reshape(rows, cols // _LENGTH, 2, _LENGTH // 2)
        blocks = np.empty((rows, cols // _LENGTH), FORMATS["Q4_1"].layout)
        blocks["d"], blocks["m"] = (
            np.repeat(self._halves(part), self.group // _LENGTH, 1) for part in (factors, summands)
        )
        blocks["qs"] = halves[:, :, 0] | halves[:, :, 1] << np.uint8(4)
        return blocks.view(np.uint8).reshape(*above, -1)

    def _halves(self, numbers: NDArray[np.float32]) -> NDArray[np.float16]:
        with np.errstate(over="ignore"):
            halves: NDArray[np.float16] = numbers.astype(np.float16)
        if not np.isfinite(halves).all():
            raise FormatError(
                f"the tensor {quote(self.name + '.weight')} has scales or biases beyond 65,504, "
                "which are not supported; download the model again"
            )
        return halves


class Mlx:
    """The method, as a config describes it: group_size, and that of some matrices."""

    def __init__(self, group: int, groups: dict[str, int]) -> None:
        self.group, self.groups = group, groups

    @classmethod
    def read(cls, config: JsonObject) -> "Mlx":
        """Read config.json's "quantization"."""
        config.must_be("mode", "affine")
        groups = {}
        for name, value in config.values.items():
            if isinstance(value, dict):
                override = config.part(name)
                override.must_be("mode", "affine")
                groups[name] = override.size("group_size")
        return cls(config.size("group_size"), groups)

    def matrices(self, shards: Shards) -> Iterator[Grouped]:
        """Yield all packed matrices."""
        for base in bases(shards, ".scales"):
            yield _matrix(MatrixParts(shards, base), self.groups.get(base, self.group))


def _matrix(parts: MatrixParts, group: int) -> Grouped:
    *above, words = parts.shape(".weight", "U32") or (0,)
    groups = (parts.shape(".scales", *FLOATS) or (0,))[-1]
    if len(above) not in (1, 2):
        raise FormatError(
            f"the tensor {quote(parts.base + '.weight')} has {len(above) + 1} dimensions, not 2 or "
            "3"
        )
    cols = groups * group
    for ending in (".scales", ".biases"):
        parts.expect(ending, (*above, groups), *FLOATS)
    bits = 32 * words // cols
    if bits not in BITS or bits * cols != 32 * words:
        raise FormatError(
            f"the tensor {quote(parts.base + '.weight')} has {words} words for {groups} groups of "
            f"{group}: cutaway reads codes of {', '.join(map(str, BITS))} bits"
        )
    group_of(f"{parts.base}.scales", cols, groups)
    is_q4 = bits == 4 and group % _LENGTH == 0
    is_q4 &= parts.dtype(".scales") in _EXACT and parts.dtype(".biases") in _EXACT

    def read() -> tuple[Bytes, NDArray[np.float32], NDArray[np.float32]]:
        codes = fields(as_bytes(parts.array(".weight").reshape(-1, words)), bits)
        scales, biases = (parts.array(end).reshape(-1, groups) for end in (".scales", ".biases"))
        return codes, scales, biases

    format = "Q4_1" if is_q4 else "F32"
    return AffineMatrix(parts.base, tuple(parts.used), (*above, cols), format, group, read)
