"""MLX's matrices, as mlx-lm writes them: affine integers, and the floats of its other modes.

`weight` (out, in · bits / 32) has words of codes, lowest bits first, and `scales` (out, in /
group_size) what a group's codes are multiplied by. The experts of a layer are one matrix each of
(experts, out, in).

*affine*: scales · code + biases, where `biases` are floats, no codes that stand for 0. If both are
halves or BF16, codes of up to 5 bits are GGUF's Q4_1 and Q5_1, whose scale and minimum are halves.
*mxfp4*, *mxfp8*: numbers e2m1 and e4m3, of which 32 share a power of two. *nvfp4*: numbers e2m1, of
which 16 share a float e4m3; there is no factor for a whole matrix.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import FormatError
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.quantization.floats import (
    Mxfp4Matrix,
    mxfp8_matrix,
    read_exponents,
)
from cutaway.files.huggingface.quantization.grouped import (
    FLOATS,
    Bytes,
    Grouped,
    MatrixParts,
    as_bytes,
    bases,
    fields,
    format_of,
)
from cutaway.files.huggingface.quantization.nvfp4 import Nvfp4Matrix, check_rows, read_e4m3
from cutaway.files.huggingface.shards import Shards
from cutaway.files.weights import FORMATS
from cutaway.files.weights.cursor import quote

_LENGTH = FORMATS["Q4_1"].quant_block_elements
_EXACT = ("F16", "BF16")
"""Floats that halves hold: of BF16, all but those beyond 65,504 and the last bits below 1e-5."""


class WordPacking(NamedTuple):
    """How the codes of a matrix are packed: the mode, and how many weights share a scale."""

    mode: str
    group: int

    @classmethod
    def read(cls, config: JsonObject) -> "WordPacking":
        """Read the settings of all matrices, or of one."""
        config.must_be("mode", *_MODES)
        mode = config.text("mode") or "affine"
        config.must_be("group_size", *_MODES[mode].groups)
        return cls(mode, config.size("group_size"))


class Mlx:
    """The method, as a config describes it: the packing of all matrices, and that of some."""

    def __init__(self, packing: WordPacking, exceptions: dict[str, WordPacking]) -> None:
        self.packing, self.exceptions = packing, exceptions

    @classmethod
    def read(cls, config: JsonObject) -> "Mlx":
        """Read config.json's "quantization"."""
        exceptions = {
            name: WordPacking.read(config.part(name))
            for name, value in config.values.items()
            if isinstance(value, dict)
        }
        return cls(WordPacking.read(config), exceptions)

    def matrices(self, shards: Shards) -> Iterator[Grouped]:
        """Yield all packed matrices."""
        for base in bases(shards, ".scales"):
            yield _matrix(MatrixParts(shards, base), *self.exceptions.get(base, self.packing))


Shape = tuple[int, ...]


def _matrix(parts: MatrixParts, name: str, group: int) -> Grouped:
    mode = _MODES[name]
    *above, words = parts.shape(".weight", "U32") or (0,)
    groups = (parts.shape(".scales", *mode.scales) or (0,))[-1]
    if len(above) not in (1, 2):
        raise FormatError(
            f"the tensor {quote(parts.base + '.weight')} has {len(above) + 1} dimensions, not 2 or "
            "3"
        )
    parts.expect(".scales", (*above, groups), *mode.scales)
    cols = groups * group
    bits = 32 * words // cols
    if bits not in mode.bits or bits * cols != 32 * words:
        raise FormatError(
            f"the tensor {quote(parts.base + '.weight')} has {words} words for {groups} groups of "
            f"{group}: cutaway reads codes of {', '.join(map(str, mode.bits))} bits"
        )
    return mode.read(parts, (*above, cols), bits, group)


def _bytes(parts: MatrixParts, rows: int) -> Bytes:
    """Return the bytes of each row's words."""
    return as_bytes(parts.array(".weight").reshape(rows, -1))


# -- integers --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Halved(Grouped):
    """A matrix whose scales and minima become halves: Q4_1, and Q5_1."""

    def rows(self) -> Bytes:
        """See `Grouped`."""
        codes, scales, minima = self.read()
        assert minima is not None
        *above, cols = self.shape
        blocks = np.empty((prod(above), cols // _LENGTH), FORMATS[self.format].layout)
        for name, numbers in (("d", scales), ("m", minima)):
            blocks[name] = np.repeat(self._halves(numbers), self.group // _LENGTH, 1)
        codes = codes.reshape(*blocks.shape, _LENGTH)
        low, high = np.split(codes & np.uint8(15), 2, axis=-1)
        blocks["qs"] = low | high << np.uint8(4)
        if self.format == "Q5_1":
            blocks["qh"] = np.packbits(codes >> np.uint8(4), axis=-1, bitorder="little")
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


def _affine(parts: MatrixParts, shape: Shape, bits: int, group: int) -> Grouped:
    *above, cols = shape
    rows, groups = prod(above), cols // group
    parts.expect(".biases", (*above, groups), *FLOATS)

    def read() -> tuple[Bytes, NDArray[np.float32], NDArray[np.float32]]:
        scales, biases = (parts.array(end).reshape(rows, groups) for end in (".scales", ".biases"))
        return fields(_bytes(parts, rows), bits), scales, biases

    used = tuple(parts.used)
    has_halves = parts.dtype(".scales") in _EXACT and parts.dtype(".biases") in _EXACT
    if bits <= 5 and has_halves:
        format = "Q5_1" if bits == 5 else "Q4_1"
        return _Halved(parts.base, used, shape, format, group, read)
    format = format_of("AFFINE8", f"{parts.base}.weight", cols, group)
    return Grouped(parts.base, used, shape, format, group, read)


# -- floats ----------------------------------------------------------------------------------------


def _mxfp4(parts: MatrixParts, shape: Shape, _bits: int, group: int) -> Grouped:
    rows = prod(shape[:-1])

    def read() -> tuple[Bytes, Bytes, None]:
        return _bytes(parts, rows), read_exponents(parts, ".scales"), None

    return Mxfp4Matrix(parts.base, tuple(parts.used), shape, "MXFP4", group, read)


def _mxfp8(parts: MatrixParts, shape: Shape, _bits: int, _group: int) -> Grouped:
    return mxfp8_matrix(parts, ".weight", ".scales", shape)


def _nvfp4(parts: MatrixParts, shape: Shape, _bits: int, group: int) -> Grouped:
    rows = prod(shape[:-1])
    check_rows(f"{parts.base}.weight", shape[-1])

    def read() -> tuple[Bytes, Bytes, None]:
        return _bytes(parts, rows), read_e4m3(parts, ".scales"), None

    return Nvfp4Matrix(parts.base, tuple(parts.used), shape, "NVFP4", group, read)


class Mode(NamedTuple):
    """What the settings of a mode may be, the dtypes of its scales, and how to read a matrix."""

    read: Callable[[MatrixParts, Shape, int, int], Grouped]
    bits: tuple[int, ...]
    scales: tuple[str, ...] = ("U8",)
    groups: tuple[int, ...] = (32,)


_MODES = {
    "affine": Mode(_affine, (2, 3, 4, 5, 6, 8), FLOATS, (64, 32, 128)),
    "mxfp4": Mode(_mxfp4, (4,)),
    "mxfp8": Mode(_mxfp8, (8,)),
    "nvfp4": Mode(_nvfp4, (4,), groups=(16,)),
}
