"""GraphCompiler lowers a graph to the ops of a plan, and fuses neighbours.

These are fused:
* linear layers with one input (q, k and v; gate and up), so that it is quantised and read once;
* a gate with the two linear layers that it reads, and a residual add with the linear layer that it
  reads; any other elementwise op stays separate;
* rope with the attention that reads its result, and quantising with the norm before it.
The ops after the last attention, or after the last op with a state, work row by row, so they are
computed only for the rows whose logits are wanted. In a plan whose tensors are read or edited
(``apart``) nothing is fused, and each result has floats of its own. The bits are the same.

Act-order and adapters are first rewritten as ops that have kernels. Knows names and ops, but no
buffers.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from cutaway.base import _native
from cutaway.compute.calls import Floats
from cutaway.compute.lowering import WeightTable
from cutaway.compute.model import Graph, Op, Tensor
from cutaway.compute.model.op import TokenMixer
from cutaway.compute.model.ops.attention import Attend, Rotate
from cutaway.compute.model.ops.linear import Adaptable, HeadsLinear, Linear, Lora
from cutaway.compute.model.ops.mixture import Experts
from cutaway.compute.model.ops.norms import NormOp
from cutaway.compute.model.ops.numbers import Add, Number, Scale
from cutaway.compute.model.ops.rows import LogitRows
from cutaway.compute.model.ops.shapes import Reorder
from cutaway.errors import FormatError


@dataclass
class Lowered:
    """An op of a plan before buffers are placed; it names tensors, or their quantised copies."""

    kind: str
    reads: list[str]
    writes: list[tuple[str, int, bool]]  # name, width, quantised
    ops: list[Op] = field(default_factory=list)
    in_place: str | None = None  # the tensor whose buffer the result, an only one, takes over

    @property
    def is_alone(self) -> bool:
        """Whether each thread computes the op for itself, so that no thread waits for another."""
        return all(is_quantised for _, _, is_quantised in self.writes)


INT8 = " as int8"


def quantised_name(name: str) -> str:
    """Return the name of a tensor's quantised copy."""
    return name + INT8


def hoist_logit_rows(ops: list[Op]) -> list[Op]:
    """Choose the wanted rows right after the last op that mixes rows. This changes no bits."""
    choice = next((i for i, op in enumerate(ops) if isinstance(op, LogitRows)), 0)
    first = next((i + 1 for i in reversed(range(choice)) if isinstance(ops[i], TokenMixer)), 0)
    if not first:
        return ops
    tensors = {op.out.name: op.out for op in ops[:first]}
    inputs = dict.fromkeys(n for op in ops[first : choice + 1] for n in op.inputs if n in tensors)
    rows = {name: Tensor(f"{name} rows", tensors[name].width) for name in inputs}
    late = {name: tensor.name for name, tensor in rows.items()}
    late[ops[choice].out.name] = late.get(ops[choice].inputs[0], ops[choice].inputs[0])
    return [
        *ops[:first],
        *(LogitRows(tensor, (name,)) for name, tensor in rows.items()),
        *(
            replace(op, inputs=tuple(late.get(n, n) for n in op.inputs))
            for op in (*ops[first:choice], *ops[choice + 1 :])
        ),
    ]


