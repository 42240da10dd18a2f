"""The parts of a graph: the residual stream, what is added to it, attention.

Found by walking back from the last norm through every addition, so it holds for any architecture.
"""

import re
from dataclasses import dataclass
from functools import cached_property

from cutaway.compute.model.graph import Graph, Op
from cutaway.errors import InputError

_BY_ROW = ("linear", "heads_linear", "mul", "silu_mul", "sigmoid_mul", "rms_norm", "scale")
"""What may come between an attention, or an op with a state, and what is added to the stream."""
MIXES = ("attend", "delta_net", "mamba2", "conv")
"""Ops whose result is a sum over tokens, linear in what each of them gives."""
GATED = ("silu_mul", "sigmoid_mul", "mul")
"""Ops that multiply their second input by what the row itself makes of the first."""


@dataclass(frozen=True)
class StreamPart:
    """One term of the residual stream: ``factor`` times an op's result.

    name   "embedding", "positions", "L3.attn", "L3.mlp", "L3.conv", "L3.delta_net"; "L3.shared" is
           what all rows go through beside the experts of "L3.mlp"
    layer  None for terms before the first layer
    path   the ops from this one back to the attention, or the op with a state, that it comes from,
           both included; empty for a term that comes from none by one matrix, norms and gates
    """

    name: str
    layer: int | None
    op: Op
    factor: float
    path: tuple[Op, ...]


