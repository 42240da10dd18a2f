"""Emitter turns lowered ops into the calls that make a plan, bound to buffers and weights.

It knows how long each tensor lives, and that a buffer must not be overwritten before every thread
has read it. Which ops are fused was decided by ``compile`` before.
"""

from collections.abc import Collection, Iterable

from cutaway.base import _native
from cutaway.base.arithmetic import plainly
from cutaway.compute import calls
from cutaway.compute.calls import NOTHING, NOWHERE, Call, Places, View
from cutaway.compute.lowering import WeightTable
from cutaway.compute.lowering.compile import INT8, GraphCompiler, Lowered
from cutaway.compute.model import Graph, Op
from cutaway.compute.model.op import Matrix, Site
from cutaway.compute.model.ops.attention import Rotate
from cutaway.compute.model.ops.linear import Linear
from cutaway.compute.model.ops.norms import NormOp

INNER = ".inner"  # see ``Inspectable.tap``
PLAIN = calls.Finish()


class Emitter:
    """The calls that make a plan of a graph.

    calls   the calls of the whole plan
    after   tensor -> the number of ops up to the op that computes it, this op included
    widths  the widths of the tensors that are not in the graph (``INNER``)
    """

    @plainly
    def __init__(
        self,
        compiler: GraphCompiler,
        context: int,
        *,
        keeps_all: bool = False,
        also: Iterable[str] = (),
    ) -> None:
        """keeps_all: whether no buffer is shared, so that every tensor can be read after the run.

        also: the tensors that can be read after the run even if buffers are shared
        """
        self.c, self.context, self._keeps_all = compiler, context, keeps_all
        lowered = compiler.lower()
        output = compiler.ops[-1].out.name
        placement = Placement(lowered, output, keeps_all=keeps_all, also=also)
        self._buffers = [calls.AddBuffer(*slot) for slot in placement.slots]
        self._slot_of = placement.slot_of
        self._inputs, self._ops = list[calls.SetInput](), list[calls.OpCall]()
        self.widths: dict[str, int] = {}
        self.after: dict[str, int] = {}
        for op in lowered:
            emit = _EMIT.get(op.kind, Emitter._one_op)
            emit(self, op)
            self.after |= dict.fromkeys((name for name, _, _ in op.writes), len(self._ops))
        out = calls.SetOutput(self.view(output))
        self.calls: list[Call] = [*self._buffers, *self._inputs, *self._ops, out]

    def view(self, name: str) -> View:
        """Return where a tensor lies; it is there from its op until its buffer is overwritten."""
        return self._slot_of[name], 0

    def has(self, name: str) -> bool:
        """Whether the plan computes a tensor."""
        return name in self._slot_of

    def _places(self, names: Iterable[str]) -> Places:
        """Return where a tensor lies; a name with the suffix ``INT8`` is its quant blocks."""
        floats, act = NOWHERE, -1
        for name in names:
            if name.endswith(INT8):
                act = self.view(name)[0]
            else:
                floats = self.view(name)
        return Places(floats, act)

    @property
    def farthest(self) -> int:
        """See ``Lowering``."""
        return self.context + _native.KV_BLOCK - 1

    def vector(self, name: str | None) -> calls.Floats:
        """See ``Lowering``."""
        return NOTHING if name is None else self.c.vectors[name]

    def matrices(self, op: Op, role: str = "weight") -> list[Matrix]:
        """See ``Lowering``."""
        return self.c.weights.matrices_of(op, self.c.graph, role)

    def table(self, name: str) -> int:
        """See ``Lowering``."""
        return self.c.weights.stored.index(name)

    def rotation(self, name: str) -> calls.Rotation:
        """See ``Lowering``; an input that is no view needs no rotation any more."""
        op = self.c.maker[name]
        if name in self.c.views and isinstance(op, Rotate):
            return op.rotation(self)
        return calls.Rotation()

    def inner(self, name: str, width: int) -> View:
        """See ``Lowering``. The place is a new buffer if every tensor is kept, else nowhere."""
        if not self._keeps_all:
            return NOWHERE
        self.widths[name := name + INNER] = width
        self._slot_of[name] = len(self._buffers)
        self._buffers.append(calls.AddBuffer(width, False))
        return self.view(name)

    def _site(self, op: Lowered) -> Site:
        views, whole = [self.view(name) for name in op.reads], op.ops[0]
        widths = [self.c.maker[name].out.width for name in whole.inputs]
        x, out = self._places(op.reads[:1]), self.view(op.writes[0][0])
        return Site(self._is_late(op), views, widths, x, out)

    def _is_late(self, op: Lowered) -> bool:
        return op.writes[0][0].removesuffix(INT8) in self.c.after_rows

    def _one_op(self, op: Lowered) -> None:
        self._ops.append(op.ops[0].lower(self, self._site(op)))

    def _given_rows(self, op: Lowered) -> None:
        self._inputs.append(calls.SetInput(self.view(op.writes[0][0])))

    def _norm(self, op: Lowered) -> None:
        [norm] = op.ops
        assert isinstance(norm, NormOp)
        self._normalise(op, norm.native(self))

    def _quantise(self, op: Lowered) -> None:
        self._normalise(op, calls.Norm())

    def _normalise(self, op: Lowered, norm: calls.Norm) -> None:
        out = self._places(name for name, _, _ in op.writes)
        x, width = self.view(op.reads[0]), op.writes[0][1]
        self._ops.append(calls.Normalise(self._is_late(op), x, width, norm, out))

    def _linear(self, op: Lowered) -> None:
        self._multiply(op, op.reads, [o.out.name for o in op.ops])

    def _gate(self, op: Lowered) -> None:
        out, finish = op.writes[0][0], calls.Finish(gate=(op.ops[2].kind,))
        self._multiply(op, op.reads, [out, out], finish)

    def _residual(self, op: Lowered) -> None:
        reads = [name for name in op.reads if name != op.in_place]
        self._multiply(op, reads, [op.writes[0][0]], calls.Finish(adds=True))

    def _multiply(
        self, op: Lowered, reads: list[str], outs: list[str], finish: calls.Finish = PLAIN
    ) -> None:
        layers = (o for o in op.ops if isinstance(o, Linear))
        parts = [layer.part(self, self.view(out)) for layer, out in zip(layers, outs, strict=True)]
        self._ops.append(calls.LinearCall(self._is_late(op), self._places(reads), finish, parts))


