"""Matrices whose weights share scales in groups along a row, in the formats of `weights.formats`.

Knows which format fits a group, and how to check the tensors of a quantised matrix. Does not know
how a method packs its codes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import FormatError
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.shards import Shards
from cutaway.files.weights import FORMATS, dequantize
from cutaway.files.weights.cursor import quote

Bytes = NDArray[np.uint8]
Order = NDArray[np.int32]


@dataclass(frozen=True)
class Grouped:
    """A quantised matrix of several tensors.

    name    transformers' name of the matrix, without ".weight"
    parts   the names of its tensors
    shape   rows and columns; for experts (experts, rows, columns)
    format  of `FORMATS`
    order   the input of each stored column; None: columns are in the order of inputs
    factor  by which products with the matrix are multiplied, (1,), or (experts,) of experts;
            None: they are not
    read    returns codes as bytes, (rows, bytes); scales (rows, groups); zero points, or what is
            added to a group's weights, likewise, or None if codes are floats
    group   how many weights of a row share a scale
    """

    name: str
    parts: tuple[str, ...]
    shape: tuple[int, ...]
    format: str
    group: int
    read: Callable[[], tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]]
    order: Order | None = None
    factor: NDArray[np.float32] | None = None

    def rows(self) -> Bytes:
        """Return each row's quant blocks: (rows, bytes of a row)."""
        codes, scales, zeros = self.read()
        format, (*above, cols) = FORMATS[self.format], self.shape
        rows, count = prod(above), cols // format.quant_block_elements
        of_block = np.arange(count) * format.quant_block_elements // self.group
        blocks = np.empty((rows, count), format.layout)
        blocks["d"] = scales[:, of_block]
        blocks["qs"] = codes.reshape(rows, count, -1)
        if zeros is not None:
            blocks["m" if self.format.startswith("AFFINE") else "z"] = zeros[:, of_block]
        return blocks.view(np.uint8).reshape(*above, -1)


@dataclass(frozen=True)
class _Smoothed(Grouped):
    """Another matrix, whose columns are multiplied by what ``factors`` returns, in float32."""

    plain: Grouped = field(kw_only=True)
    factors: Callable[[], NDArray[np.float32]] = field(kw_only=True)

    def rows(self) -> Bytes:
        """See `Grouped`."""
        plain = self.plain
        numbers = dequantize(FORMATS[plain.format], plain.rows().reshape(-1)).reshape(plain.shape)
        if plain.factor is not None:
            numbers *= plain.factor
        numbers *= self.factors()
        as_stored: Bytes = numbers.view(np.uint8)
        return as_stored


def smooth(matrix: Grouped, parts: "MatrixParts", ending: str) -> Grouped:
    """Return the matrix times the factors of its inputs, if it has a tensor with this ending.

    AWQ and SmoothQuant multiply what a matrix reads. No format of ours has such factors: float32.
    """
    if not parts.has(ending):
        return matrix
    parts.expect(ending, matrix.shape[-1:], *FLOATS)
    return _Smoothed(
        matrix.name, (*matrix.parts, matrix.name + ending), matrix.shape, "F32", matrix.group,
        matrix.read, plain=matrix, factors=lambda: _finite(parts, ending),
    )  # fmt: skip


def _finite(parts: "MatrixParts", ending: str) -> NDArray[np.float32]:
    factors: NDArray[np.float32] = parts.array(ending)
    if not np.isfinite(factors).all():
        raise FormatError(
            f"the tensor {quote(parts.base + ending)} holds factors that are not finite; download "
            "the model again"
        )
    return factors


def format_of(kind: str, name: str, cols: int, group: int) -> str:
    """Return the format of ``kind`` with the longest groups that divide the file's.

    name: the matrix's name for errors. FormatError if no format has such groups.
    """
    for length in (128, 64, 32):
        if cols % length == 0 and group % length == 0:
            return f"{kind}_G{length}"
    raise FormatError(
        f"the tensor {quote(name)} has groups of {group} in rows of {cols}, and cutaway reads "
        "groups "
        "and rows of whole multiples of 32: take the model with another group_size, or a .gguf file"
    )


