"""The parts of a graph: the residual stream, the terms that are added to it, attention.

In any architecture they are found by walking back from the last norm through every addition.
"""

import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from cutaway.compute.model.graph import Graph, Op
from cutaway.compute.model.op import TokenMixer
from cutaway.compute.model.ops.attention import Attend
from cutaway.compute.model.ops.convolutions import TokenShift
from cutaway.compute.model.ops.linear import Linear
from cutaway.compute.model.ops.mixture import Experts
from cutaway.compute.model.ops.norms import NormOp
from cutaway.compute.model.ops.numbers import Add, Scale, ScaleBy
from cutaway.compute.model.ops.rows import EmbedPositions, EmbedTokens, EmbedTypes, LogitRows
from cutaway.compute.model.ops.shapes import Pick
from cutaway.compute.model.ops.states import HeadStates
from cutaway.errors import InputError


@dataclass(frozen=True)
class StreamPart:
    """One term of the residual stream: ``factor`` times an op's result.

    name   "embedding", as the stream begins with it, normed in some models; "positions", "L3.attn",
           "L3.mlp", "L3.conv", "L3.delta_net"; "L3.shared" is the MLP of all rows in addition to
           the experts of "L3.mlp"; "L3.embedding" what a layer adds of an embedding of its own;
           "slow.1" is a state of a looped model
    layer  None for terms before the first layer
    path   the ops from ``op`` back to the ``TokenMixer`` (attention, or an op with a state) from
           which the term comes, both included; empty if there is anything between but one matrix,
           one more of each head, norms and gates
    """

    name: str
    layer: int | None
    op: Op
    factor: float
    path: tuple[Op, ...]

    @property
    def mixer(self) -> TokenMixer | None:
        """The attention, or the op with a state, at the end of the path; None without a path."""
        mixer = self.path[-1] if self.path else None
        return mixer if isinstance(mixer, TokenMixer) else None


class LayerRun(NamedTuple):
    """A layer by the number in its weights' names, and which of its runs it is; the first is 1."""

    layer: int
    run: int