class GraphCompiler:
    """Lowers one graph, op by op."""

    def __init__(
        self,
        graph: Graph,
        weights: WeightTable,
        *,
        apart: bool = False,
        hoist: bool = True,
        preserved: Collection[str] = (),
    ) -> None:
        """apart: whether to fuse nothing, so that each tensor can be read or edited after its op.

        preserved: tensors that nothing overwrites, and that overwrite nothing
        hoist: whether to drop the rows whose logits are not wanted as early as possible
        """
        self.apart, self.preserved = apart, frozenset(preserved)
        is_hoisted = hoist and not apart
        self.ops, self.graph = hoist_logit_rows(graph.ops) if is_hoisted else graph.ops, graph
        self.weights, self.vectors = weights, weights.vectors
        self.consumers: dict[str, list[Op]] = {}
        for op in self.ops:
            for name in op.inputs:
                self.consumers.setdefault(name, []).append(op)
        self.maker = {op.out.name: op for op in self.ops}
        self.done: set[str] = set()
        self.quantised: set[str] = set()  # tensors that also have quant blocks
        self.lowered: list[Lowered] = []
        self.after_rows: set[str] = set()  # tensors that have a row per wanted logit
        self.views: dict[str, str] = {}  # a rope's result is its input's buffer

    def lower(self) -> list[Lowered]:
        """Return the fused ops in order."""
        for op in self.ops:
            if op.out.name in self.done:
                continue
            match op:
                case Linear():
                    self._linear(op)
                case NormOp():
                    self._norm(op)
                case Number():
                    self._elementwise(op)
                case Rotate():
                    self._rope(op)
                case Experts() | HeadsLinear():
                    self._stacked_matrices(op)
                case _:
                    self._emit(op.kind, [op], [self.views.get(n, n) for n in op.inputs], [op.out])
        return self.lowered

    # -- one method per way of lowering ----------------------------------------------------------

    def _emit(
        self, kind: str, ops: list[Op], reads: list[str], out: list[Tensor], **more: Any
    ) -> None:
        self.done.update(op.out.name for op in ops)
        if kind == "logit_rows" or any(r.removesuffix(INT8) in self.after_rows for r in reads):
            self.after_rows.update(t.name for t in out)
        writes = [(t.name, t.width, False) for t in out]
        self.lowered.append(Lowered(kind, reads, writes, ops, **more))

    def _norm(self, op: Op) -> None:
        """Lower a norm; it writes floats, quant blocks or both, as the ops that read it need."""
        x = op.out.name
        wants = [self._wants_floats(o, x) for o in self.consumers.get(x, [])]
        self._emit("norm", [op], list(op.inputs), [op.out])
        if not all(wants):
            floats = self.lowered[-1].writes if any(wants) or self.apart else []
            self.lowered[-1].writes = [*floats, self._quantised_write(op.out)]

    def _elementwise(self, op: Op) -> None:
        """Lower an elementwise op; it overwrites its first input if no other op reads that input.

        An input that is narrower than the result is never overwritten.
        """
        x = op.inputs[-1 if self.is_spread(op) else 0]
        place = x if not self.apart and self._is_free(x, op) else None
        self._emit("elementwise", [op], list(op.inputs), [op.out], in_place=place)

    def is_spread(self, op: Op) -> bool:
        """Whether an elementwise op's first input has a single number for the whole row."""
        return self.maker[op.inputs[0]].out.width != op.out.width

    def _rope(self, op: Op) -> None:
        x = op.inputs[0]
        if not self.apart and len(self.consumers[x]) > 1:
            raise FormatError(f"{x} is rotated in its place, so nothing else can read it")
        if self.apart or not self._is_rotated_alike(op):
            self._emit("rotate", [op], [x], [op.out])
            return
        self.views[op.out.name] = x  # the attention rotates it
        self.done.add(op.out.name)

    def _is_rotated_alike(self, op: Op) -> bool:
        """Whether only attentions read the rope's result, and each rotates its q and k alike."""
        afters = self.consumers[op.out.name]
        q_and_k = [self.maker[name] for after in afters for name in after.inputs[:2]]
        return all(isinstance(after, Attend) for after in afters) and all(
            replace(o, out=op.out, inputs=op.inputs) == op for o in q_and_k
        )

    def _linear(self, op: Op) -> None:
        x = op.inputs[0]
        readers = (o for o in self.consumers[x] if isinstance(o, Linear))
        group = [o for o in readers if o.out.name not in self.done]
        reads = [x] if any(self._is_float(o) for o in group) else []
        if any(not self._is_float(o) for o in group):
            self._quantise(x)
            reads.append(quantised_name(x))
        fused = None if self.apart else self._gate_of(group) or self._residual_of(group)
        if fused is None:
            self._emit("linear", [*group], reads, [o.out for o in group])
        elif fused.kind in _native.GATES:
            gate, up = (self.maker[name] for name in fused.inputs)
            self._emit("gate", [gate, up, fused], reads, [fused.out])
        else:
            base = next(n for n in fused.inputs if n != group[0].out.name)
            ops = [group[0], fused]
            self._emit("residual", ops, [*reads, base], [fused.out], in_place=base)

    def _gate_of(self, group: list[Linear]) -> Op | None:
        outputs = {o.out.name for o in group}
        afters = {id(o): o for name in outputs for o in self.consumers.get(name, [])}
        if len(outputs) != 2 or len(afters) != 1:
            return None
        (after,) = afters.values()
        return after if after.kind in _native.GATES and set(after.inputs) == outputs else None

    def _residual_of(self, group: list[Linear]) -> Op | None:
        if len(group) != 1 or len(self.consumers.get(group[0].out.name, [])) != 1:
            return None
        (after,) = self.consumers[group[0].out.name]
        bases = [n for n in after.inputs if n not in (group[0].out.name, group[0].inputs[0])]
        free = len(bases) == 1 and bases[0] in self.done and self._is_free(bases[0], after)
        return after if isinstance(after, Add) and free else None

    def _is_free(self, x: str, op: Op) -> bool:
        """Whether op may write over x: no other op will read x, and no thread is reading x then."""
        if self.preserved & {x, op.out.name}:
            return False
        readers = [o for o in self.consumers[x] if o is not op]
        unmet = takewhile(lambda before: before.is_alone, reversed(self.lowered))
        is_done = all(o.out.name in self.done for o in readers)
        return is_done and not any(x in before.reads for before in unmet)

    def _quantise(self, x: str) -> None:
        """Quantise x just before this use, unless its norm or an earlier use quantised it."""
        if x not in self.quantised:
            self.lowered.append(
                Lowered("quantise", [x], [self._quantised_write(self.maker[x].out)])
            )

    def _quantised_write(self, x: Tensor) -> tuple[str, int, bool]:
        self.quantised.add(x.name)
        if x.width % 32:
            raise FormatError(f"{x.name} is {x.width} wide, which is no multiple of 32")
        return quantised_name(x.name), x.width, True

    def _is_float(self, op: Op, role: str = "weight") -> bool:
        if isinstance(op, Linear):  # the usual case: one matrix
            return self.weights.matrices[op.matrix].is_float
        return self.weights.matrices_of(op, self.graph, role)[0].is_float

    def _wants_floats(self, op: Op, x: str) -> bool:
        """Whether an op reads the numbers of x themselves."""
        if op.is_stacked and x == op.inputs[0]:
            return self._is_float(op, "up" if isinstance(op, Experts) else "weight")
        return not isinstance(op, Linear) or self._is_float(op)

    def _stacked_matrices(self, op: Op) -> None:
        """Lower an op with the matrices of experts or heads; experts also read scores."""
        x, *scores = op.inputs
        if not (floats := self._wants_floats(op, x)):
            self._quantise(x)
        self._emit(op.kind, [op], [x if floats else quantised_name(x), *scores], [op.out])