_EMIT = {
    "given": Emitter._given_rows,
    "norm": Emitter._norm,
    "quantise": Emitter._quantise,
    "linear": Emitter._linear,
    "gate": Emitter._gate,
    "residual": Emitter._residual,
}
"""``Lowered.kind`` -> the method that emits it; an op of any other kind is emitted unchanged."""


def lower(
    graph: Graph, weights: WeightTable, context: int, *, apart: bool = False, hoist: bool = True,
    keeps_all: bool = False, also: Collection[str] = (),
) -> Emitter:  # fmt: skip
    """Lower a graph to a plan's calls; see ``GraphCompiler`` and ``Emitter``."""
    return Emitter(
        GraphCompiler(graph, weights, apart=apart, hoist=hoist, preserved=also),
        context,
        keeps_all=keeps_all,
        also=also,
    )


# -- a buffer for each tensor of a plan ------------------------------------------------------------


class Placement:
    """A linear scan over the lowered ops that reuses buffers once they are free.

    slot_of  tensor -> the number of its slot, which is the number of its buffer
    slots    for each slot, its width, and whether it has quant blocks
    """

    def __init__(
        self,
        lowered: list[Lowered],
        output: str,
        *,
        keeps_all: bool = False,
        also: Iterable[str] = (),
    ) -> None:
        """keeps_all: whether no buffer is reused.

        also: tensors whose buffers are not reused, since these tensors are read after the run
        """
        self.slot_of: dict[str, int] = {}
        self.slots: list[tuple[int, bool]] = []
        meetings = _meetings(lowered)
        last = {name: meetings[i] for i, op in enumerate(lowered) for name in op.reads}
        ends: dict[int, list[str]] = {}
        for name, i in last.items():
            ends.setdefault(i, []).append(name)
        taken_over = {op.in_place for op in lowered}
        outputs = _tensors_in_buffer_of(output, lowered)
        pinned = {
            *also,
            *(op.writes[0][0] for op in lowered if op.kind == "given"),
        }  # given rows need a buffer of exactly their width
        free: list[int] = []
        for i, op in enumerate(lowered):
            for name, width, is_quantised in op.writes:
                if op.in_place is not None:
                    self.slot_of[name] = self.slot_of[op.in_place]
                    pinned |= {name} if op.in_place in pinned else set()
                elif name in outputs or name in pinned or (keeps_all and not is_quantised):
                    self.slot_of[name] = self._new(width, is_quantised)  # rows lie side by side
                else:
                    self.slot_of[name] = self._reuse(free, width, is_quantised)
            over = (n for n in ends.get(i, ()) if n not in taken_over and n not in pinned)
            free += [self.slot_of[n] for n in over]

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
    """Return for each op the first op, itself or a later one, at whose end all threads meet.

    Threads do not meet after an op that each of them runs for itself.
    """
    meetings: list[int] = []
    for i in reversed(range(len(lowered))):
        meetings.append(meetings[-1] if lowered[i].is_alone and meetings else i)
    return meetings[::-1]


def _tensors_in_buffer_of(output: str, lowered: list[Lowered]) -> set[str]:
    """Return the tensors whose buffer becomes the buffer of the output."""
    names = {output}
    for op in reversed(lowered):
        if op.in_place is not None and op.writes[0][0] in names:
            names.add(op.in_place)
    return names
