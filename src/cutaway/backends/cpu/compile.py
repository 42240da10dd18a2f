"""From a graph to a native plan: fuse, place buffers, bind packed weights.

Knows which neighbouring ops become one:
* linear layers on one input (q, k, v; gate, up) read it once, quantised once;
* silu_mul is the epilogue of its two linear layers, a residual add that of its one;
* rope belongs to the attention that it feeds, and quantising to the norm before it.
What follows the last attention works row by row, so it is done only for rows whose logits
are wanted. Refuses to know how any of it is computed (native/).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway import _native
from cutaway.errors import FormatError
from cutaway.model import Graph, Op, Tensor
from cutaway.model.rope import frequencies

View = tuple[int, int]  # buffer, column
NOWHERE: View = (-1, 0)


@dataclass
class Lowered:
    """One native op before its buffers are placed: tensors by name, or names with a suffix."""

    kind: str
    reads: list[str]
    writes: list[tuple[str, int, bool]]  # name, width, quantised
    ops: list[Op] = field(default_factory=list)
    in_place: str | None = None  # the tensor whose buffer the (only) result takes over


def quantised(name: str) -> str:
    """The name of a tensor's quantised twin."""
    return f"{name} as int8"


def gather_early(ops: list[Op]) -> list[Op]:
    """Move the choice of rows from the end to right behind the last attention. Same bits."""
    kinds = [op.kind for op in ops]
    if not {"attend", "logit_rows"} <= set(kinds):
        return ops
    chosen = kinds.index("logit_rows")
    first = chosen - kinds[chosen::-1].index("attend") + 1  # of the ops that work row by row
    made = {op.out.name: op.out for op in ops[:first]}
    needed = dict.fromkeys(n for op in ops[first:chosen] for n in op.inputs if n in made)
    rows = {name: Tensor(f"{name} rows", made[name].width) for name in needed}
    late = {name: tensor.name for name, tensor in rows.items()}
    late[ops[chosen].out.name] = late.get(ops[chosen].inputs[0], ops[chosen].inputs[0])
    return [
        *ops[:first],
        *(Op("logit_rows", tensor, (name,)) for name, tensor in rows.items()),
        *(
            replace(op, inputs=tuple(late.get(n, n) for n in op.inputs))
            for op in (*ops[first:chosen], *ops[chosen + 1 :])
        ),
    ]


