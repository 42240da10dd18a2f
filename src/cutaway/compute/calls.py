"""A plan as data: the calls that make it, with their arguments in the order of native/calls.cpp.

Arguments are numbers, booleans, strings, arrays and tuples of these; an optional argument is a
tuple of no element or of one. Calls name matrices, stored tables and buffers by number. Buffers are
numbered in the order of their calls; this module does not know the matrices and tables.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
View = tuple[int, int]
"""Where a tensor begins: the number of its buffer, and a column of the buffer."""
NOTHING: Floats = np.empty(0, np.float32)
NOWHERE: View = (-1, 0)
LANES = 16  # how many numbers a register has; a head with a state has a multiple of this in values
WIDEST_HEAD = 1024  # attend.cpp keeps a head's numbers on the stack
MOST_TAPS = 16  # kMostTaps in recurrent.cpp


class Places(NamedTuple):
    """Where a tensor's floats are, and the buffer with its quant blocks; one may be missing."""

    floats: View = NOWHERE
    act: int = -1


class Norm(NamedTuple):
    """A norm: a layer norm if it has a weight and a bias, an RMS norm if only a weight, else none.

    group: how many neighbouring numbers of a row are normed together
    limit: above 0, the norm only shortens numbers times weights to this length; see ``ClipNorm``
    """

    weight: Floats = NOTHING
    bias: Floats = NOTHING
    eps: float = 0.0
    group: int = 0
    limit: float = 0.0


class Rotation(NamedTuple):
    """How pairs of a head's numbers are rotated; see native/plan.h."""

    frequencies: Sequence[float] = ()
    rotate_half: bool = False
    attention_factor: float = 1.0
    growth: float = 0.0
    period: int = 1
    offset: int = 0
    is_smooth: bool = False


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
    causal: bool = False
    layer: int = 0
    reads: int = -1
    value_first: int = 0
    value_dim: int = 0

    @property
    def is_latent(self) -> bool:
        """Whether a value is a part of its key."""
        return self.value_dim > 0 and self.value_first >= 0

    @property
    def value_width(self) -> int:
        """How many numbers a head's value has."""
        return self.value_dim or self.head_dim


class RelativeBias(NamedTuple):
    """Biases by distance that are read from more inputs than queries and keys.

    per_head: how many numbers each input has for a head
    rows: which of them a distance adds (DeBERTa); if empty, only queries have an input, whose
          number d is added at distance d, and nothing beyond the last
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
    """One of the matrices of a ``LinearCall``; column: where in a row its input begins."""

    matrix: int
    out: View
    bias: Floats = NOTHING
    column: int = 0


class Finish(NamedTuple):
    """What becomes of products: they may be added to the output, or a gate may join two of them."""

    adds: bool = False
    gate: tuple[()] | tuple[str] = ()


class ConvWeights(NamedTuple):
    """The weights of a convolution: one for each tap and each number of a row, (taps, width).

    more: what each row adds to the weights of each of ``groups`` of its numbers, (groups, taps)
    """

    weight: Floats
    bias: Floats
    width: int
    taps: int
    more: View = NOWHERE
    groups: int = 1


class AddBuffer(NamedTuple):
    """Add a buffer whose rows have this many floats, or this many numbers in quant blocks."""

    width: int
    quantised: bool


class SetInput(NamedTuple):
    """Set where a batch's ``given`` rows are written."""

    x: View


class SetOutput(NamedTuple):
    """Set where the logits are."""

    x: View


# -- ops; late: whether only the rows whose logits are wanted are computed -------------------------


class EmbedRows(NamedTuple):
    """Look up rows of a matrix by each row's "token", "position" or "type"."""

    matrix: int
    out: View
    by: str


class EmbedStoredCall(NamedTuple):
    """Look up rows by token in a table that stays in the file."""

    table: int
    cols: int
    out: View


class Gather(NamedTuple):
    """Copy the rows whose logits are wanted, so that they are neighbours."""

    x: View
    out: View
    width: int


class JoinCall(NamedTuple):
    """Join rows group by group, a group of a before one of b; a, b: a view, and a group's size."""

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
    """Norm rows, or leave them as they are; write floats, quant blocks, or both."""

    late: bool
    x: View
    width: int
    norm: Norm
    out: Places


