"""One row's stream as a sum of parts, and each part as a sum over heads, positions or experts.

The factors of the last norm, and of norms and gates after heads, count as constants. Then a linear
function of the stream can be followed back to what was added to it. Each sum is checked against the
run.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cutaway.compute.backends import Inspectable
from cutaway.compute.model import Op
from cutaway.compute.model.anatomy import Anatomy, StreamPart
from cutaway.compute.model.ops.attention import Attend
from cutaway.compute.model.ops.linear import HeadsLinear, Linear
from cutaway.compute.model.ops.mixture import Experts
from cutaway.compute.model.ops.norms import NormOp
from cutaway.compute.model.ops.numbers import Gate, Scale
from cutaway.compute.model.ops.states import OwnValue
from cutaway.engine.interventions import Affine
from cutaway.errors import CutawayError
from cutaway.features.inside.layers import ValueWeights, choose_experts, expert_output, writes_along

Floats = NDArray[np.float64]
NEAR = 2e-6
"""The error that a sum in float32 may have, as a share of its terms' absolute sum."""
_STEP = 2.0**-24  # half the distance between 1 and the next float32
_NEAR_POSITIONS = 4e-5  # as NEAR: weights are recomputed with other exponentials
_NEAR_STATES = 2e-4  # as NEAR: the run kept the state in float32


class Direction(NamedTuple):
    """A linear function of a tensor, x ↦ along · x + constant, and the part that rounding adds.

    bypass  of heads whose state a token's own value passes by: what that value adds, (width,)
    """

    along: Floats
    constant: float = 0.0
    rounding: float = 0.0
    bypass: Floats | float = 0.0


class LayerAttribution(NamedTuple):
    """A layer's attributions by head, (heads,), and by position, (heads, positions).

    rounded  the effect of rounding the heads' outputs
    """

    heads: Floats
    positions: Floats
    rounded: float