class Compiler:
    """Lowers one graph, op by op, to calls of a native plan."""

    def __init__(
        self, graph: Graph, weights: Mapping[str, Any], vectors: Mapping[str, NDArray[np.float32]]
    ) -> None:
        """weights: packed matrices by tensor name; vectors: norms and biases, float32."""
        self.ops, self.weights, self.vectors = gather_early(graph.ops), weights, vectors
        self.consumers: dict[str, list[Op]] = {}
        for op in self.ops:
            for name in op.inputs:
                self.consumers.setdefault(name, []).append(op)
        self.maker = {op.out.name: op for op in self.ops}
        self.done: set[str] = set()
        self.lowered: list[Lowered] = []
        self.after_rows: set[str] = set()  # tensors that have a row per wanted logit
        self.views: dict[str, str] = {}  # a rope's result is its input's buffer

    def lower(self) -> list[Lowered]:
        """The fused ops in order."""
        for op in self.ops:
            if op.out.name not in self.done:
                getattr(self, f"_{op.kind}")(op)
        return self.lowered

    # -- one method per kind of op ---------------------------------------------------------------

    def _emit(
        self, kind: str, ops: list[Op], reads: list[str], out: list[Tensor], **more: Any
    ) -> None:
        self.done.update(op.out.name for op in ops)
        if kind == "logit_rows" or any(
            r.removesuffix(" as int8") in self.after_rows for r in reads
        ):
            self.after_rows.update(t.name for t in out)
        writes = [(t.name, t.width, False) for t in out]
        self.lowered.append(Lowered(kind, reads, writes, ops, **more))

    def _embed(self, op: Op) -> None:
        self._emit("embed", [op], [], [op.out])

    def _logit_rows(self, op: Op) -> None:
        self._emit("logit_rows", [op], list(op.inputs), [op.out])

    def _rms_norm(self, op: Op) -> None:
        self._emit("rms_norm", [op], list(op.inputs), [op.out])

    def _rope(self, op: Op) -> None:
        self.views[op.out.name] = op.inputs[0]  # rotated in place by the attention
        self.done.add(op.out.name)

    def _attend(self, op: Op) -> None:
        self._emit("attend", [op], [self.views.get(n, n) for n in op.inputs], [op.out])

    def _linear(self, op: Op) -> None:
        x = op.inputs[0]
        group = [o for o in self.consumers[x] if o.kind == "linear" and o.out.name not in self.done]
        reads = [x] if any(self._is_float(o) for o in group) else []
        if any(not self._is_float(o) for o in group):
            self._quantise(x, op)
            reads.append(quantised(x))
        fused = self._silu_of(group) or self._residual_of(group)
        if fused is None:
            self._emit("linear", group, reads, [o.out for o in group])
        elif fused.kind == "silu_mul":
            gate, up = (self.maker[name] for name in fused.inputs)
            self._emit("silu_mul", [gate, up, fused], reads, [fused.out])
        else:
            base = next(n for n in fused.inputs if n != group[0].out.name)
            ops = [group[0], fused]
            self._emit("add", ops, [*reads, base], [fused.out], in_place=base)

    def _silu_of(self, group: list[Op]) -> Op | None:
        if len(group) != 2:
            return None
        (after,) = {id(o): o for g in group for o in self.consumers[g.out.name]}.values()
        names = {g.out.name for g in group}
        return after if after.kind == "silu_mul" and set(after.inputs) == names else None

    def _residual_of(self, group: list[Op]) -> Op | None:
        if len(group) != 1 or len(self.consumers.get(group[0].out.name, [])) != 1:
            return None
        (after,) = self.consumers[group[0].out.name]
        bases = [n for n in after.inputs if n != group[0].out.name]
        last = len(bases) == 1 and self.consumers[bases[0]][-1] is after
        return after if after.kind == "add" and last else None

    def _quantise(self, x: str, before: Op) -> None:
        """Let the norm that makes x quantise it too, or quantise it just before its first use."""
        width = self.maker[x].out.width
        if width % 32:
            raise FormatError(f"{before.out.name}: {width} inputs are not a multiple of 32")
        made = self.lowered[-1]
        if made.kind == "rms_norm" and made.ops[0].out.name == x:
            only = all(o.kind == "linear" and not self._is_float(o) for o in self.consumers[x])
            made.writes = ([] if only else made.writes) + [(quantised(x), width, True)]
        else:
            self.lowered.append(Lowered("quantise", [x], [(quantised(x), width, True)]))

    def _is_float(self, op: Op) -> bool:
        return bool(self.weights[op.weights["weight"]].is_float)

    def _silu_mul(self, op: Op) -> None:
        raise FormatError(f"{op.out.name}: silu_mul of two tensors that no linear layers make")

    def _add(self, op: Op) -> None:
        raise FormatError(f"{op.out.name}: an add that follows no linear layer")


class Placement:
    """Which buffer each tensor lives in: a linear scan that reuses a buffer once it is free."""

    def __init__(self, lowered: list[Lowered], output: str) -> None:
        self.where: dict[str, int] = {}
        self.slots: list[tuple[int, bool]] = []  # width, quantised
        last = {name: i for i, op in enumerate(lowered) for name in op.reads}
        free: list[int] = []
        for i, op in enumerate(lowered):
            for name, width, is_quantised in op.writes:
                if op.in_place is not None:
                    self.where[name] = self.where[op.in_place]
                elif name == output:
                    self.where[name] = self._new(width, is_quantised)  # rows lie side by side
                else:
                    self.where[name] = self._reuse(free, width, is_quantised)
            for name in op.reads:
                if last[name] == i and name != op.in_place:
                    free.append(self.where[name])

    def _new(self, width: int, is_quantised: bool) -> int:
        self.slots.append((width, is_quantised))
        return len(self.slots) - 1

    def _reuse(self, free: list[int], width: int, is_quantised: bool) -> int:
        fitting = [slot for slot in free if self.slots[slot][1] == is_quantised]
        if not fitting:
            return self._new(width, is_quantised)
        slot = max(fitting, key=lambda s: self.slots[s][0])
        free.remove(slot)
        self.slots[slot] = (max(width, self.slots[slot][0]), is_quantised)
        return slot


