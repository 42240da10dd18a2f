"""Op: what each operation of a graph is, and says of itself; and what its definition reads.

The units are in ``ops/``, each with its fields, the check of its shapes, and its definition. Knows
none of them.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from cutaway.compute.calls import Floats, OpCall, Places, Rotation, View

Array = NDArray[np.float32]
Ints = NDArray[np.int32]
Shapes = Mapping[str, tuple[int, ...]]
"""A file's tensor table: name -> (rows, cols) or (size,)."""
Slice = tuple[str, int, int]
"""Rows of a matrix: its name, the first row, and the one after the last."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A symbolic activation, (M, width), named after the op that makes it."""

    name: str
    width: int


@dataclass(frozen=True)
class Op:
    """One operation: the tensor it makes, its inputs, its weights by role; a subclass has the rest.

    A row of its result depends on the same row of its inputs alone, except of a ``TokenMixer``.

    kind          its name, in a model's inside as in native/
    matrix_roles  the weights that are matrices, to be packed; the others are read as numbers
    is_stacked    whether these are several matrices each, of experts or heads
    is_linear     whether its result is linear in its last input, where what a row makes of the
                  others, and a norm's size, are constants
    _lower        the call of a plan that it becomes, of a ``Lowering`` and a ``Site``
    _compute      its definition in NumPy, of a ``Run`` and of its inputs
    """

    kind: ClassVar[str] = ""
    matrix_roles: ClassVar[tuple[str, ...]] = ()
    is_stacked: ClassVar[bool] = False
    is_linear: ClassVar[bool] = False
    _compute: ClassVar[Callable[..., Any]]
    _lower: ClassVar[Callable[..., Any]]

    out: Tensor
    inputs: tuple[str, ...] = ()
    weights: Mapping[str, str] = field(default_factory=dict)

    def __init_subclass__(cls, kind: str = "") -> None:
        cls.kind = kind or cls.kind

    def compute(self, run: "Run", *inputs: Array) -> Array:
        """Return the result, (M, width), of inputs likewise."""
        y: Array = self._compute(run, *inputs)
        return y

    def lower(self, to: "Lowering", at: "Site") -> OpCall:
        """Return the call of a plan that it becomes."""
        call: OpCall = self._lower(to, at)
        return call

    def matrices(self, shapes: Shapes) -> list[Slice]:
        """Return the rows of matrices that it reads, in the order in which they are packed."""
        slices = list[Slice]()
        for name in self.matrix_names:
            *count, rows, _ = (1, *shapes[name])  # files may have a vector of one row
            slices += [(name, i * rows, (i + 1) * rows) for i in range(np.prod(count, dtype=int))]
        return slices

    @property
    def matrix_names(self) -> list[str]:
        """The tensors that hold its matrices."""
        return [self.weights[role] for role in self.matrix_roles if role in self.weights]

    @property
    def vectors(self) -> list[str]:
        """The tensors that it reads as numbers."""
        return [name for role, name in self.weights.items() if role not in self.matrix_roles]


@dataclass(frozen=True, kw_only=True)
class TokenMixer(Op):
    """An op whose result is a sum over tokens, linear in what each of them gives.

    layer: its number, under which something is kept of each text
    """

    layer: int


# -- what a definition reads beside its inputs -----------------------------------------------------


class TextRows(NamedTuple):
    """The rows of one text in a batch.

    rows       which they are, (M,)
    positions  of each, (R,)
    limits     the last position that each may see, (R,)
    hidden     by position: that of the first row which it is hidden from; None: none is
    read       keys and values (T, kv_heads, head_dim) of a layer, at positions (T,)
    """

    rows: NDArray[np.bool_]
    positions: Ints
    limits: Ints
    hidden: Ints | None
    read: Callable[[int, NDArray[np.integer[Any]]], tuple[Array, Array]]


class Run(Protocol):
    """A batch of M rows: its tokens, the weights, and what earlier batches left."""

    @property
    def tokens(self) -> Ints:
        """(M,)."""

    @property
    def positions(self) -> Ints:
        """Each token's position in its text, (M,)."""

    @property
    def types(self) -> Ints:
        """Each token's type, (M,)."""

    @property
    def logit_rows(self) -> Ints:
        """The rows whose logits are wanted, (L,)."""

    def weight(self, name: str) -> Array:
        """A tensor by its name; matrices are (out, in)."""

    def note(self, name: str, value: Array) -> None:
        """Tell of numbers that are no op's result."""

    def store(self, layer: int, *keys_values: Array) -> None:
        """Keep keys, and values, of each row, (M, kv_heads · head_dim)."""

    def texts(self) -> Iterator[TextRows]:
        """The texts of the batch."""

    def states(self, name: str, shape: tuple[int, ...]) -> Iterator[tuple[slice, Array]]:
        """Each text's rows, and the state of this name before them, to be changed at will."""

    def keep(self, name: str, row: int, state: Array) -> None:
        """Store a state as it is after a row, if the batch wants it stored there."""


# -- what it is lowered to: one call of a plan -----------------------------------------------------


class Matrix(NamedTuple):
    """A matrix that a backend keeps; is_float: it reads activations unrounded."""

    number: int
    rows: int
    cols: int
    is_float: bool


class Site(NamedTuple):
    """Where an op of a plan reads and writes.

    late    whether it has a row per wanted logit alone
    reads   its inputs, and how wide each is
    x       the first of them, in the forms that are read
    """

    late: bool
    reads: list[View]
    widths: list[int]
    x: Places
    out: View


class Lowering(Protocol):
    """A plan that is being made, and the weights that it may read. farthest: a text's distance."""

    @property
    def context(self) -> int:
        """How many tokens a text may have."""

    @property
    def farthest(self) -> int:
        """The largest distance in a text of whole KV blocks."""

    def vector(self, name: str | None) -> Floats:
        """Numbers by name; none for None."""

    def matrices(self, op: Op, role: str = "weight") -> list[Matrix]:
        """The matrices an op reads under this name of its weights: "weight", or "up", "gate", …."""

    def table(self, name: str) -> int:
        """The number of a table that stays in the file."""

    def rotation(self, name: str) -> Rotation:
        """How an attention is to rotate an input."""

    def inner(self, name: str, width: int) -> View:
        """Where what the last matrices of experts read is left, if it is."""