@dataclass(frozen=True)
class Anatomy:
    """The parts of one graph. InputError where layers do not add to one stream."""

    graph: Graph

    @cached_property
    def maker(self) -> dict[str, Op]:
        """The op that gives each tensor."""
        return {op.out.name: op for op in self.graph.ops}

    @cached_property
    def chosen(self) -> Op:
        """The op that picks the rows that want logits from the stream."""
        return next(op for op in self.graph.ops if op.kind == "logit_rows")

    @cached_property
    def norm(self) -> Op:
        """The last norm, which the head reads."""
        return self.maker[self.head.inputs[0]]

    @cached_property
    def head(self) -> Op:
        """The matrix that gives logits."""
        after = self.graph.ops[self.graph.ops.index(self.chosen) + 1 :]
        norm, head, *_ = after
        kinds = norm.kind in ("rms_norm", "layer_norm"), head.kind == "linear"
        if not all(kinds) or (norm.inputs, head.inputs) != (
            (self.chosen.out.name,),
            (norm.out.name,),
        ):
            raise InputError(
                "this architecture cannot be looked into: it has no norm before its head"
            )
        return head

    @cached_property
    def attends(self) -> tuple[Op, ...]:
        """The attention of each layer."""
        found = (op for op in self.graph.ops if op.kind == "attend")
        return tuple(sorted(found, key=lambda op: int(op.attrs["layer"])))

    @cached_property
    def heads(self) -> dict[int, tuple[Op, int]]:
        """By layer: the op whose result has that of each head side by side, and a head's width.

        Of a layer that attends it is attention; of others a delta net or Mamba 2, if they have one.
        """
        found = {}
        for op in self.graph.ops:
            if op.kind in ("delta_net", "mamba2"):
                found[op.attrs["layer"]] = op, op.attrs["state"][2]
        return found | {op.attrs["layer"]: (op, op.attrs["head_dim"]) for op in self.attends}

    @cached_property
    def values(self) -> dict[int, tuple[str, int, int, int]]:
        """By layer: the tensor with each token's values, their first column there, a value's width
        and how many there are. Of a layer that attends they are its keys' companions.
        """
        found = {}
        for op in self.graph.ops:
            if op.kind in ("delta_net", "mamba2"):
                heads, keys, width = op.attrs["state"]
                first = 2 * op.attrs["k_heads"] * keys if op.kind == "delta_net" else 0
                found[op.attrs["layer"]] = op.inputs[0], first, width, heads
        for op in self.attends:
            found.pop(op.attrs["layer"], None)
            if len(op.inputs) > 2:  # else it reads another layer's, or latents
                of = op.attrs["head_dim"], op.attrs["kv_heads"]
                found[op.attrs["layer"]] = op.inputs[2], 0, *of
        return found

    @cached_property
    def parts(self) -> tuple[StreamPart, ...]:
        """The terms whose sum the stream is, in the order of the graph."""
        found, open_ = [], [(self.chosen.inputs[0], 1.0)]
        while open_:
            name, factor = open_.pop()
            op = self.maker[name]
            if op.kind == "add":
                open_ += [(each, factor) for each in op.inputs]
            elif op.kind == "scale":
                open_.append((op.inputs[0], factor * op.attrs["factor"]))
            else:
                found.append(self._part(op, factor))
        return tuple(sorted(found, key=lambda part: self._place[part.op.out.name]))

    def check_paths(self) -> None:
        """InputError unless each attention reaches the stream by one matrix, norms and gates."""
        reached = [part.path[-1].kind for part in self.parts if part.path]
        if reached.count("attend") < len(self.attends):
            raise InputError(
                "what a head adds is told of models whose attention has one matrix behind it; "
                "this one's reads latents: its weights and the lens can be shown"
            )

    @cached_property
    def added(self) -> dict[str, str]:
        """By part: the tensor that is added to the stream, its factor included."""
        scaled = {op.inputs[0]: op.out.name for op in self.graph.ops if op.kind == "scale"}
        found = {}
        for part in self.parts:
            name = part.op.out.name
            while name in scaled:
                name = scaled[name]
            found[part.name] = name
        return found

    def factor_within(self, part: StreamPart) -> float:
        """The factor by which the op's result is multiplied before it is added to the stream."""
        factor, name = 1.0, self.added[part.name]
        while name != part.op.out.name:
            op = self.maker[name]
            factor, name = factor * op.attrs["factor"], op.inputs[0]
        return factor

    @cached_property
    def stream(self) -> tuple[str, ...]:
        """The tensors that are the stream before the first layer and after each."""
        after: dict[int, str] = {}
        name = self.chosen.inputs[0]
        while (op := self.maker[name]).kind == "add":
            stream, branch = op.inputs
            if self._base(branch).kind == "add":
                stream, branch = branch, stream
            layer = self._part(self._base(branch), 1.0).layer
            if layer is None:  # positions, added to the embedding
                break
            after.setdefault(layer, name)
            name = stream
        return (name, *(after[layer] for layer in sorted(after)))

    @cached_property
    def _place(self) -> dict[str, int]:
        return {op.out.name: i for i, op in enumerate(self.graph.ops)}

    def _base(self, name: str) -> Op:
        """The op that makes a tensor, without the scales after it."""
        while (op := self.maker[name]).kind == "scale":
            name = op.inputs[0]
        return op

    def _part(self, op: Op, factor: float) -> StreamPart:
        if op.kind in ("embed", "embed_positions"):
            name = "embedding" if op.kind == "embed" else "positions"
            return StreamPart(name, None, op, factor, ())
        path = self._path(op)
        if op.kind == "scale_by":
            raise InputError(
                "this architecture cannot be looked into: each layer multiplies all of its stream"
            )
        numbered = re.match(r"blk\.(\d+)\.", op.out.name)
        if not numbered:
            raise InputError(f"this architecture cannot be looked into: it adds {op.out.name}")
        layer, kind = int(numbered[1]), self._kind(path[-1] if path else op)
        if kind == "mlp" and self._is_beside_experts(op, layer):
            kind = "shared"
        return StreamPart(f"L{layer}.{kind}", layer, op, factor, path)

    def _kind(self, op: Op) -> str:
        """What it comes from: "attn", the kind of an op with a state, or "mlp"."""
        open_ = [op]
        while open_:
            op = open_.pop()
            if not op.is_by_row:
                return "attn" if op.kind == "attend" else op.kind
            if op.kind in _BY_ROW:
                open_ += [self.maker[name] for name in op.inputs]
        return "mlp"

    def _is_beside_experts(self, op: Op, layer: int) -> bool:
        while op.kind in ("rms_norm", "layer_norm"):  # of experts and what is beside them
            op = self.maker[op.inputs[0]]
        if op.kind == "add":
            return False
        others = (o for o in self.graph.ops if o.kind == "experts" and o is not op)
        return any(o.out.name.startswith(f"blk.{layer}.") for o in others)

    def _path(self, op: Op) -> tuple[Op, ...]:
        """The ops back through norms, scales, gates and one matrix to one of MIXES; else empty."""
        path = [op]
        while path[-1].kind in ("rms_norm", "layer_norm", "scale", "linear", *GATED):
            path.append(self.maker[path[-1].inputs[-1]])
        linear = sum(step.kind == "linear" for step in path)
        return tuple(path) if path[-1].kind in MIXES and linear == 1 else ()