# -- act-order: a matrix whose columns have another order reads a reordered copy of its input ------


def spell_out_orders(graph: Graph, vectors: Mapping[str, Floats]) -> Graph:
    """Return a graph with the same results by name, in which linear layers have no column orders.

    vectors: has the orders, by their names
    """
    plain, copies = Graph(graph.shapes), dict[tuple[str, bytes], str]()
    plain.ops = [plain_op for op in graph.ops for plain_op in _ordering_ops(op, vectors, copies)]
    return plain


def _ordering_ops(
    op: Op, vectors: Mapping[str, Floats], copies: dict[tuple[str, bytes], str]
) -> Iterator[Op]:
    if not isinstance(op, Linear) or "order" not in op.weights:
        yield op
        return
    order, (x,) = op.weights["order"], op.inputs
    key = x, vectors[order].tobytes()
    if key not in copies:
        copy = Tensor(f"{op.out.name} input in order", len(vectors[order]))
        copies[key] = copy.name
        yield Reorder(copy, (x,), {"order": order})
    weights = {role: name for role, name in op.weights.items() if role != "order"}
    yield replace(op, inputs=(copies[key],), weights=weights)


# -- adapters: y = W x + B (scale · A x); layers that share an input and an A compute A x once -----


def spell_out_adapters(graph: Graph) -> Graph:
    """Return a graph with the same results by name, in which no op has ``loras``."""
    plain, within = Graph(graph.shapes), dict[tuple[str, tuple[str, ...]], str]()
    plain.ops = [plain_op for op in graph.ops for plain_op in _adapter_ops(op, graph, within)]
    return plain


def _adapter_ops(
    op: Op, graph: Graph, within: dict[tuple[str, tuple[str, ...]], str]
) -> Iterator[Op]:
    if not isinstance(op, Adaptable) or not op.loras:
        yield op
        return
    name, width = op.out.name, op.out.width
    alone = Tensor(f"{name} alone", width)
    yield replace(op, out=alone, loras=())
    counts = range(1, len(op.loras))
    so_far = [alone, *(Tensor(f"{name} with {n}", width) for n in counts), op.out]
    for n, lora in enumerate(op.loras):
        if (lora.a, op.inputs) not in within:
            yield from _inner(op, graph.shapes[lora.b][1], lora, f"{name} inner {n}", within)
        product = Tensor(f"{name} added {n}", width)
        rows = op.rows if isinstance(op, Linear) else (0, width)
        read = (within[lora.a, op.inputs],)
        yield Linear(product, read, {"weight": lora.b}, rows=rows)
        yield Add(so_far[n + 1], (so_far[n].name, product.name))


def _inner(
    op: Adaptable,
    rank: int,
    lora: Lora,
    name: str,
    within: dict[tuple[str, tuple[str, ...]], str],
) -> Iterator[Op]:
    """Yield ops for scale · A x, or for scale · A's row of a token; note the name in ``within``."""
    inner = Tensor(name, rank)
    within[lora.a, op.inputs] = inner.name
    yield op.with_matrix(lora.a, inner)
    if lora.scale != 1:
        scaled = Tensor(f"{name} scaled", rank)
        within[lora.a, op.inputs] = scaled.name
        yield Scale(scaled, (inner.name,), number=lora.scale)