@dataclass(frozen=True)
class Decomposition:
    """One row's tensors by name, with the attention weights and values of each layer that attends.

    states   the value weights of ops with a recurrent state, by the name of the op's output tensor;
             empty for a long text
    layers   the number of the model's layers
    length   the length of the text; a layer with a window has weights and values of fewer positions
    interventions  by tensor x: a · x + b, which the run computed before any op read the tensor
    """

    backend: Inspectable
    anatomy: Anatomy
    tensors: Mapping[str, NDArray[Any]]
    weights: Mapping[int, Floats]
    values: Mapping[int, NDArray[Any]]
    states: Mapping[str, ValueWeights]
    layers: int
    length: int
    interventions: Mapping[str, Affine]

    def __getitem__(self, name: str) -> Floats:
        return self.tensors[name].astype(np.float64)

    def side_by_side(self, attending: Mapping[int, Floats]) -> Floats:
        """Join layers' arrays (heads, n) as (layers, heads, length); unread positions are 0."""
        heads = max((len(x) for x in attending.values()), default=0)
        wide = np.zeros((self.layers, heads, self.length))
        for layer, x in attending.items():
            wide[layer, : len(x), self.length - x.shape[1] :] = x
        return wide

    # -- checks --------------------------------------------------------------------------------

    def add_up(self) -> None:
        """Raise CutawayError unless the parts add up to the last stream, number by number."""
        terms = [self.reach(part) * self.output(part) for part in self.anatomy.parts]
        terms += self.put_in.values()
        bound = 2 * len(terms) * _STEP * np.abs(terms).sum(axis=0)  # of float32, in any order
        if not (
            np.abs(np.sum(terms, axis=0) - self[self.anatomy.logit_rows.out.name]) <= bound
        ).all():
            raise CutawayError("the parts do not add up to the stream: this is a bug in cutaway")

    # -- interventions ---------------------------------------------------------------------------

    def output(self, part: StreamPart) -> Floats:
        """Return the vector that a part added to the stream, (hidden,)."""
        name = self.anatomy.added_tensors[part.name]
        if name in self.interventions:
            return self[name]
        return self.anatomy.factor_within(part) * self[part.op.out.name]

    def reach(self, part: StreamPart) -> Floats | float:
        """Return the factor of a part's output in the last stream.

        The factor includes that of later interventions.
        """
        factor: Floats | float = part.factor / self.anatomy.factor_within(part)
        first = self._first_stream if part.layer is None else part.layer + 1
        for i, change in self._stream_changes.items():
            if i >= first:
                factor = factor * change.factor
        return factor

    @cached_property
    def _stream_changes(self) -> dict[int, Affine]:
        """What becomes of all the stream before the first layer (0) and after each layer.

        The model scales it, or an intervention changes it, or both.
        """
        scales, changes = self.anatomy.stream_scales, {}
        for i, name in enumerate(self.anatomy.stream):
            scale = float(self.backend.weight(scales[i])[0]) if i in scales else 1.0
            if name in self.interventions:
                factor, offset = self.interventions[name]
                changes[i] = Affine(factor * scale, offset)
            elif i in scales:
                width = len(self.tensors[name])
                changes[i] = Affine(np.full(width, scale), np.zeros(width))
        return changes

    @property
    def _first_stream(self) -> int:
        """The index of the first stream in which parts are; earlier runs' come before it."""
        return self.anatomy.first_added and self.anatomy.first_added + 1

    @property
    def put_in(self) -> dict[str, Floats]:
        """The vectors that interventions added, by place, as they arrive in the last stream."""
        vectors: dict[str, Floats] = {}
        for i, change in self._stream_changes.items():
            if i >= self._first_stream:
                vectors = {place: change.factor * x for place, x in vectors.items()}
                if self.anatomy.stream[i] in self.interventions:
                    vectors[f"L{i - 1}.intervention"] = change.offset
        return vectors

    def _undo_intervention(self, name: str, after: Direction) -> Direction:
        """Turn a function of a tensor into a function of the tensor before its intervention."""
        if name not in self.interventions:
            return after
        change = self.interventions[name]
        constant = after.constant + float(after.along @ change.offset)
        return after._replace(along=after.along * change.factor, constant=constant)

    def _to_op(self, here: Direction, part: StreamPart) -> Direction:
        """Turn a function of what a part added into a function of the output of the part's op."""
        before = self._undo_intervention(self.anatomy.added_tensors[part.name], here)
        return before._replace(along=before.along * self.anatomy.factor_within(part))

    # -- from the stream to logits ---------------------------------------------------------------

    def find_direction(self, pair: tuple[int, int]) -> tuple[Direction, float]:
        """Return the function from the last stream to the difference of a pair's logits.

        Also return the sum of the absolute terms of that difference.
        """
        head, norm = self.anatomy.head, self.anatomy.norm
        first, second = (self._matrix(head, token, token + 1)[0] for token in pair)
        bias = 0.0
        if "bias" in head.weights:
            biases = self._bias(head)
            bias = float(biases[pair[0]] - biases[pair[1]])
        read = self[norm.out.name]
        size = float(((np.abs(first) + np.abs(second)) * np.abs(read)).sum())
        stored = [self._stored_rows(head, token, token + 1)[0] for token in pair]
        rounding = float((stored[0] - stored[1]) @ self._rounding(head))
        return self._to_norm_input(norm, Direction(first - second, bias, rounding)), size

    def heads(self, here: Direction, part: StreamPart) -> LayerAttribution | None:
        """Attribute a part to its heads; CutawayError where they do not add up to the part.

        Returns None for heads with a recurrent state in a text of more than 512 tokens.
        """
        mix, output = part.mixer, self.output(part)
        assert mix is not None
        is_attention = isinstance(mix, Attend)
        if not is_attention and mix.out.name not in self.states:
            return None
        after = self._to_heads(self._to_op(here, part), part)
        mixed = self._undo_intervention(mix.out.name, after._replace(constant=0.0))
        count = len(self.weights[mix.layer] if is_attention else self.states[mix.out.name].weights)
        along, directions = after.along.reshape(count, -1), mixed.along.reshape(count, -1)
        terms = along * self[mix.out.name].reshape(count, -1)
        by_head, constant = terms.sum(axis=-1), mixed.constant
        bypass = np.broadcast_to(after.bypass, after.along.shape).reshape(count, -1)
        if is_attention:
            layer = mix.layer
            positions = writes_along(self.weights[layer], self.values[layer], directions)
        else:
            state = self.states[mix.out.name]
            positions = state.project(directions)
            constant += float((state.constant * directions).sum())
        size = float(np.abs(terms).sum() + np.abs(bypass).sum() + np.abs(here.along * output).sum())
        whole = float(by_head.sum() + bypass.sum()) + after.constant + after.rounding
        check_sum(whole, float(here.along @ output), NEAR * size, f"the heads of {part.name}")
        sums = float(positions.sum()) + constant, float(by_head.sum())
        slack = _NEAR_POSITIONS if is_attention else _NEAR_STATES
        check_sum(*sums, slack * size, f"the positions of {part.name}")
        positions[:, -1] += bypass.sum(axis=-1)
        return LayerAttribution(by_head + bypass.sum(axis=-1), positions, after.rounding)

    def experts(self, here: Direction, part: StreamPart, mixture: Experts) -> dict[int, float]:
        """Attribute a part to its experts; CutawayError where they do not add up to the part."""
        x, scores = (self.tensors[name] for name in mixture.inputs)
        attributions, size, slack, op = {}, 0.0, 0.0, self._to_op(here, part)
        for expert, share in zip(*choose_experts(self.backend, scores, mixture), strict=True):
            expert_part = expert_output(self.backend, mixture, x, int(expert), float(share))
            attributions[int(expert)] = float(op.along @ expert_part.output)
            size += float(np.abs(op.along * expert_part.output).sum())
            slack += float(np.abs(op.along @ expert_part.matrix) @ expert_part.unsure)
        attribution = float(here.along @ self.output(part))
        check_sum(
            sum(attributions.values()) + op.constant,
            attribution,
            10 * NEAR * size + slack,
            f"the experts of {part.name}",
        )
        return attributions

    def _to_heads(self, here: Direction, part: StreamPart) -> Direction:
        """Turn a function of a part's output into a function of its heads' outputs."""
        for op in part.path[:-1]:
            if isinstance(op, Scale):
                here = here._replace(along=here.along * op.number)
            elif isinstance(op, Linear):
                stored = here.along @ self._stored_rows(op)
                along = here.along @ self._matrix(op) if op.loras else stored
                bias = float(self._bias(op) @ here.along) if "bias" in op.weights else 0.0
                rounding = here.rounding + float(stored @ self._rounding(op))
                here = Direction(along, here.constant + bias, rounding)
            elif isinstance(op, HeadsLinear):
                here = self._to_latents(op, here)
            elif isinstance(op, NormOp):
                here = self._to_norm_input(op, here)
            elif isinstance(op, OwnValue):
                bypass = op.bypass(*(self[name][None] for name in op.inputs[:-1]))
                here = here._replace(bypass=here.along * bypass[0])
            else:
                here = here._replace(along=here.along * self._factor(op))
        return here

    def _to_norm_input(self, norm: NormOp, after: Direction) -> Direction:
        """Turn a function of a norm's output into a function of its input.

        The size by which the norm divides counts as constant.
        """
        along = after.along * self._norm_factor(norm)
        if not norm.is_centred:
            return after._replace(along=along)
        groups, constant = along.reshape(-1, norm.group), after.constant
        if "bias" in norm.weights:
            bias = self._norm_weights(norm, "bias")
            constant += float((after.along.reshape(groups.shape) * bias).sum())
        groups = groups - groups.mean(axis=1, keepdims=True)
        return after._replace(along=groups.ravel(), constant=constant)

    def _to_latents(self, op: HeadsLinear, after: Direction) -> Direction:
        """Turn a function of what each head's own matrix gives into one of what it reads."""
        matrices = self._head_matrices(op)
        along = np.einsum("ho,hoi->hi", after.along.reshape(matrices.shape[:2]), matrices)
        x = self.tensors[op.inputs[0]].reshape(along.shape)
        read = self.backend.as_read(op.weights["weight"], x).astype(np.float64)
        rounding = after.rounding + float((along * (read - x)).sum())
        return after._replace(along=along.ravel(), rounding=rounding)

    def write_matrix(self, part: StreamPart) -> Floats:
        """The matrix through which a layer's heads write to the stream: (hidden, heads · dim)."""
        at, linear = next((i, op) for i, op in enumerate(part.path) if isinstance(op, Linear))
        matrix = part.factor * self._matrix(linear)
        for op in part.path[at + 1 : -1]:
            if isinstance(op, HeadsLinear):
                matrices = self._head_matrices(op)
                by_head = matrix.reshape(len(matrix), *matrices.shape[:2])
                matrix = np.einsum("nho,hoi->nhi", by_head, matrices).reshape(len(matrix), -1)
            else:
                matrix = matrix * self._factor(op)
        if part.path[-1].out.name in self.interventions:
            matrix = matrix * self.interventions[part.path[-1].out.name].factor
        for op in part.path[:at]:
            matrix = np.reshape(self._factor(op), (-1, 1)) * matrix
        if self.anatomy.added_tensors[part.name] in self.interventions:
            matrix = (
                self.interventions[self.anatomy.added_tensors[part.name]].factor[:, None] * matrix
            )
        return matrix

    def _factor(self, op: Op) -> Floats | float:
        """The factor of each number in a norm, a gate or a scale: (width,), or one for all."""
        if isinstance(op, Scale):
            return op.number
        if isinstance(op, Gate):
            share: Floats = op.share(self[op.inputs[0]])
            return share
        assert isinstance(op, NormOp)
        return self._norm_factor(op)

    # -- weights ---------------------------------------------------------------------------------

    def _norm_factor(self, norm: NormOp) -> Floats:
        """A norm's weights, each divided by the root mean square of its group of inputs."""
        groups = self[norm.inputs[0]].reshape(-1, norm.group)
        if norm.is_centred:
            groups = groups - groups.mean(axis=1, keepdims=True)
        size = np.sqrt(np.mean(groups * groups, axis=1, keepdims=True) + norm.eps)
        weight = self._norm_weights(norm, "weight") if "weight" in norm.weights else 1.0
        over: Floats = (weight / np.broadcast_to(size, groups.shape)).ravel()
        return over

    def _norm_weights(self, norm: NormOp, role: str) -> Floats:
        """A norm's weights or biases, which its groups may share: (groups or 1, numbers)."""
        return self.backend.weight(norm.weights[role]).astype(np.float64).reshape(-1, norm.group)

    def _matrix(self, op: Linear, first: int = 0, last: int | None = None) -> Floats:
        """Return rows ``first`` to ``last`` - 1 of an op's matrix with its LoRA adapters added."""
        matrix = self._stored_rows(op, first, last)
        for lora in op.loras:
            a = self.backend.weight(lora.a).astype(np.float64)
            matrix = matrix + lora.scale * (self._stored_rows(op, first, last, lora.b) @ a)
        return matrix

    def _head_matrices(self, op: HeadsLinear) -> Floats:
        """Return the matrix of each head: (heads, out, in)."""
        rows = self.backend.weight(op.weights["weight"]).astype(np.float64)
        heads = len(self.tensors[op.inputs[0]]) // rows.shape[-1]
        return rows.reshape(heads, -1, rows.shape[-1])

    def _stored_rows(
        self, op: Linear, first: int = 0, last: int | None = None, name: str = ""
    ) -> Floats:
        """Read rows ``first`` to ``last`` - 1 of an op's own matrix, or of its tensor ``name``."""
        begin, end = op.rows
        last = end if last is None else begin + last
        rows = self.backend.weight(name or op.weights["weight"], begin + first, last)
        return rows.astype(np.float64)

    def _bias(self, op: Linear) -> Floats:
        return self.backend.weight(op.weights["bias"], *op.rows).astype(np.float64)

    def _rounding(self, op: Op) -> Floats:
        """How rounding changes a matrix's input, (width,); adapters read the input unrounded."""
        x = self.tensors[op.inputs[0]]
        read = self.backend.as_read(op.weights["weight"], x[None])[0]
        rounding: Floats = read.astype(np.float64) - x
        return rounding


def check_sum(computed: float, expected: float, bound: float, label: str) -> None:
    """Raise CutawayError where a sum is off by more than ``bound``."""
    if not abs(computed - expected) <= bound:
        raise CutawayError(
            f"{label} add up to {computed:.6f} and not to {expected:.6f}: this is a bug in cutaway"
        )
