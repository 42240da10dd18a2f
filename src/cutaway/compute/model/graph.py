"""The graph: a transformer's computation as a flat list of ops on symbolic tensors.

An architecture calls the methods of ``Graph`` once, at load. The result is ``graph.ops``, in an
order that can be run from top to bottom. Every tensor is a matrix (M, width) whose row count M is
open: prefill, decode and verification run the same list with a different M. Knows the ops at which
a graph is cut; ``ops/`` defines what each op computes. Computes nothing.
"""

from dataclasses import replace
from typing import Self

from cutaway.compute.model.op import Op, Tensor
from cutaway.compute.model.ops.attention import Attend, AttentionMethods, attentions
from cutaway.compute.model.ops.convolutions import ConvolutionMethods
from cutaway.compute.model.ops.linear import Linear, LinearMethods
from cutaway.compute.model.ops.mixture import MixtureMethods
from cutaway.compute.model.ops.norms import NormMethods
from cutaway.compute.model.ops.numbers import NumberMethods
from cutaway.compute.model.ops.rows import GivenRows, LogitRows, PooledRows, RowMethods
from cutaway.compute.model.ops.shapes import ShapeMethods
from cutaway.compute.model.ops.states import StateMethods, StateOp

__all__ = ["Graph", "Op", "Tensor"]


class Graph(
    RowMethods, NormMethods, LinearMethods, AttentionMethods, MixtureMethods, ConvolutionMethods,
    StateMethods, NumberMethods, ShapeMethods,
):  # fmt: skip
    """Collects ops. Each part that is cut out of a graph is a graph, too."""

    def cut_head(self) -> Tensor:
        """Drop the ops after the body; return the tensor that the head would read."""
        self.ops = self.body().ops
        return self.ops[-1].out

    def pooled_graph(self) -> Self | None:
        """Return the ops after pooling, whose input is given; None if there are none."""
        at = _first(PooledRows, self.ops)
        if at is None:
            return None
        return self._part([GivenRows(self.ops[at].out), *self.ops[at + 1 :]])

    def head_graph(self) -> Self:
        """Return the ops after ``logit_rows``, whose result is given."""
        at = self._choice()
        return self._part([GivenRows(self.ops[at].out), *self.ops[at + 1 :]])

    def body(self) -> Self:
        """Return the ops up to the rows that the head reads; all ops if there is no head."""
        if (pooled := _first(PooledRows, self.ops)) is not None:
            return self._part(self.ops[:pooled])
        at = self._choice()
        head = _first(Linear, self.ops[at:])
        return self._part(self.ops[: None if head is None else at + head])

    def choosing_last(self) -> tuple[Self, Tensor]:
        """Return the ops, with ``logit_rows`` moved to just before the head, and its input there.

        This input is the tensor that the head reads, for all rows.
        """
        at, head = self._choice(), len(self.body().ops)
        choice, between = self.ops[at], self.ops[at + 1 : head]
        before = {op.out.name: op.out for op in self.ops[:at]}[choice.inputs[0]]
        between = [_reading(op, {choice.out.name: before.name}) for op in between]
        read = between[-1].out if between else before
        rows = Tensor(f"{read.name} rows", read.width)
        after = [
            _reading(op, {choice.out.name: rows.name, read.name: rows.name})
            for op in self.ops[head:]
        ]
        last = LogitRows(rows, (read.name,))
        return self._part([*self.ops[:at], *between, last, *after]), read

    @property
    def has_head(self) -> bool:
        """Whether the graph predicts tokens; if not, it ends with rows that a head would read."""
        return self.pooled_graph() is None and len(self.body().ops) < len(self.ops)

    @property
    def attends(self) -> list[Attend]:
        """The attention of each layer that has one."""
        return attentions(self.ops)

    @property
    def stores(self) -> list[Attend]:
        """The attentions that store keys, or keys and values."""
        return [op for op in self.attends if op.reads is None]

    @property
    def states(self) -> list[StateOp]:
        """The ops that keep a recurrent state of each text."""
        return [op for op in self.ops if isinstance(op, StateOp)]

    def _choice(self) -> int:
        """Return the index of the op that chooses the rows whose logits are wanted."""
        at = _first(LogitRows, self.ops)
        assert at is not None
        return at

    def _part(self, ops: list[Op]) -> Self:
        part = type(self)(self.shapes)
        part.ops = ops
        return part


def _reading(op: Op, instead: dict[str, str]) -> Op:
    """Return the op with some inputs replaced; instead: old name -> new name."""
    return replace(op, inputs=tuple(instead.get(name, name) for name in op.inputs))


def _first(kind: type[Op], ops: list[Op]) -> int | None:
    return next((i for i, op in enumerate(ops) if isinstance(op, kind)), None)