Lengths = frozenset[int]
"""Lengths of groups in a config: WHOLE_ROW for whole rows; empty if it has none."""
WHOLE_ROW = 0


def lengths_of(config: JsonObject, *keys: str) -> Lengths:
    """Return the length of groups in a config, under the first of these keys; -1: a whole row."""
    for key in keys:
        if (length := config.get(key)) is not None:
            if type(length) is not int or (length < 1 and length != -1):
                config.fail(key, "a whole number above 0, or -1 for whole rows")
            return frozenset([max(length, WHOLE_ROW)])
    return frozenset()


def group_of(name: str, cols: int, groups: int, allowed: Lengths = frozenset()) -> int:
    """Return the length of ``groups`` equal groups that a row of ``cols`` has.

    FormatError for a length that is not allowed.
    """
    if cols % groups:
        raise FormatError(
            f"the tensor {quote(name)} has scales for {groups} groups, into which rows of {cols} "
            "cannot be divided; download the model again"
        )
    group = cols // groups
    if allowed and group not in allowed and not (group == cols and WHOLE_ROW in allowed):
        raise FormatError(
            f"the tensor {quote(name)} has a scale for each {group} weights of a row, and "
            "config.json's "
            f"group_size is {' or '.join(str(n or -1) for n in sorted(allowed))}; download the "
            "model again"
        )
    return group


def order_of(name: str, groups_of: NDArray[Any], groups: int) -> Order | None:
    """Return the order of columns in which each group is contiguous; None if each already is.

    groups_of: the number of each column's group (g_idx). FormatError if a group does not exist or
    has more columns than another.
    """
    cols = len(groups_of)
    group = group_of(name, cols, groups)
    if groups_of.min() < 0 or groups_of.max() >= groups:
        raise FormatError(
            f"the tensor {quote(name)} names groups from {groups_of.min()} to {groups_of.max()}, "
            f"and there are scales for {groups}; download the model again"
        )
    sizes = np.bincount(groups_of, minlength=groups)
    if (sizes != group).any():
        odd = int(np.argmax(sizes != group))
        raise FormatError(
            f"the tensor {quote(name)} puts {sizes[odd]} columns into group {odd}, and each of "
            f"the {groups} groups must have {group}"
        )
    order = np.argsort(groups_of, kind="stable").astype(np.int32)
    return None if np.array_equal(order, np.arange(cols)) else order


# -- the tensors that a matrix is made of, by their endings ----------------------------------------


def bases(shards: Shards, ending: str) -> Iterator[str]:
    """Return the names, without this ending, of the matrices that have a tensor with the ending."""
    return (name.removesuffix(ending) for name in shards if name.endswith(ending))


