"""Parts of a graph: its body, its head, what follows pooling; and where it chooses rows.

Knows the ops that a cut is made at, not what any other computes.
"""

from dataclasses import replace
from typing import Self

from cutaway.compute.model.wiring import Op, Tensor, Wiring


class Cuts(Wiring):
    """As ``Graph``, of which it is a part. Each cut is a graph of its own of the same ops."""

    def cut_head(self) -> Tensor:
        """Leave out the ops after the body; what the head would read."""
        self.ops = self.body().ops
        return self.ops[-1].out

    def after_pooling(self) -> Self | None:
        """The ops on pooled rows, which are given; None where there are none."""
        at = next((i for i, op in enumerate(self.ops) if op.kind == "pooled"), None)
        if at is None:
            return None
        return self._of([Op("given", self.ops[at].out), *self.ops[at + 1 :]])

    def after_rows(self) -> Self:
        """The ops after the choice of rows, on numbers that are given in its place."""
        chosen = self._choice()
        return self._of([Op("given", self.ops[chosen].out), *self.ops[chosen + 1 :]])

    def body(self) -> Self:
        """The ops up to the rows that the head reads; all of them where there is no head."""
        kinds = [op.kind for op in self.ops]
        if "pooled" in kinds:
            return self._of(self.ops[: kinds.index("pooled")])
        chosen = self._choice()
        after = kinds[chosen:]
        return self._of(self.ops[: chosen + after.index("linear") if "linear" in after else None])

    def choosing_last(self) -> tuple[Self, Tensor]:
        """The same ops, rows being chosen just before the head; and what is chosen from.

        That is what the head reads, of all rows.
        """
        chosen, head = self._choice(), len(self.body().ops)
        choice, between = self.ops[chosen], self.ops[chosen + 1 : head]
        before = {op.out.name: op.out for op in self.ops[:chosen]}[choice.inputs[0]]
        between = [_reading(op, {choice.out.name: before.name}) for op in between]
        read = between[-1].out if between else before
        rows = Tensor(f"{read.name} rows", read.width)
        after = [
            _reading(op, {choice.out.name: rows.name, read.name: rows.name})
            for op in self.ops[head:]
        ]
        last = Op("logit_rows", rows, (read.name,))
        return self._of([*self.ops[:chosen], *between, last, *after]), read

    @property
    def has_head(self) -> bool:
        """Whether it predicts tokens; else it ends with the rows that a head would read."""
        return self.after_pooling() is None and len(self.body().ops) < len(self.ops)

    @property
    def stores(self) -> list[Op]:
        """The attentions that store keys, or keys and values."""
        return [op for op in self.ops if op.kind == "attend" and "reads" not in op.attrs]

    @property
    def has_state(self) -> bool:
        """Whether layers keep a recurrent state of each text."""
        return any("state" in op.attrs for op in self.ops)

    def _choice(self) -> int:
        """Where the rows are chosen whose logits are wanted."""
        return next(i for i, op in enumerate(self.ops) if op.kind == "logit_rows")

    def _of(self, ops: list[Op]) -> Self:
        part = type(self)(self.shapes)
        part.ops = ops
        return part


def _reading(op: Op, instead: dict[str, str]) -> Op:
    """The op with other tensors in the place of some that it reads."""
    return replace(op, inputs=tuple(instead.get(name, name) for name in op.inputs))
