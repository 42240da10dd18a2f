"""Rewrites of tensors from transformers' layout to GGUF's.

Elements are moved, and changed by `add_one`, `over_column_norms` and `Multiplied` alone. Which
tensor needs which rewrite is in `families`.

Every rewrite takes the elements of a tensor, (rows, ...) or (rows,), and answers with an array
that may be a view.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import FormatError

Array = NDArray[Any]
Rewrite = Callable[[Array], Array]
Shape = tuple[int, ...]


def as_it_is(x: Array) -> Array:
    """No rewrite."""
    return x


def flat(x: Array) -> Array:
    """All elements in one row."""
    return x.reshape(-1)


def transposed(x: Array) -> Array:
    """GPT-2's Conv1D keeps (in, out) where a linear layer has (out, in)."""
    return x.T


def interleave_rope_rows(heads: int, rotated: int | None = None) -> Rewrite:
    """Rows of queries or keys, so that the two of a rotated pair are neighbours.

    transformers rotates row i of a head with row i + half; GGUF's llama with row i + 1.
    rotated: rows of each head that are; None: all
    """
    if rotated is None:
        return lambda x: _parts(x, heads, 2).swapaxes(1, 2).reshape(x.shape)

    def rewrite(x: Array) -> Array:
        each = _parts(x, heads, 1)[:, 0]  # (heads, rows, ...)
        first = each[:, :rotated].reshape(heads, 2, rotated // 2, *x.shape[1:]).swapaxes(1, 2)
        first = first.reshape(heads, rotated, *x.shape[1:])
        return np.concatenate([first, each[:, rotated:]], axis=1).reshape(x.shape)

    return rewrite


def queries_keys_values(heads: int) -> Rewrite:
    """GPT-NeoX keeps q, k, v of one head together; GGUF all queries, all keys, all values."""
    return lambda x: _parts(x, heads, 3).swapaxes(0, 1).reshape(x.shape)


@dataclass(frozen=True)
class WithoutFirst:
    """Drop the first rows of a matrix."""

    count: int

    def shape(self, shape: Shape) -> Shape:
        """Of the result."""
        return (max(shape[0] - self.count, 0), *shape[1:])

    def __call__(self, x: Array) -> Array:
        """The rows that are left."""
        return x[self.count :]


@dataclass(frozen=True)
class AsRow:
    """A vector as a matrix of one row."""

    def shape(self, shape: Shape) -> Shape:
        """Of the result."""
        return (1, *shape)

    def __call__(self, x: Array) -> Array:
        """The matrix."""
        return x.reshape(1, -1)


@dataclass(frozen=True)
class Half:
    """The first half of a matrix's rows, 0, or the second, 1."""

    which: int

    def shape(self, shape: Shape) -> Shape:
        """Of the result."""
        return (shape[0] // 2, *shape[1:])

    def __call__(self, x: Array) -> Array:
        """The rows of that half."""
        half = len(x) // 2
        return x[self.which * half : (self.which + 1) * half]


@dataclass(frozen=True)
class OfHeads:
    """Rows first … last - 1 of each head as matrices of their own: (heads, rows, columns).

    turned: (heads, columns, rows)
    """

    heads: int
    first: int
    last: int
    turned: bool = False

    def shape(self, columns: int) -> tuple[int, ...]:
        """Of the result."""
        rows = self.last - self.first
        return (self.heads, *((columns, rows) if self.turned else (rows, columns)))

    def __call__(self, x: Array) -> Array:
        """The matrices."""
        found = _parts(x, self.heads, 1)[:, 0, self.first : self.last]
        return found.swapaxes(1, 2) if self.turned else found


@dataclass(frozen=True)
class Squeezed:
    """A depthwise convolution's weights, (n, 1, taps), as a matrix; then its rows rewritten."""

    then: Rewrite = as_it_is

    def shape(self, shape: Shape) -> Shape:
        """Of the result; a bias stays a vector."""
        return (shape[0], shape[2]) if len(shape) == 3 and shape[1] == 1 else shape

    def __call__(self, x: Array) -> Array:
        """(n, taps)."""
        return self.then(x.reshape(len(x), -1))


@dataclass(frozen=True)
class Tiled:
    """Value heads that share a key head are neighbours in transformers, and apart in GGUF.

    There they are the first of each key head, then the second of each …
    size: rows of a head, of those after the first ``skip``
    """

    k_heads: int
    heads: int
    size: int = 1
    skip: int = 0

    def __call__(self, x: Array) -> Array:
        """The rows in GGUF's order."""
        heads = x[self.skip :].reshape(self.k_heads, self.heads // self.k_heads, self.size, -1)
        tiled = heads.swapaxes(0, 1).reshape(x[self.skip :].shape)
        return np.concatenate([x[: self.skip], tiled]) if self.skip else tiled


@dataclass(frozen=True)
class RowParts:
    """Rows come in groups, each of parts of these sizes: some parts, of all groups together.

    then: rewrites the result, whose shape stays
    """

    sizes: tuple[int, ...]
    wanted: tuple[int, ...]
    then: Rewrite = as_it_is

    def shape(self, shape: Shape) -> Shape:
        """Of the result."""
        each = sum(self.sizes[i] for i in self.wanted)
        return (shape[0] // sum(self.sizes) * each, *shape[1:])

    def __call__(self, x: Array) -> Array:
        """The first part of every group, then the second …"""
        if len(x) % sum(self.sizes):
            raise FormatError(f"a tensor of {len(x)} rows is no whole number of heads")
        groups = x.reshape(-1, sum(self.sizes), *x.shape[1:])
        ends = np.cumsum(self.sizes)
        parts = (groups[:, ends[i] - self.sizes[i] : ends[i]] for i in self.wanted)
        return self.then(np.concatenate([part.reshape(-1, *x.shape[1:]) for part in parts]))


@dataclass(frozen=True)
class GroupedVector:
    """A vector as a matrix of so many rows, or of as many as it has numbers; then rewritten."""

    groups: int | None = None
    then: Rewrite = as_it_is

    def shape(self, shape: Shape) -> Shape:
        """Of the result."""
        groups = self.groups or shape[0]
        if len(shape) != 1 or shape[0] % groups:
            raise FormatError(f"a tensor of the shape {shape} does not hold {groups} groups")
        return groups, shape[0] // groups

    def __call__(self, x: Array) -> Array:
        """(groups, numbers of each)."""
        return self.then(x).reshape(self.shape(x.shape))


@dataclass(frozen=True)
class Multiplied:
    """A float32 matrix times a number, or rows times their own.

    factors: (rows, factor) of each stretch of rows in order; rows 0: all
    """

    factors: tuple[tuple[int, float], ...]

    def __call__(self, x: Array) -> Array:
        """The products, in float32."""
        rows = [count or len(x) for count, _ in self.factors]
        if sum(rows) != len(x):
            raise FormatError(f"a tensor of {len(x)} rows has factors for {sum(rows)}")
        each = np.repeat(np.array([factor for _, factor in self.factors], np.float32), rows)
        return x.astype(np.float32) * each[:, None]


@dataclass(frozen=True)
class TiledColumns:
    """The same of a matrix's columns."""

    rows: Tiled

    def __call__(self, x: Array) -> Array:
        """The columns in GGUF's order."""
        return self.rows(x.T).T


def over_column_norms(x: Array) -> Array:
    """A matrix whose columns have length 1, nearly; x is float32."""
    lengths: Array = np.sqrt((x * x).sum(axis=0, keepdims=True))
    return x / (lengths + np.float32(1e-7))


def changes_matrices(rewrite: Rewrite) -> bool:
    """Whether a matrix has other numbers after it, and must be float32."""
    return isinstance(rewrite, Multiplied) or rewrite is over_column_norms


def minus_exp(x: Array) -> Array:
    """Files of transformers store the logarithm of what GGUF stores, without the sign."""
    return -np.exp(x)


def add_one(x: Array) -> Array:
    """Gemma's files store the difference of a norm's weights from 1; x is float32."""
    return x + np.float32(1)


def _parts(x: Array, heads: int, parts: int) -> Array:
    """The rows of each head, split: (heads, parts, rows, ...)."""
    if len(x) % (heads * parts):
        raise FormatError(f"a tensor of {len(x)} rows does not hold a whole number of heads")
    return x.reshape(heads, parts, len(x) // heads // parts, *x.shape[1:])