class SoftmaxCall(NamedTuple):
    """Turn each group of neighbouring numbers into shares, by their exponentials."""

    late: bool
    x: View
    width: int
    group: int
    out: View


class RotateCall(NamedTuple):
    """Write a rotated copy of heads; an ``AttendCall`` rotates its queries and keys in place."""

    x: View
    out: View
    heads: int
    head_dim: int
    rotation: Rotation


class Elementwise(NamedTuple):
    """An elementwise op; kind: its name in native/elementwise.def.

    spread: whether ``a`` has only one number for each row
    """

    late: bool
    kind: str
    a: View
    b: View
    number: float
    width: int
    out: View
    spread: bool = False


class LinearCall(NamedTuple):
    """Multiply one input by one or more matrices."""

    late: bool
    x: Places
    finish: Finish
    parts: Sequence[LinearPart]


class AttendCall(NamedTuple):
    """Rotate q and k, store k and v, then attend; views: q, k, v, out.

    sinks      for each head, a score that takes a share of the weights but has no value
    bias       for each head, the numbers that are added to scores, by distance
    row_sinks  where rows have sinks of their own
    """

    views: tuple[View, View, View, View]
    shape: AttendShape
    rotation: Rotation
    sinks: Floats = NOTHING
    bias: Floats = NOTHING
    relative: RelativeBias = RelativeBias()
    row_sinks: View = NOWHERE


class ExpertsArguments(NamedTuple):
    """The arguments of a mixture, without its matrices.

    inner: where the inputs of the experts' down matrices are kept, by rank; NOWHERE: they are not
    """

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


class MagnitudeCall(NamedTuple):
    """One number of each row: the root of the mean of its squares; is_centred: less its mean."""

    late: bool
    x: View
    width: int
    is_centred: bool
    out: View


class WeighCall(NamedTuple):
    """Multiply each number by a weight."""

    late: bool
    x: View
    weight: Floats
    out: View


class OwnValueCall(NamedTuple):
    """Add to y each head of v times the dot product of that head of a and b."""

    late: bool
    a: View
    b: View
    v: View
    y: View
    width: int
    size: int
    out: View


class ConvCall(NamedTuple):
    """A causal convolution: each number becomes its weighted sum over the last tokens."""

    x: View
    out: View
    weights: ConvWeights


class CentredConvCall(NamedTuple):
    """A centred convolution: each number becomes its weighted sum over the tokens around it."""

    x: View
    out: View
    weights: ConvWeights


class DeltaNetCall(NamedTuple):
    """A gated delta net; views: qkv, a, b, out.

    shape: k_heads, heads, keys, values, grouped, learn_factor
    a and dt: for each head, or for each of its keys
    """

    views: tuple[View, View, View, View]
    shape: tuple[int, int, int, int, bool, float]
    a: Floats
    dt: Floats


class Wkv(NamedTuple):
    """The heads of RWKV-7; views: v, r, keep, k, removed, loss, out; size: a head's numbers."""

    views: tuple[View, View, View, View, View, View, View]
    heads: int
    size: int


class Mamba(NamedTuple):
    """The heads of Mamba 2; views: vkq, dt, out; shape: k_heads, heads, keys, values.

    weights: for each head, its a, the bias of its step, and the factor of a value in the output
    """

    views: tuple[View, View, View]
    shape: tuple[int, int, int, int]
    weights: tuple[Floats, Floats, Floats]


class Mamba1(NamedTuple):
    """Mamba 1; views: x, dt, keys, queries, out.

    weights: a by key and column, and the factor of a number in the output by column
    """

    views: tuple[View, View, View, View, View]
    keys: int
    columns: int
    weights: tuple[Floats, Floats]


OpCall = (
    EmbedRows | EmbedStoredCall | Gather | JoinCall | ReorderCall | Normalise | MagnitudeCall
    | SoftmaxCall | RotateCall | Elementwise | LinearCall | AttendCall | ExpertsCall | ConvCall
    | CentredConvCall
    | DeltaNetCall | Wkv | Mamba | Mamba1 | WeighCall | OwnValueCall
)  # fmt: skip
Call = AddBuffer | SetInput | OpCall | SetOutput


def plain(calls: Sequence[Call]) -> list[tuple[Any, ...]]:
    """Return each call as a tuple of its name and its arguments, as native/calls.h reads it."""
    return [(type(call).__name__.removesuffix("Call"), *call) for call in calls]
