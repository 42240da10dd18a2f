"""Rewrites of tensors from transformers' layout to GGUF's.

Elements are only moved, except by `Multiplied`, `divide_by_column_norms`, `add_one` and
`minus_exp`. `families` has the rewrite of each tensor.

Every rewrite takes the elements of a tensor, (rows, ...) or (rows,), and returns an array that may
be a view.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import FormatError

Array = NDArray[Any]
Rewrite = Callable[[Array], Array]
Shape = tuple[int, ...]


def as_it_is(x: Array) -> Array:
    """Return the tensor as it is."""
    return x


def flat(x: Array) -> Array:
    """Put all elements in one row."""
    return x.reshape(-1)


def transpose(x: Array) -> Array:
    """Transpose a matrix of GPT-2's Conv1D: it is (in, out), and a linear layer's (out, in)."""
    return x.T


def interleave_rope_rows(heads: int, rotated: int | None = None) -> Rewrite:
    """Reorder rows of queries or keys so that the two of a rotated pair are neighbours.

    transformers rotates row i of a head with row i + half; GGUF's llama with row i + 1.
    rotated: how many rows of each head are rotated; None: all
    """
    if rotated is None:
        return lambda x: _parts(x, heads, 2).swapaxes(1, 2).reshape(x.shape)

    def rewrite(x: Array) -> Array:
        per_head = _parts(x, heads, 1)[:, 0]  # (heads, rows, ...)
        first = per_head[:, :rotated].reshape(heads, 2, rotated // 2, *x.shape[1:]).swapaxes(1, 2)
        first = first.reshape(heads, rotated, *x.shape[1:])
        return np.concatenate([first, per_head[:, rotated:]], axis=1).reshape(x.shape)

    return rewrite


def swap_halves(heads: int) -> Rewrite:
    """Swap the first and the second half of each head's rows."""
    return lambda x: _parts(x, heads, 2)[:, ::-1].reshape(x.shape)