@dataclass(frozen=True)
class Anatomy:
    """The parts of one graph; finding them raises InputError if layers do not add to one stream."""

    graph: Graph

    @cached_property
    def maker(self) -> dict[str, Op]:
        """Tensor -> the op that computes it."""
        return {op.out.name: op for op in self.graph.ops}

    @cached_property
    def logit_rows(self) -> Op:
        """The op that chooses the rows of the stream whose logits are wanted."""
        return next(op for op in self.graph.ops if isinstance(op, LogitRows))

    @cached_property
    def norm(self) -> NormOp:
        """The last norm, which the head reads."""
        return self._end[0]

    @cached_property
    def head(self) -> Linear:
        """The linear layer that computes logits."""
        return self._end[1]

    @cached_property
    def _end(self) -> tuple[NormOp, Linear]:
        norm, head, *_ = self.graph.ops[self.graph.ops.index(self.logit_rows) + 1 :]
        reads = (norm.inputs, head.inputs) == ((self.logit_rows.out.name,), (norm.out.name,))
        if reads and isinstance(norm, NormOp) and isinstance(head, Linear):
            return norm, head
        raise InputError("this architecture cannot be looked into: it has no norm before its head")

    @cached_property
    def attends(self) -> tuple[Attend, ...]:
        """The attention of each layer."""
        return tuple(sorted(self.graph.attends, key=lambda op: op.layer))

    @cached_property
    def heads(self) -> dict[int, tuple[Op, int]]:
        """Layer -> the op whose result has the results of its heads side by side; a head's width.

        The op is the layer's attention, or else the op whose heads have states; if a layer has
        neither, it has no entry.
        """
        states: dict[int, tuple[Op, int]] = {op.layer: (op, op.state[2]) for op in self._states}
        return states | {op.layer: (op, op.value_dim) for op in self.attends}

    @cached_property
    def values(self) -> dict[int, tuple[str, int, int, int]]:
        """Layer -> the tensor with each token's values, their first column, width and count.

        A layer whose attention stores no values of its own has no entry.
        """
        values = {}
        for net in self._states:
            heads, _, width = net.state
            values[net.layer] = net.inputs[0], net.first_value, width, heads
        for op in self.attends:
            values.pop(op.layer, None)
            if op.reads is None and op.values_from is None:
                values[op.layer] = op.inputs[2], 0, op.value_dim, op.heads.kv
        return values

    @property
    def _states(self) -> list[HeadStates]:
        return [op for op in self.graph.ops if isinstance(op, HeadStates)]

    @cached_property
    def parts(self) -> tuple[StreamPart, ...]:
        """The terms whose sum is the stream that the head reads, in the order of the graph."""
        return self._parts_of(self._ends[0])

    def _parts_of(self, end: str) -> tuple[StreamPart, ...]:
        parts = (self._part(op, factor) for op, factor in self._terms(end))
        return tuple(sorted(parts, key=lambda part: self._place[part.op.out.name]))

    def _terms(self, end: str) -> list[tuple[Op, float]]:
        """Return the ops whose results a stream is the sum of, each with its factor.

        Factors of ``stream_scales`` are not in it.
        """
        terms, open_ = [], [(end, 1.0)]
        while open_:
            name, factor = open_.pop()
            op = self.maker[name]
            if isinstance(op, Add):
                open_ += [(term, factor) for term in op.inputs]
            elif isinstance(op, Scale):
                open_.append((op.inputs[0], factor * op.number))
            elif self._is_scaled_stream(op):
                open_.append((op.inputs[0], factor))
            else:
                terms.append((op, factor))
        return terms

    @cached_property
    def _ends(self) -> list[str]:
        """The stream that the head reads; in a looped model, those at the end of earlier runs, too.

        There each run of a stack has a stream, and its normed end is a term of later ones.
        """
        ends = [self.logit_rows.inputs[0]]
        for end in ends:
            states = (op.inputs[0] for op, _ in self._terms(end) if self._is_state(op))
            ends += [state for state in states if state not in ends]
        return ends

    def _is_state(self, op: Op) -> bool:
        """Whether an op norms the stream at the end of a run."""
        is_norm = isinstance(op, NormOp) and _layer_number(op.out.name) is None
        return is_norm and isinstance(self._base(op.inputs[0]), Add)

    @cached_property
    def stream_scales(self) -> dict[int, str]:
        """The weight by which all of the stream is scaled, by depth (0: before the first layer)."""
        ops = ((i, self.maker[name]) for i, name in enumerate(self.stream))
        return {i: op.weights["factor"] for i, op in ops if isinstance(op, ScaleBy)}

    def _is_scaled_stream(self, op: Op) -> bool:
        return isinstance(op, ScaleBy) and isinstance(self._base(op.inputs[0]), Add)

    def _is_embedding(self, op: Op) -> bool:
        """Whether an op looks up the tokens' embedding, or norms it."""
        while isinstance(op, (NormOp, Scale)):
            op = self.maker[op.inputs[0]]
        return isinstance(op, EmbedTokens)

    @cached_property
    def first_added(self) -> int:
        """The depth of the first layer that adds to the last stream; above 0 in looped models."""
        return min((part.layer for part in self.parts if part.layer is not None), default=0)

    def check_paths(self) -> None:
        """Raise InputError if more than ``StreamPart.path`` allows is behind an attention."""
        reached = [part for part in self.parts if isinstance(part.mixer, Attend)]
        if len(reached) < sum(op.layer >= self.first_added for op in self.attends):
            raise InputError(
                "what a head adds is told of models whose attention has one matrix behind it, and "
                "one of each head; this one's has more: its weights and the lens can be shown"
            )

    @cached_property
    def added_tensors(self) -> dict[str, str]:
        """Part -> the tensor that is added to the stream; the part's factor is included."""
        scaled = {op.inputs[0]: op.out.name for op in self.graph.ops if isinstance(op, Scale)}
        tensors = {}
        for part in (part for end in self._ends for part in self._parts_of(end)):
            name = part.op.out.name
            while name in scaled:
                name = scaled[name]
            tensors[part.name] = name
        return tensors

    def factor_within(self, part: StreamPart) -> float:
        """Return the factor by which the op's result is multiplied before it joins the stream."""
        factor, name = 1.0, self.added_tensors[part.name]
        while name != part.op.out.name:
            op = self.maker[name]
            assert isinstance(op, Scale)
            factor, name = factor * op.number, op.inputs[0]
        return factor

    @cached_property
    def stream(self) -> tuple[str, ...]:
        """The tensors that are the stream before the first layer and after each layer, by depth."""
        after: dict[int, str] = {}
        begins = [self._note_layers(end, after) for end in self._ends]
        first = min(begins, key=self._place.__getitem__)
        return (first, *(after[layer] for layer in sorted(after)))

    def _note_layers(self, name: str, after: dict[int, str]) -> str:
        """Note the stream after each layer of a run; return the stream before the run."""
        while isinstance(op := self._stream_sum(name), Add):
            stream, branch = op.inputs
            if isinstance(self._stream_sum(self._base(branch).out.name), Add):
                stream, branch = branch, stream
            layer = self._part(self._base(branch), 1.0).layer
            if layer is None:  # positions, added to the embedding, or a state
                break
            after.setdefault(layer, name)
            name = stream
        return name

    def _stream_sum(self, name: str) -> Op:
        """Return the op that computes a tensor, or what a scale of all the stream reads."""
        op = self.maker[name]
        return self.maker[op.inputs[0]] if self._is_scaled_stream(op) else op

    @cached_property
    def runs(self) -> dict[int, LayerRun]:
        """Depth -> the layer that runs there; a place's number is its depth, as in "L3.attn"."""
        counts, runs = Counter[int](), dict[int, LayerRun]()
        for op in self.graph.ops:
            depth, numbers = _layer_number(op.out.name), map(_layer_number, op.weights.values())
            layer = next((number for number in numbers if number is not None), None)
            if depth is not None and layer is not None and depth not in runs:
                counts[layer] += 1
                runs[depth] = LayerRun(layer, counts[layer])
        return runs

    @cached_property
    def _place(self) -> dict[str, int]:
        return {op.out.name: i for i, op in enumerate(self.graph.ops)}

    def _base(self, name: str) -> Op:
        """Return the op that computes a tensor, without the scales after it."""
        while isinstance(op := self.maker[name], Scale):
            name = op.inputs[0]
        return op

    def _part(self, op: Op, factor: float) -> StreamPart:
        if self._is_embedding(op):
            return StreamPart("embedding", None, op, factor, ())
        if isinstance(op, EmbedPositions):
            return StreamPart("positions", None, op, factor, ())
        if self._is_state(op) or isinstance(op, EmbedTypes):
            return StreamPart(op.out.name, None, op, factor, ())
        path = self._path(op)
        layer = _layer_number(op.out.name)
        if layer is None:
            raise InputError(f"this architecture cannot be looked into: it adds {op.out.name}")
        kind = self._kind(path[-1] if path else op)
        if kind == "mlp" and self._is_beside_experts(op, layer):
            kind = "shared"
        return StreamPart(f"L{layer}.{kind}", layer, op, factor, path)

    def _kind(self, op: Op) -> str:
        """Name the origin of an op's result: "attn", the kind of an op with a state, or "mlp".

        It is "embedding" if a layer picks its own from those of all layers. In RWKV an MLP, too,
        reads a mix of a token and the one before.
        """
        open_ = [op]
        while open_:
            op = open_.pop()
            if isinstance(op, Pick) and _layer_number(op.inputs[0]) is None:
                return "embedding"
            if isinstance(op, TokenMixer) and not isinstance(op, TokenShift):
                return "attn" if isinstance(op, Attend) else op.kind
            if not isinstance(op, Add):  # else it is the stream, or several terms
                open_ += [self.maker[name] for name in op.inputs]
        return "mlp"

    def _is_beside_experts(self, op: Op, layer: int) -> bool:
        while isinstance(op, NormOp):  # a norm of experts and of what is beside them
            op = self.maker[op.inputs[0]]
        if isinstance(op, Add):
            return False
        return any(mixture is not op for mixture in self._mixtures.get(layer, ()))

    @cached_property
    def _mixtures(self) -> dict[int | None, list[Experts]]:
        """The mixtures of each layer."""
        mixtures: dict[int | None, list[Experts]] = {}
        for op in self.graph.ops:
            if isinstance(op, Experts):
                mixtures.setdefault(_layer_number(op.out.name), []).append(op)
        return mixtures

    def _path(self, op: Op) -> tuple[Op, ...]:
        """Return the ops from this op back to a ``TokenMixer``.

        The result is empty if more than one matrix, norms and gates is between.
        """
        path = [op]
        while path[-1].is_linear:
            path.append(self.maker[path[-1].inputs[-1]])
        matrices = sum(isinstance(step, Linear) for step in path)
        return tuple(path) if isinstance(path[-1], TokenMixer) and matrices == 1 else ()


def _layer_number(name: str) -> int | None:
    """Return the number of the layer in a name such as blk.3.attn_q; None: there is none."""
    numbered = re.match(r"blk\.(\d+)\.", name)
    return int(numbered[1]) if numbered else None