class Emitter:
    """Writes lowered ops into a native plan."""

    def __init__(self, compiler: Compiler, plan: _native.Plan) -> None:
        self.c, self.plan = compiler, plan
        lowered = compiler.lower()
        output = compiler.ops[-1].out.name
        placement = Placement(lowered, output)
        self.buffers = [plan.buffer(*slot) for slot in placement.slots]
        self.where = placement.where
        for op in lowered:
            getattr(self, f"_{op.kind}")(op)
        plan.output(self._view(output))

    def _view(self, name: str) -> View:
        return self.buffers[self.where[name]], 0

    def _inputs(self, op: Lowered) -> tuple[View, int]:
        """Where a linear op finds its floats and its quant blocks; NOWHERE and -1: none."""
        floats, act = NOWHERE, -1
        for name in op.reads:
            if name == op.in_place:
                continue
            if name.endswith(" as int8"):
                act = self._view(name)[0]
            else:
                floats = self._view(name)
        return floats, act

    def _part(self, op: Op, out: str) -> tuple[Any, View, list[float]]:
        bias = self.c.vectors[op.weights["bias"]].tolist() if "bias" in op.weights else []
        return self.c.weights[op.weights["weight"]], self._view(out), bias

    def _is_late(self, op: Lowered) -> bool:
        return op.writes[0][0].removesuffix(" as int8") in self.c.after_rows

    def _embed(self, op: Lowered) -> None:
        table = self.c.weights[op.ops[0].weights["weight"]]
        self.plan.embed(table, self._view(op.writes[0][0]))

    def _logit_rows(self, op: Lowered) -> None:
        self.plan.gather(self._view(op.reads[0]), self._view(op.writes[0][0]), op.writes[0][1])

    def _rms_norm(self, op: Lowered) -> None:
        weight = self.c.vectors[op.ops[0].weights["weight"]]
        self._normalise(op, weight, op.ops[0].attrs["eps"])

    def _quantise(self, op: Lowered) -> None:
        self._normalise(op, np.empty(0, np.float32), 0.0)

    def _normalise(self, op: Lowered, weight: NDArray[np.float32], eps: float) -> None:
        out, act = NOWHERE, -1
        for name, _, is_quantised in op.writes:
            if is_quantised:
                act = self._view(name)[0]
            else:
                out = self._view(name)
        width = op.writes[0][1]
        self.plan.normalise(
            self._is_late(op), self._view(op.reads[0]), width, weight, eps, out, act
        )

    def _linear(self, op: Lowered) -> None:
        parts = [self._part(o, o.out.name) for o in op.ops]
        self.plan.linear(self._is_late(op), *self._inputs(op), "store", parts)

    def _silu_mul(self, op: Lowered) -> None:
        parts = [self._part(o, op.writes[0][0]) for o in op.ops[:2]]
        self.plan.linear(self._is_late(op), *self._inputs(op), "silu_mul", parts)

    def _add(self, op: Lowered) -> None:
        parts = [self._part(op.ops[0], op.writes[0][0])]
        self.plan.linear(self._is_late(op), *self._inputs(op), "add", parts)

    def _turns(self, op: Op) -> list[float]:
        """By how much a rope turns each pair; empty where the op is none."""
        if op.kind != "rope":
            return []
        factors = op.weights.get("factors")
        return frequencies(op.attrs, None if factors is None else self.c.vectors[factors].tolist())

    def _attend(self, op: Lowered) -> None:
        a = op.ops[0].attrs
        of_q, of_k = (self._turns(self.c.maker[name]) for name in op.ops[0].inputs[:2])
        if of_q != of_k:
            raise FormatError(f"{op.writes[0][0]}: q and k must be rotated alike")
        q, k, v = (self._view(name) for name in op.reads)
        out = self._view(op.writes[0][0])
        shape = (a["heads"], a["kv_heads"], a["head_dim"], of_q)
        self.plan.attend(q, k, v, out, *shape, a["head_dim"] ** -0.5, softcap=0.0, window=0)