class MatrixParts:
    """The tensors of one matrix, by ending. Errors name the tensor.

    used: the tensors that were read
    """

    def __init__(self, shards: Shards, base: str) -> None:
        self._shards, self.base = shards, base
        self.used: list[str] = []

    def has(self, ending: str) -> bool:
        """Whether the matrix has a tensor with this ending."""
        return self.base + ending in self._shards

    def shape(self, ending: str, *dtypes: str) -> tuple[int, ...]:
        """Return a tensor's shape; FormatError if it is missing, or of another dtype than these."""
        name = self.base + ending
        if name not in self._shards:
            raise FormatError(
                f"the tensor {quote(name)} is missing, without which {quote(self.base)} cannot "
                "be read; download the model again"
            )
        dtype, shape = self._shards.dtype(name), self._shards.shape(name)
        if dtype not in dtypes:
            raise FormatError(
                f"the tensor {quote(name)} is stored as {dtype}; it must be {' or '.join(dtypes)}"
            )
        if 0 in shape:
            raise FormatError(f"the tensor {quote(name)} has the shape {shape}: it holds nothing")
        if name not in self.used:
            self.used.append(name)
        return shape

    def sides(self, ending: str, *dtypes: str) -> tuple[int, int]:
        """Return the shape of a tensor that must have two dimensions."""
        shape = self.shape(ending, *dtypes)
        if len(shape) != 2:
            raise FormatError(
                f"the tensor {quote(self.base + ending)} has {len(shape)} dimensions, not 2"
            )
        return shape[0], shape[1]

    def dtype(self, ending: str) -> str:
        """Return a tensor's dtype in the file."""
        return self._shards.dtype(self.base + ending)

    def expect(self, ending: str, shape: tuple[int, ...], *dtypes: str) -> None:
        """Raise FormatError if a tensor has another shape."""
        if (actual := self.shape(ending, *dtypes)) != shape:
            raise FormatError(
                f"the tensor {quote(self.base + ending)} has the shape {actual}, which is not "
                f"{shape} as the others of its matrix ask for; download the model again"
            )

    def expect_number(self, ending: str, *dtypes: str) -> None:
        """Raise FormatError if a tensor has not one number."""
        if (actual := self.shape(ending, *dtypes)) not in ((), (1,)):
            raise FormatError(
                f"the tensor {quote(self.base + ending)} has the shape {actual}, and it must be "
                "one number; download the model again"
            )

    def array(self, ending: str) -> NDArray[Any]:
        """Return a tensor's numbers; floats as float32."""
        return self._shards.part(self.base + ending)


FLOATS = ("F16", "BF16", "F32")
"""The dtypes of scales."""


def read_factor(parts: MatrixParts, ending: str, *, is_inverse: bool) -> NDArray[np.float32]:
    """Return the factor of a matrix's products, (1,); FormatError if it is no ordinary number.

    is_inverse: whether the tensor has 1 / factor
    """
    stored = parts.array(ending).reshape(1)
    with np.errstate(all="ignore"):  # what comes of it is checked
        factor: NDArray[np.float32] = np.reciprocal(stored) if is_inverse else stored
    if not 0 < factor[0] < np.inf:
        factor_name = "its inverse" if is_inverse else "it"
        raise FormatError(
            f"the tensor {quote(parts.base + ending)} is {stored[0]}, and {factor_name} must be a "
            "finite number above 0; download the model again"
        )
    return factor


# -- unpacking codes of a few bits -----------------------------------------------------------------


_AT_ONCE = 1 << 22  # codes: bounds the memory of unpacking


def fields(packed: Bytes, bits: int) -> Bytes:
    """Unpack fields of 2 to 8 bits, lowest first, across bytes: (n, bytes) -> (n, codes)."""
    if bits == 8:
        return packed
    if 8 % bits:
        digits = np.unpackbits(packed, axis=1, bitorder="little").reshape(len(packed), -1, bits)
        codes: Bytes = digits @ (np.uint8(1) << np.arange(bits, dtype=np.uint8))
        return codes
    parts = [packed >> np.uint8(shift) & np.uint8((1 << bits) - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, axis=-1).reshape(len(packed), -1)


def pack_pairs(codes: Bytes) -> Bytes:
    """Pack codes of 4 bits in pairs, the first in the low half: (n, codes) -> (n, codes / 2)."""
    packed: Bytes = codes[:, ::2] | codes[:, 1::2] << np.uint8(4)
    return packed


def as_bytes(words: NDArray[np.int32]) -> Bytes:
    """Return the bytes of each row of 32-bit words, lowest first: (n, words) -> (n, 4 · words)."""
    return np.ascontiguousarray(words, "<i4").view(np.uint8)


def make_in_pieces(rows: int, width: int, make: Callable[[slice], Bytes]) -> Bytes:
    """Make all rows, a few at a time if they are wide, which bounds memory."""
    return np.concatenate(
        [make(part) for part in _pieces(rows, max(_AT_ONCE // width, 8) // 8 * 8)]
    )


def _pieces(rows: int, step: int) -> Iterator[slice]:
    for first in range(0, rows, step):
        yield slice(first, min(first + step, rows))
