"""Wiring: the ops made so far, and the tensor table of the file, which they are checked against.

Knows names, widths and shapes, and the ops that a graph is cut at; not what an op computes.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from cutaway.errors import FormatError

ROUTER = "ffn_gate_inp"
"""What the names of matrices end with that give experts their scores."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A symbolic activation, (M, width), named after the op that makes it."""

    name: str
    width: int


@dataclass(frozen=True, slots=True)
class Op:
    """One operation: its kind, the tensor it makes, its inputs, weights by role, and numbers.

    Of ops that keep a recurrent state of each text, ``attrs["state"]`` is its shape.
    """

    kind: str
    out: Tensor
    inputs: tuple[str, ...] = ()
    weights: Mapping[str, str] = field(default_factory=dict)
    attrs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_by_row(self) -> bool:
        """Whether a row of its result depends on the same row of its inputs alone."""
        return self.kind != "attend" and "state" not in self.attrs


class Wiring:
    """Collects ops. ``shapes`` is the file's tensor table: name -> (rows, cols) or (size,)."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.shapes = shapes
        self.ops: list[Op] = []
        self._names: set[str] = set()
        self._allowed_unused: set[str] = set()
        self._scope = ""

    def layers(self, count: int, first: int = 0) -> Iterator[str]:
        """Yield each layer's prefix, ``blk.0.`` …; ops made in the loop are named after it."""
        for i in range(first, first + count):
            self._scope = f"blk.{i}."
            yield self._scope
        self._scope = ""

    # -- the tensor table --------------------------------------------------------------------

    @property
    def orders(self) -> dict[str, str]:
        """The orders of columns of linear layers' matrices, by the matrices' names."""
        with_order = (op.weights for op in self.ops if "order" in op.weights)
        return {weights["weight"]: weights["order"] for weights in with_order}

    def has(self, weight: str) -> bool:
        """Whether the file has a tensor of this full name."""
        return weight in self.shapes

    def matrix(self, weight: str) -> tuple[int, int]:
        """How many outputs and inputs a matrix has; of one output, files may have a vector."""
        name = f"{weight}.weight"
        if len(shape := self.shapes.get(name, ())) == 1:
            return 1, shape[0]
        out, inner = self._shape(name, 2)
        return out, inner

    @property
    def mlp_width(self) -> int:
        """Width of the inner layer of the first MLP, or of one of its experts; 0 without any."""
        down = re.compile(r"blk\.(\d+)\.ffn_down(_exps)?\.weight")
        every = ((down.fullmatch(name), shape[-1]) for name, shape in self.shapes.items())
        found = [(int(named[1]), named[2] or "", width) for named, width in every if named]
        return min(found)[2] if found else 0

    def allow_unused(self, weight: str) -> None:
        """Let a tensor be unused: the architecture knows it and chose another."""
        self._allowed_unused.add(weight)

    def _allow_factors(self, weight: str, count: int) -> None:
        """Let a file have factors of a matrix, or of each of `count`: `ModelFile.factors`.

        Its input_scale is for those that round activations to 4 bits, as nobody does here. A
        router's scale is something else: Gemma 4's input is multiplied by it.
        """
        if weight.endswith(ROUTER):
            return
        for name in (f"{weight}.scale", f"{weight}.input_scale"):
            if self.has(name):
                self._expect(name, (count,))
                self._allowed_unused.add(name)

    def check_all_used(self) -> None:
        """Raise FormatError if the file holds a tensor, or rows of one, that no op reads.

        What is left over means that the model is not what the architecture takes it for
        (an extra norm, a rope table), and that its text would be quietly wrong.
        """
        used = {name for op in self.ops for name in op.weights.values()} | self._allowed_unused
        unused = [name for name in self.shapes if name not in used]
        if unused:
            raise FormatError(
                f"tensor {unused[0]} (and {len(unused) - 1} more) has no place in this "
                "architecture; this variant of the model is not supported"
            )
        parts = {
            (op.weights["weight"], *op.attrs["rows"]) for op in self.ops if op.kind == "linear"
        }
        rows: Counter[str] = Counter()
        for name, first, last in parts:
            rows[name] += last - first
        for name, count in rows.items():
            if count != (has := self.matrix(name.removesuffix(".weight"))[0]):
                raise FormatError(f"tensor {name} has {has} rows, not {count}")

    def _shape(self, weight: str, rank: int) -> tuple[int, ...]:
        if weight not in self.shapes:
            raise FormatError(f"the model file lacks the tensor {weight}")
        shape = self.shapes[weight]
        if len(shape) != rank:
            raise FormatError(f"tensor {weight} has {len(shape)} dimensions, not {rank}")
        return shape

    def _expect(self, weight: str, shape: tuple[int, ...]) -> None:
        if self._shape(weight, len(shape)) != shape:
            raise FormatError(f"tensor {weight} has shape {self.shapes[weight]}, not {shape}")

    def _expect_groups(self, x: Tensor, size: int) -> None:
        if x.width % size:
            raise FormatError(
                f"{x.name} is {x.width} wide, which is no whole number of heads of {size}"
            )

    def _add(
        self,
        kind: str,
        width: int,
        *inputs: Tensor,
        name: str | None = None,
        weights: Mapping[str, str] | None = None,
        attrs: Mapping[str, Any] | None = None,
    ) -> Tensor:
        base = name or f"{self._scope}{kind}"
        unique, n = base, 2
        while unique in self._names:  # the second rope of a layer is blk.0.rope.2
            unique, n = f"{base}.{n}", n + 1
        self._names.add(unique)
        out = Tensor(unique, width)
        names = tuple(t.name for t in inputs)
        self.ops.append(Op(kind, out, names, weights or {}, attrs or {}))
        return out


# -- parts of a graph: its body, its head, what follows pooling; and where it chooses rows ---------


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
