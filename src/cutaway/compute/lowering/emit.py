"""From lowered ops to the calls that make a plan, bound to buffers and weights.

Knows lifetimes, and that a buffer must not be written before every thread has read it. Which ops
are fused is decided before.
"""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import numpy as np

from cutaway.base import _native
from cutaway.base.arithmetic import plainly
from cutaway.compute.lowering import calls
from cutaway.compute.lowering.calls import NOTHING, NOWHERE, Biased, Call, Expert, Places, View
from cutaway.compute.lowering.compile import INT8, GraphCompiler, Lowered
from cutaway.compute.lowering.weights import WeightTable
from cutaway.compute.model import Graph, Op
from cutaway.compute.model.ops.numbers import Scale
from cutaway.compute.model.positions import GrowingRope
from cutaway.errors import FormatError

INNER = ".inner"  # see ``Inspectable.tap``
_LANES = 16
_WIDEST_HEAD = 1024  # attend.cpp keeps a head's numbers on the stack
_MOST_TAPS = 16  # kMostTaps of recurrent.cpp
PLAIN = calls.Finish()


class Emitter:
    """The calls that make a plan of a graph.

    calls   of the whole plan
    after   by tensor: the number of ops that make it, itself and all before it
    widths  of tensors that the graph does not have
    """

    @plainly
    def __init__(
        self,
        compiler: GraphCompiler,
        context: int,
        *,
        kept: bool = False,
        also: Iterable[str] = (),
    ) -> None:
        """kept: no buffer is shared, so that every tensor can be read after the run.

        also: tensors that can be read then
        """
        self.c, self._context, self._kept = compiler, context, kept
        lowered = compiler.lower()
        output = compiler.ops[-1].out.name
        placement = Placement(lowered, output, kept=kept, also=also)
        self._buffers = [calls.AddBuffer(*slot) for slot in placement.slots]
        self._where = placement.where
        self._inputs, self._ops = list[calls.SetInput](), list[calls.Op]()
        self.widths: dict[str, int] = {}
        self.after: dict[str, int] = {}
        for op in lowered:
            getattr(self, f"_{op.kind}")(op)
            self.after |= dict.fromkeys((name for name, _, _ in op.writes), len(self._ops))
        out = calls.SetOutput(self.view(output))
        self.calls: list[Call] = [*self._buffers, *self._inputs, *self._ops, out]

    def view(self, name: str) -> View:
        """The place of a tensor, from the end of its op until the buffer is written over."""
        return self._where[name], 0

    def has(self, name: str) -> bool:
        """Whether the plan computes a tensor."""
        return name in self._where

    def _places(self, names: Iterable[str]) -> Places:
        """Of a tensor that has the first of these names as floats, the other as quant blocks."""
        floats, act = NOWHERE, -1
        for name in names:
            if name.endswith(INT8):
                act = self.view(name)[0]
            else:
                floats = self.view(name)
        return Places(floats, act)

    def _part(self, op: Any, out: str) -> calls.LinearPart:
        bias = self.c.vectors[op.weights["bias"]] if "bias" in op.weights else NOTHING
        return calls.LinearPart(self._matrix(op), self.view(out), bias[slice(*op.rows)])

    def _matrix(self, op: Op) -> int:
        [matrix] = self.c.weights.of(op, self.c.graph)
        return matrix.number

    def _is_late(self, op: Lowered) -> bool:
        return op.writes[0][0].removesuffix(INT8) in self.c.after_rows

    def _embed(self, op: Lowered) -> None:
        made, out = op.ops[0], self.view(op.writes[0][0])
        by = {"embed": "token", "embed_positions": "position", "embed_types": "type"}[made.kind]
        self._ops.append(calls.EmbedRows(self._matrix(made), out, by))

    _embed_positions = _embed_types = _embed

    def _embed_stored(self, op: Lowered) -> None:
        made = op.ops[0]
        table = self.c.weights.stored.index(made.weights["weight"])
        self._ops.append(calls.EmbedStored(table, made.out.width, self.view(made.out.name)))

    def _given(self, op: Lowered) -> None:
        self._inputs.append(calls.SetInput(self.view(op.writes[0][0])))

    def _logit_rows(self, op: Lowered) -> None:
        x, (out, width, _) = op.reads[0], op.writes[0]
        self._ops.append(calls.Gather(self.view(x), self.view(out), width))

    def _reorder(self, op: Lowered) -> None:
        order = self.c.vectors[op.ops[0].weights["order"]].astype(np.int32)
        x, out = self.view(op.reads[0]), self.view(op.writes[0][0])
        self._ops.append(calls.Reorder(self._is_late(op), x, order.tolist(), out))

    def _norm(self, op: Lowered) -> None:
        norm: Any = op.ops[0]
        group = norm.group
        named = norm.weights.get("weight")
        weight = np.ones(group, np.float32) if named is None else self.c.vectors[named].ravel()
        bias = NOTHING
        if norm.is_centred:  # a native norm is one by its having a bias
            named = norm.weights.get("bias")
            bias = np.zeros_like(weight) if named is None else self.c.vectors[named]
        self._normalise(op, calls.Norm(weight, bias, norm.eps, group))

    def _quantise(self, op: Lowered) -> None:
        self._normalise(op, calls.Norm())

    def _normalise(self, op: Lowered, norm: calls.Norm) -> None:
        out = self._places(name for name, _, _ in op.writes)
        x, width = self.view(op.reads[0]), op.writes[0][1]
        self._ops.append(calls.Normalise(self._is_late(op), x, width, norm, out))

    def _elementwise(self, op: Lowered) -> None:
        made: Any = op.ops[0]
        a, b = [*(self.view(name) for name in op.reads), NOWHERE][:2]
        number, kind = made.number, made.kind
        if "factor" in made.weights:  # of ``scale_by``: a scale by what a tensor has
            number, kind = float(self.c.vectors[made.weights["factor"]][0]), Scale.kind
        out, spread = self.view(made.out.name), self.c.is_spread(made)
        late, width = self._is_late(op), made.out.width
        self._ops.append(calls.Elementwise(late, kind, a, b, number, width, out, spread))

    def _linear(self, op: Lowered) -> None:
        self._multiply(op, op.reads, [self._part(o, o.out.name) for o in op.ops])

    def _gate(self, op: Lowered) -> None:
        parts = [self._part(o, op.writes[0][0]) for o in op.ops[:2]]
        self._multiply(op, op.reads, parts, calls.Finish(gate=(op.ops[2].kind,)))

    def _residual(self, op: Lowered) -> None:
        parts = [self._part(op.ops[0], op.writes[0][0])]
        reads = [name for name in op.reads if name != op.in_place]
        self._multiply(op, reads, parts, calls.Finish(adds=True))

    def _multiply(
        self,
        op: Lowered,
        reads: list[str],
        parts: list[calls.LinearPart],
        finish: calls.Finish = PLAIN,
    ) -> None:
        self._ops.append(calls.Linear(self._is_late(op), self._places(reads), finish, parts))

    def _experts(self, op: Lowered) -> None:
        made: Any = op.ops[0]
        inner = NOWHERE
        x, scores = op.reads
        up, down = self._of_experts(made, "up"), self._of_experts(made, "down")
        gates: list[tuple[()] | tuple[Biased]] = [()] * len(up)
        if "gate" in made.weights:
            gates = [(gate,) for gate in self._of_experts(made, "gate")]
        if self._kept:
            inner = self._inner(made, self.c.weights.of(made, self.c.graph, "up")[0].rows)
        bias = self.c.vectors.get(made.weights.get("choosing_bias", ""), NOTHING)
        choice = calls.ExpertsChoice(**asdict(made.mixture), bias=bias)
        places, out = self._places([x]), self.view(made.out.name)
        how = calls.ExpertsArguments(
            self._is_late(op), places, self.view(scores), choice, out, inner
        )
        every = [Expert(*matrices) for matrices in zip(gates, up, down, strict=True)]
        self._ops.append(calls.Experts(how, every))

    def _of_experts(self, op: Op, role: str) -> list[Biased]:
        """Each expert's matrix in a role, and its bias."""
        matrices = self.c.weights.of(op, self.c.graph, role)
        bias = op.weights.get(f"{role}_bias")
        biases = [NOTHING] * len(matrices) if bias is None else self.c.vectors[bias]
        return [Biased(matrix.number, b) for matrix, b in zip(matrices, biases, strict=True)]

    def _inner(self, op: Any, width: int) -> View:
        """A buffer for what the matrices "down" of an op's experts read."""
        self.widths[name := op.out.name + INNER] = op.mixture.used * width
        self._where[name] = len(self._buffers)
        self._buffers.append(calls.AddBuffer(self.widths[name], False))
        return self.view(name)

    def _rotate(self, op: Lowered) -> None:
        rope: Any = op.ops[0]
        x, out, size = self.view(op.reads[0]), self.view(rope.out.name), rope.head_dim
        rotation = self._rotation(rope)
        self._ops.append(calls.Rotate(x, out, rope.out.width // size, size, rotation))

    def _rotation(self, op: Any) -> calls.Rotation:
        """How an op's result is rotated."""
        rope, factors = op.rope, op.weights.get("factors")
        own = None if factors is None else self.c.vectors[factors].tolist()
        grows = (rope.growth, rope.period, rope.offset) if isinstance(rope, GrowingRope) else ()
        frequencies, factor = rope.frequencies(own), rope.attention_factor
        return calls.Rotation(frequencies, rope.rotate_half, factor, *grows)

    def _conv(self, op: Lowered) -> None:
        conv = op.ops[0]
        weight = self.c.vectors[conv.weights["weight"]].T  # (taps, width)
        bias = self.c.vectors[conv.weights["bias"]] if "bias" in conv.weights else NOTHING
        x, out = self.view(op.reads[0]), self.view(conv.out.name)
        taps, width = weight.shape
        if taps > _MOST_TAPS:
            raise FormatError(
                f"{conv.out.name}: convolutions over {taps} tokens are not supported here, only up "
                f"to {_MOST_TAPS}; the reference backend has no such limit"
            )
        weight = np.ascontiguousarray(weight).ravel()
        self._ops.append(calls.Conv(x, out, calls.ConvWeights(weight, bias, width, taps)))

    def _delta_net(self, op: Lowered) -> None:
        net: Any = op.ops[0]
        (heads, keys, values), k_heads = net.state, net.k_heads
        if values % _LANES:
            raise _odd_heads(net, values)
        x, a, b = (self.view(name) for name in op.reads)
        scale, dt = (self.c.vectors[net.weights[role]] for role in ("a", "dt"))
        shape = (k_heads, heads, keys, values, net.grouped)
        views = (x, a, b, self.view(net.out.name))
        self._ops.append(calls.DeltaNet(views, shape, scale, dt))

    def _mamba2(self, op: Lowered) -> None:
        made: Any = op.ops[0]
        (heads, keys, values), k_heads = made.state, made.k_heads
        if values % _LANES:
            raise _odd_heads(made, values)
        x, dt = (self.view(name) for name in op.reads)
        a, bias, skip = (self.c.vectors[made.weights[role]].ravel() for role in ("a", "dt", "d"))
        shape, views = (k_heads, heads, keys, values), (x, dt, self.view(made.out.name))
        self._ops.append(calls.Mamba(views, shape, (a, bias, skip)))

    def _pick(self, op: Lowered) -> None:
        made: Any = op.ops[0]
        group, first, last = made.group, made.first, made.last
        width = made.out.width // (last - first) * group
        order = np.arange(width, dtype=np.int32).reshape(-1, group)[:, first:last]
        x, out = self.view(op.reads[0]), self.view(made.out.name)
        self._ops.append(calls.Reorder(self._is_late(op), x, order.ravel().tolist(), out))

    def _join(self, op: Lowered) -> None:
        made: Any = op.ops[0]
        groups, inputs = made.groups, [self.c.maker[name].out for name in made.inputs]
        a, b = ((self.view(x.name), x.width // groups) for x in inputs)
        self._ops.append(calls.Join(self._is_late(op), a, b, groups, self.view(made.out.name)))

    def _heads_linear(self, op: Lowered) -> None:
        made = op.ops[0]
        buffer, column = self.view(made.out.name)
        matrices = self.c.weights.of(made, self.c.graph)
        parts = [
            calls.LinearPart(one.number, (buffer, column + i * one.rows), NOTHING, i * one.cols)
            for i, one in enumerate(matrices)
        ]
        self._multiply(op, op.reads, parts)

    def _attend(self, op: Lowered) -> None:
        made: Any = op.ops[0]
        queries, kv, dim = made.heads
        if dim % 2 or dim > _WIDEST_HEAD:
            raise FormatError(
                f"heads of {dim} are not supported here, only even ones up to "
                f"{_WIDEST_HEAD}; the reference backend has no such limit"
            )
        of_q, *of_k = (  # those that are no views were rotated before, if at all
            self._rotation(self.c.maker[name]) if name in self.c.views else calls.Rotation()
            for name in op.ops[0].inputs[:2]
        )
        if any(of_q != other for other in of_k):
            raise FormatError(f"{op.writes[0][0]}: q and k must be rotated alike")
        q, k, v = [*(self.view(name) for name in op.reads), NOWHERE, NOWHERE][:3]
        sizes = {
            "heads": queries, "kv_heads": kv, "head_dim": dim, "scale": made.scale,
            "softcap": made.softcap, "layer": made.layer, **made.mask._asdict(),
        }  # fmt: skip
        if made.reads is not None:
            sizes["reads"] = made.reads
        if (first := made.values_from) is not None:
            sizes |= {"value_first": first, "value_dim": dim - first}
        sinks = self.c.vectors.get(made.weights.get("sinks", ""), NOTHING)
        out, learned = (
            self.view(op.writes[0][0]),
            self.c.vectors.get(made.weights.get("distance", "")),
        )
        # For every distance that a text of the context has in whole KV blocks.
        bias = made.bias.table(self._context + _native.KV_BLOCK - 1, queries, learned).ravel()
        relative = calls.RelativeBias()
        if made.bias.reads_inputs:
            of_query, of_key = (self.view(name) for name in op.reads[3:])
            rows = made.bias.rows(self._context).tolist()
            relative = calls.RelativeBias(of_query, of_key, 2 * made.bias.span, rows)
        shape, views = calls.AttendShape(**sizes), (q, k, v, out)
        self._ops.append(calls.Attend(views, shape, of_q, sinks, bias, relative))


def lower(
    graph: Graph, weights: WeightTable, context: int, *, apart: bool = False, hoist: bool = True,
    kept: bool = False, also: Iterable[str] = (),
) -> Emitter:  # fmt: skip
    """A graph's plan as calls; see ``GraphCompiler`` and ``Emitter``."""
    return Emitter(
        GraphCompiler(graph, weights, apart=apart, hoist=hoist), context, kept=kept, also=also
    )


def _odd_heads(op: Op, values: int) -> FormatError:
    return FormatError(
        f"{op.out.name}: heads of {values} values are not supported here, only multiples of "
        f"{_LANES}; the reference backend has no such limit"
    )


# -- a buffer for each tensor of a plan ------------------------------------------------------------


class Placement:
    """A linear scan over the lowered ops that reuses buffers once they are free, unless kept.

    where  by tensor: the number of its slot
    slots  of each slot: its width, and whether it holds quant blocks
    """

    def __init__(
        self, lowered: list[Lowered], output: str, *, kept: bool = False, also: Iterable[str] = ()
    ) -> None:
        """kept: no buffer is reused; also: tensors whose buffers are not, to be read afterwards."""
        self.where: dict[str, int] = {}
        self.slots: list[tuple[int, bool]] = []
        met = _meetings(lowered)
        last = {name: met[i] for i, op in enumerate(lowered) for name in op.reads}
        ends: dict[int, list[str]] = {}
        for name, i in last.items():
            ends.setdefault(i, []).append(name)
        taken_over = {op.in_place for op in lowered}
        outputs = _in_the_place_of(output, lowered)
        held = {
            *also,
            *(op.writes[0][0] for op in lowered if op.kind == "given"),
        }  # as wide as told
        free: list[int] = []
        for i, op in enumerate(lowered):
            for name, width, is_quantised in op.writes:
                if op.in_place is not None:
                    self.where[name] = self.where[op.in_place]
                elif name in outputs or name in held or (kept and not is_quantised):
                    self.where[name] = self._new(width, is_quantised)  # rows lie side by side
                else:
                    self.where[name] = self._reuse(free, width, is_quantised)
            over = (n for n in ends.get(i, ()) if n not in taken_over and n not in held)
            free += [self.where[n] for n in over]

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


def _meetings(lowered: list[Lowered]) -> list[int]:
    """By op: the first op, itself or later, at whose end all threads meet.

    They do not meet after an op that each thread does for itself.
    """
    met: list[int] = []
    for i in reversed(range(len(lowered))):
        met.append(met[-1] if lowered[i].is_alone and met else i)
    return met[::-1]


def _in_the_place_of(output: str, lowered: list[Lowered]) -> set[str]:
    """The tensors whose buffer becomes the output's."""
    found = {output}
    for op in reversed(lowered):
        if op.in_place is not None and op.writes[0][0] in found:
            found.add(op.in_place)
    return found
