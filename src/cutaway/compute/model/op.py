"""The base class of a graph's operations, and the protocols by which they compute and are lowered.

The operations are in ``ops/``, each with its fields, the check of its shapes, and its definition.
This module knows none of them.
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
"""Rows of a matrix: its name, the first row, and the row after the last one."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A symbolic activation, (M, width), named after the op that computes it."""

    name: str
    width: int


@dataclass(frozen=True)
class Op:
    """One operation: its result, its inputs, and its weights by role; subclasses add the rest.

    A row of the result depends only on the same row of the inputs, except in a ``TokenMixer``.

    kind          the op's name, as ``inside`` shows it and native/ has it
    matrix_roles  the roles of weights that are matrices, to be packed; other weights are vectors
    is_stacked    whether each of these weights is several matrices, one for each expert or head
    is_linear     whether the result is linear in the last input, if the factors from the other
                  inputs, and a norm's size, are taken as constants
    _lower        makes the op's call in a plan, from a ``Lowering`` and a ``Site``
    _compute      the op's definition in NumPy, from a ``Run`` and the op's inputs
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
        """Compute the result, (M, width), from inputs of M rows."""
        y: Array = self._compute(run, *inputs)
        return y

    def lower(self, to: "Lowering", at: "Site") -> OpCall:
        """Return the op's call in a plan."""
        call: OpCall = self._lower(to, at)
        return call

    def matrices(self, shapes: Shapes) -> list[Slice]:
        """List the rows of matrices that the op reads, in the order in which they are packed."""
        slices = list[Slice]()
        for name in self.matrix_names:
            *count, rows, _ = (1, *shapes[name])  # files may have a vector of one row
            slices += [(name, i * rows, (i + 1) * rows) for i in range(np.prod(count, dtype=int))]
        return slices

    @property
    def matrix_names(self) -> list[str]:
        """The names of the op's matrices."""
        return [self.weights[role] for role in self.matrix_roles if role in self.weights]

    @property
    def vectors(self) -> list[str]:
        """The names of the weights that the op reads as vectors, in float32."""
        return [name for role, name in self.weights.items() if role not in self.matrix_roles]


@dataclass(frozen=True, kw_only=True)
class TokenMixer(Op):
    """An op whose result is a sum over tokens, linear in each token's value.

    layer: the depth of its layer, under which keys and values, or a state, of texts are stored; the
           layer's number, if the model runs each layer once
    """

    layer: int


# -- what a definition reads besides its inputs ----------------------------------------------------


class TextRows(NamedTuple):
    """The rows of one text in a batch.

    rows       for each row of the batch, whether it is a row of the text, (M,)
    positions  the position of each row of the text, (R,)
    limits     the last position that each row of the text may see, (R,)
    window_ends  the position back from which each row's windows count, (R,)
    hidden     for each position, the position of the first row that must not see it; None: no
               position is hidden
    read       returns keys and values (T, kv_heads, head_dim) of a layer at positions (T,)
    """

    rows: NDArray[np.bool_]
    positions: Ints
    limits: Ints
    window_ends: Ints
    hidden: Ints | None
    read: Callable[[int, NDArray[np.integer[Any]]], tuple[Array, Array]]


class Run(Protocol):
    """A batch of M rows: its tokens, the weights, and the keys, values and states stored so far."""

    @property
    def tokens(self) -> Ints:
        """Each row's token, (M,)."""

    @property
    def positions(self) -> Ints:
        """Each row's position in its text, (M,)."""

    @property
    def types(self) -> Ints:
        """The type of each row's token, (M,)."""

    @property
    def logit_rows(self) -> Ints:
        """The rows whose logits are wanted, (L,)."""

    def weight(self, name: str) -> Array:
        """Return a tensor by its name; matrices are (out, in)."""

    def note(self, name: str, value: Array) -> None:
        """Report a tensor that is not the result of an op; name: what to call it."""

    def store(self, layer: int, *keys_values: Array) -> None:
        """Store each row's keys, and its values if they are separate, (M, kv_heads · head_dim)."""

    def texts(self) -> Iterator[TextRows]:
        """Yield the texts of the batch."""

    def states(self, name: str, shape: tuple[int, ...]) -> Iterator[tuple[slice, Array]]:
        """Yield each text's rows, and a copy of the state ``name`` as it is before these rows."""

    def keep(self, name: str, row: int, state: Array) -> None:
        """Store the state after a row, if the batch asks for it."""


# -- what an op is lowered to: one call of a plan --------------------------------------------------


class Matrix(NamedTuple):
    """A backend's matrix; is_float: whether it reads activations unrounded."""

    number: int
    rows: int
    cols: int
    is_float: bool


class Site(NamedTuple):
    """Where an op of a plan reads and writes.

    late    whether the op computes only the rows whose logits are wanted
    reads   where the op's inputs are; widths: how wide each input is
    x       where the first input is: its floats, its quant blocks, or both
    """

    late: bool
    reads: list[View]
    widths: list[int]
    x: Places
    out: View


class Lowering(Protocol):
    """A plan that is being built, and the weights that it may read."""

    @property
    def context(self) -> int:
        """The most tokens of a text."""

    @property
    def farthest(self) -> int:
        """The largest distance between two tokens of a text in whole KV blocks."""

    def vector(self, name: str | None) -> Floats:
        """Return a vector by name; an empty one for None."""

    def matrices(self, op: Op, role: str = "weight") -> list[Matrix]:
        """Return the matrices that an op reads in this role: "weight", or "up", "gate", …."""

    def table(self, name: str) -> int:
        """Return the number of a table that stays in the file."""

    def rotation(self, name: str) -> Rotation:
        """Return how an attention must rotate an input."""

    def inner(self, name: str, width: int) -> View:
        """Return where the input of experts' down matrices is kept; NOWHERE if it is not kept."""