def swap_column_halves(x: Array) -> Array:
    """Swap the left and the right half of a matrix."""
    return np.roll(x, x.shape[1] // 2, axis=1)


def queries_keys_values(heads: int) -> Rewrite:
    """Reorder GPT-NeoX's rows so that all queries come first, then all keys, then all values.

    GPT-NeoX keeps the query, key and value of one head together.
    """
    return lambda x: _parts(x, heads, 3).swapaxes(0, 1).reshape(x.shape)


@dataclass(frozen=True)
class WithoutFirst:
    """A rewrite that drops the first rows of a matrix."""

    count: int

    def shape(self, shape: Shape) -> Shape:
        """Return the shape of the result."""
        return (max(shape[0] - self.count, 0), *shape[1:])

    def __call__(self, x: Array) -> Array:
        """Return the rows that are left."""
        return x[self.count :]


@dataclass(frozen=True)
class FirstRows:
    """A rewrite that drops the rows of a matrix after the first ``count``."""

    count: int

    def shape(self, shape: Shape) -> Shape:
        """Return the shape of the result."""
        return (min(shape[0], self.count), *shape[1:])

    def __call__(self, x: Array) -> Array:
        """Return the rows that are left."""
        return x[: self.count]


@dataclass(frozen=True)
class AsRow:
    """A rewrite of a vector to a matrix of one row."""

    def shape(self, shape: Shape) -> Shape:
        """Return the shape of the result."""
        return (1, *shape)

    def __call__(self, x: Array) -> Array:
        """Return the matrix."""
        return x.reshape(1, -1)


@dataclass(frozen=True)
class Half:
    """A rewrite that takes the first half of a matrix's rows (0), or the second half (1)."""

    index: int

    def shape(self, shape: Shape) -> Shape:
        """Return the shape of the result."""
        return (shape[0] // 2, *shape[1:])

    def __call__(self, x: Array) -> Array:
        """Return the rows of that half."""
        half = len(x) // 2
        return x[self.index * half : (self.index + 1) * half]


@dataclass(frozen=True)
class OfHeads:
    """A rewrite to a matrix for each head, of its rows first … last - 1: (heads, rows, columns).

    is_transposed: the result is (heads, columns, rows)
    """

    heads: int
    first: int
    last: int
    is_transposed: bool = False

    def shape(self, columns: int) -> tuple[int, ...]:
        """Return the shape of the result."""
        rows = self.last - self.first
        return (self.heads, *((columns, rows) if self.is_transposed else (rows, columns)))

    def __call__(self, x: Array) -> Array:
        """Return the matrices."""
        rows = _parts(x, self.heads, 1)[:, 0, self.first : self.last]
        return rows.swapaxes(1, 2) if self.is_transposed else rows


@dataclass(frozen=True)
class Squeezed:
    """A rewrite of a depthwise convolution's weights, (n, 1, taps), to a matrix.

    then: a rewrite of the matrix's rows
    dims: 2; or 4, with which the result is (1, n, 1, taps)
    """

    then: Rewrite = as_it_is
    dims: int = 2

    def shape(self, shape: Shape) -> Shape:
        """Return the shape of the result; a bias stays a vector."""
        if len(shape) != 3 or shape[1] != 1:
            return shape
        return (shape[0], shape[2]) if self.dims == 2 else (1, shape[0], 1, shape[2])

    def __call__(self, x: Array) -> Array:
        """Return the numbers in order, as rows of ``taps``."""
        return self.then(x.reshape(len(x), -1)).reshape(self.shape(x.shape))


class Taps(Squeezed):
    """``Squeezed``, also of weights (taps, n), in which those of the newest token come first."""

    def shape(self, shape: Shape) -> Shape:
        """Return the shape of the result."""
        return super().shape(shape) if len(shape) == 3 else shape[::-1]

    def __call__(self, x: Array) -> Array:
        """Return the weights, those of the oldest token first."""
        return super().__call__(x) if x.ndim == 3 else x[::-1].T


@dataclass(frozen=True)
class Tiled:
    """A rewrite of value heads: in transformers, those that share a key head are neighbours.

    GGUF has the first value head of each key head, then the second of each, and so on.
    size: rows of a head; skip: rows before the heads, which stay
    """

    k_heads: int
    heads: int
    size: int = 1
    skip: int = 0

    def __call__(self, x: Array) -> Array:
        """Return the rows in GGUF's order."""
        heads = x[self.skip :].reshape(self.k_heads, self.heads // self.k_heads, self.size, -1)
        tiled = heads.swapaxes(0, 1).reshape(x[self.skip :].shape)
        return np.concatenate([x[: self.skip], tiled]) if self.skip else tiled


@dataclass(frozen=True)
class RowParts:
    """A rewrite that takes the selected parts of all groups of rows.

    sizes: the number of rows of each part of a group
    then: a rewrite of the result that keeps the shape
    """

    sizes: tuple[int, ...]
    selected: tuple[int, ...]
    then: Rewrite = as_it_is

    def shape(self, shape: Shape) -> Shape:
        """Return the shape of the result."""
        rows = sum(self.sizes[i] for i in self.selected)
        return (shape[0] // sum(self.sizes) * rows, *shape[1:])

    def __call__(self, x: Array) -> Array:
        """Return the first selected part of every group, then the second of every group, …"""
        if len(x) % sum(self.sizes):
            raise FormatError(f"a tensor of {len(x)} rows is no whole number of heads")
        groups = x.reshape(-1, sum(self.sizes), *x.shape[1:])
        ends = np.cumsum(self.sizes)
        parts = (groups[:, ends[i] - self.sizes[i] : ends[i]] for i in self.selected)
        return self.then(np.concatenate([part.reshape(-1, *x.shape[1:]) for part in parts]))


@dataclass(frozen=True)
class GroupedVector:
    """A rewrite of a vector, first by ``then``, then to a matrix of ``groups`` rows.

    A vector may have dimensions of 1. groups: None: each number is a row
    """

    groups: int | None = None
    then: Rewrite = as_it_is

    def shape(self, shape: Shape) -> Shape:
        """Return the shape of the result."""
        size = prod(shape)
        groups = self.groups or size
        if size != max(shape) or size % groups:
            raise FormatError(f"a tensor of the shape {shape} does not hold {groups} groups")
        return groups, size // groups

    def __call__(self, x: Array) -> Array:
        """Return the matrix: (groups, numbers of each)."""
        return self.then(x).reshape(self.shape(x.shape))


@dataclass(frozen=True)
class Multiplied:
    """A rewrite that multiplies a float32 matrix by a number, or stretches of rows by several.

    factors: (rows, factor) of each stretch of rows in order; 0 rows stand for all rows
    """

    factors: tuple[tuple[int, float], ...]

    def __call__(self, x: Array) -> Array:
        """Return the products, in float32."""
        rows = [count or len(x) for count, _ in self.factors]
        if sum(rows) != len(x):
            raise FormatError(f"a tensor of {len(x)} rows has factors for {sum(rows)}")
        factors = np.repeat(np.array([factor for _, factor in self.factors], np.float32), rows)
        return x.astype(np.float32) * factors[:, None]


@dataclass(frozen=True)
class TiledColumns:
    """``Tiled`` for a matrix's columns."""

    rows: Tiled

    def __call__(self, x: Array) -> Array:
        """Return the columns in GGUF's order."""
        return self.rows(x.T).T


def divide_by_column_norms(x: Array) -> Array:
    """Divide columns by their lengths, so that these are nearly 1; x is float32."""
    lengths: Array = np.sqrt((x * x).sum(axis=0, keepdims=True))
    return x / (lengths + np.float32(1e-7))


def changes_matrices(rewrite: Rewrite) -> bool:
    """Whether a rewrite changes a matrix's numbers, which must then be float32."""
    return isinstance(rewrite, Multiplied) or rewrite in (divide_by_column_norms, minus_exp)


def minus_exp(x: Array) -> Array:
    """Return -exp(x): transformers stores log(a), and GGUF -a."""
    return -np.exp(x)


def add_one(x: Array) -> Array:
    """Return x + 1: Gemma's files store a norm's weights minus 1; x is float32."""
    return x + np.float32(1)


def _parts(x: Array, heads: int, parts: int) -> Array:
    """Split the rows of each head: (heads, parts, rows, ...)."""
    if len(x) % (heads * parts):
        raise FormatError(f"a tensor of {len(x)} rows does not hold a whole number of heads")
    return x.reshape(heads, parts, len(x) // heads // parts, *x.shape[1:])
