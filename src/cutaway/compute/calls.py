"""A plan as data: the calls that make it, with their arguments in the order of native/calls.cpp.

Arguments are numbers, booleans, strings, arrays and tuples of these; an optional one is a tuple of
none or one. Calls name matrices, stored tables and buffers by number. Buffers are numbered in the
order of their calls; this module does not know the matrices and tables.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
View = tuple[int, int]
"""Where a tensor begins: the number of its buffer, and the column."""
NOTHING: Floats = np.empty(0, np.float32)
NOWHERE: View = (-1, 0)
LANES = 16  # numbers of a register; a head with a state has a multiple of as many values
WIDEST_HEAD = 1024  # attend.cpp keeps a head's numbers on the stack
MOST_TAPS = 16  # kMostTaps of recurrent.cpp


class Places(NamedTuple):
    """A tensor's floats, the buffer of its quant blocks, or both."""

    floats: View = NOWHERE
    act: int = -1


class Norm(NamedTuple):
    """A weight alone: RMS norm; a weight and a bias: layer norm; none: no norm.

    group: how many neighbouring numbers of a row are normed together
    """

    weight: Floats = NOTHING
    bias: Floats = NOTHING
    eps: float = 0.0
    group: int = 0


class Rotation(NamedTuple):
    """How pairs of a head's numbers are rotated; see native/plan.h."""

    frequencies: Sequence[float] = ()
    rotate_half: bool = False
    attention_factor: float = 1.0
    growth: float = 0.0
    period: int = 1
    offset: int = 0


class AttendShape(NamedTuple):
    """The sizes of an attention; see native/ops.h."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    softcap: float
    window: int
    reach: int
    chunked: bool = False
    layer: int = 0
    reads: int = -1
    value_first: int = 0
    value_dim: int = 0


class RelativeBias(NamedTuple):
    """Biases by distance, from inputs beside queries and keys (DeBERTa).

    per_head: how many numbers a head has; rows: for each distance, which of these is added
    """

    of_query: View = NOWHERE
    of_key: View = NOWHERE
    per_head: int = 0
    rows: Sequence[int] = ()


class ExpertsChoice(NamedTuple):
    """How experts are chosen and weighed: the fields of a ``Mixture``, and the choice's bias."""

    used: int
    gating: str
    normed: bool
    scale: float
    groups: int
    used_groups: int
    best_of_group: int
    activation: str
    limit: float
    weighs_input: bool
    tolerance: float
    bias: Floats = NOTHING


class Biased(NamedTuple):
    """A matrix, by its number, and the bias that is added to its products."""

    matrix: int
    bias: Floats = NOTHING


class Expert(NamedTuple):
    """The matrices of an expert; some experts have no gate."""

    gate: tuple[()] | tuple[Biased]
    up: Biased
    down: Biased


class LinearPart(NamedTuple):
    """One of the matrices of a ``LinearCall``; column: the first number that it reads of a row."""

    matrix: int
    out: View
    bias: Floats = NOTHING
    column: int = 0


class Finish(NamedTuple):
    """The last step of a product: added to its output, or, of two matrices, joined by a gate."""

    adds: bool = False
    gate: tuple[()] | tuple[str] = ()


class ConvWeights(NamedTuple):
    """A weight for each tap and each number of a row: (taps, width)."""

    weight: Floats
    bias: Floats
    width: int
    taps: int


class AddBuffer(NamedTuple):
    """Rows of so many floats, or of numbers in quant blocks."""

    width: int
    quantised: bool


class SetInput(NamedTuple):
    """Where a batch's ``given`` rows are written."""

    x: View


class SetOutput(NamedTuple):
    """Where the logits are."""

    x: View


# -- ops; late: computed only for the rows whose logits are wanted ---------------------------------


class EmbedRows(NamedTuple):
    """Rows of a matrix by "token", "position" or "type"."""

    matrix: int
    out: View
    by: str


class EmbedStoredCall(NamedTuple):
    """Rows, by token, of a table that stays in the file."""

    table: int
    cols: int
    out: View


class Gather(NamedTuple):
    """The rows whose logits are wanted, side by side."""

    x: View
    out: View
    width: int


class JoinCall(NamedTuple):
    """Numbers of a, then of b, group by group; a, b: a view, and how many numbers a group has."""

    late: bool
    a: tuple[View, int]
    b: tuple[View, int]
    groups: int
    out: View


class ReorderCall(NamedTuple):
    """Reorder each row: number i of the result is number ``order[i]`` of x."""

    late: bool
    x: View
    order: Sequence[int]
    out: View


class Normalise(NamedTuple):
    """A norm, or none; its result is written as floats, as quant blocks, or as both."""

    late: bool
    x: View
    width: int
    norm: Norm
    out: Places


class RotateCall(NamedTuple):
    """A rotated copy; ``Attend`` does it in place."""

    x: View
    out: View
    heads: int
    head_dim: int
    rotation: Rotation


class Elementwise(NamedTuple):
    """An elementwise op; kind: of native/elementwise.def; spread: a has one number for a row."""

    late: bool
    kind: str
    a: View
    b: View
    number: float
    width: int
    out: View
    spread: bool = False


class LinearCall(NamedTuple):
    """One or more matrices on one input."""

    late: bool
    x: Places
    finish: Finish
    parts: Sequence[LinearPart]


class AttendCall(NamedTuple):
    """Rotate q and k, store k and v, attend; views: q, k, v, out.

    sinks  for each head, a score that takes a share of the weights but has no value
    bias   for each head, numbers that are added to scores, by distance
    """

    views: tuple[View, View, View, View]
    shape: AttendShape
    rotation: Rotation
    sinks: Floats = NOTHING
    bias: Floats = NOTHING
    relative: RelativeBias = RelativeBias()


class ExpertsArguments(NamedTuple):
    """inner: where the inputs of the experts' down matrices are kept, by rank; or nowhere."""

    late: bool
    x: Places
    scores: View
    choice: ExpertsChoice
    out: View
    inner: View = NOWHERE


class ExpertsCall(NamedTuple):
    """A mixture of experts."""

    arguments: ExpertsArguments
    experts: Sequence[Expert]


class ConvCall(NamedTuple):
    """A causal convolution: each number's weighted sum over the last tokens."""

    x: View
    out: View
    weights: ConvWeights


class DeltaNetCall(NamedTuple):
    """A gated delta net; views: qkv, a, b, out; shape: k_heads, heads, keys, values, grouped."""

    views: tuple[View, View, View, View]
    shape: tuple[int, int, int, int, bool]
    a: Floats
    dt: Floats


class Mamba(NamedTuple):
    """The heads of Mamba 2; views: vkq, dt, out; shape: k_heads, heads, keys, values.

    weights: for each head a, the bias of its step, and the factor of a value in the output
    """

    views: tuple[View, View, View]
    shape: tuple[int, int, int, int]
    weights: tuple[Floats, Floats, Floats]


OpCall = (
    EmbedRows | EmbedStoredCall | Gather | JoinCall | ReorderCall | Normalise | RotateCall
    | Elementwise | LinearCall | AttendCall | ExpertsCall | ConvCall | DeltaNetCall | Mamba
)  # fmt: skip
Call = AddBuffer | SetInput | OpCall | SetOutput


def plain(calls: Sequence[Call]) -> list[tuple[Any, ...]]:
    """Return each call as a tuple: its name, then its arguments, as native/calls.h reads them."""
    return [(type(call).__name__.removesuffix("Call"), *call) for call in calls]
