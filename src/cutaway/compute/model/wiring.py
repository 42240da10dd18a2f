"""Wiring: the ops added so far, and the file's tensor table, against which the ops are checked.

Knows names, widths and shapes, and no op.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from cutaway.compute.model.op import Op, Shapes, Tensor
from cutaway.errors import FormatError
from cutaway.files.weights.cursor import quote

ROUTER = "ffn_gate_inp"
"""How the names of router matrices end; these matrices compute experts' scores."""


class Wiring:
    """Collects ops; the methods that add them are in ``ops/``. shapes: the file's tensor table."""

    def __init__(self, shapes: Shapes) -> None:
        self.shapes = shapes
        self.ops: list[Op] = []
        self._names: set[str] = set()
        self._repeats: Counter[str] = Counter()  # of names that were taken
        self._allowed_unused: set[str] = set()
        self._scope, self._prefix, self._deeper = "", "", 0

    def layers(self, count: int, first: int = 0, *, depth: int | None = None) -> Iterator[str]:
        """Yield the prefix of each layer's weights, ``blk.0.`` …

        Ops made in the loop are named after the layer's depth, under which keys, values and states
        are stored. A model that runs layers again reads the same weights at another depth.
        depth: that of the first layer; None: each layer's depth is its number
        """
        self._deeper = 0 if depth is None else depth - first
        for i in range(first, first + count):
            self._prefix, self._scope = f"blk.{i}.", f"blk.{i + self._deeper}."
            yield self._prefix
        self._scope, self._prefix, self._deeper = "", "", 0

    # -- the tensor table --------------------------------------------------------------------

    @property
    def orders(self) -> dict[str, str]:
        """A linear layer's matrix -> the tensor with the order of the columns, both by name."""
        with_order = (op.weights for op in self.ops if "order" in op.weights)
        return {weights["weight"]: weights["order"] for weights in with_order}

    def has(self, weight: str) -> bool:
        """Whether the file has a tensor of this full name."""
        return weight in self.shapes

    def matrix(self, weight: str) -> tuple[int, int]:
        """Return how many outputs and inputs a matrix has; a file's vector has a single output."""
        name = f"{weight}.weight"
        if len(shape := self.shapes.get(name, ())) == 1:
            return 1, shape[0]
        out, inner = self._shape(name, 2)
        return out, inner

    @property
    def mlp_width(self) -> int:
        """The inner width of the first MLP, or of one of the first experts; 0 without an MLP."""
        down = re.compile(r"blk\.(\d+)\.ffn_down(_exps)?\.weight")
        matches = ((down.fullmatch(name), shape[-1]) for name, shape in self.shapes.items())
        widths = [(int(match[1]), match[2] or "", width) for match, width in matches if match]
        return min(widths)[2] if widths else 0

    def allow_unused(self, weight: str) -> None:
        """Allow a tensor that no op reads: the architecture knows it, and reads another one."""
        self._allowed_unused.add(weight)

    def _allow_factors(self, weight: str, count: int) -> None:
        """Allow factors of a matrix, or of each of `count` matrices: see `ModelFile.factors`.

        An input_scale is for kernels that round activations to 4 bits; this package has no such
        kernel. A router's scale is no such factor: in Gemma 4 it multiplies the router's input.
        """
        if weight.endswith(ROUTER):
            return
        for name in (f"{weight}.scale", f"{weight}.input_scale"):
            if self.has(name):
                self._expect(name, (count,))
                self._allowed_unused.add(name)

    def check_all_used(self) -> None:
        """Raise FormatError if the file holds a tensor, or rows of one, that no op reads.

        A tensor that is left over (an extra norm, a rope table) means that the model is a variant
        that the architecture does not compute; without an error its text would be wrong.
        """
        used = {name for op in self.ops for name in op.weights.values()} | self._allowed_unused
        unused = [name for name in self.shapes if name not in used]
        if unused:
            raise FormatError(
                f"tensor {quote(unused[0])} (and {len(unused) - 1} more) has no place in this "
                "architecture; this variant of the model is not supported"
            )
        parts = {part for op in self.ops for part in op.matrices(self.shapes)}
        rows: Counter[str] = Counter()
        for name, first, last in parts:
            rows[name] += last - first
        for name, count in rows.items():
            if count != (has := prod(self.shapes[name][:-1])):
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

    def _expect_but_ones(self, weight: str, shape: tuple[int, ...]) -> None:
        """Check a shape, in which files may leave out dimensions of 1, or have more of them."""
        has = self.shapes.get(weight, (0,))
        if [n for n in has if n != 1] != [n for n in shape if n != 1]:
            self._expect(weight, shape)

    def _expect_groups(self, x: Tensor, size: int) -> None:
        if x.width % size:
            raise FormatError(
                f"{x.name} is {x.width} wide, which is no whole number of heads of {size}"
            )

    def _add(
        self, op: type[Op], width: int, *inputs: Tensor,
        name: str = "", weights: Mapping[str, str] | None = None, **fields: Any,
    ) -> Tensor:  # fmt: skip
        """Add an op; its result is named after its weights, or its kind; fields: the op's own."""
        base = name or f"{self._scope}{op.kind}"
        if self._deeper and name.startswith(self._prefix):
            base = self._scope + name.removeprefix(self._prefix)
        if "layer" in fields:
            fields["layer"] += self._deeper
        unique = base
        while unique in self._names:  # the second rope of a layer is blk.0.rope.2
            self._repeats[base] += 1
            unique = f"{base}.{self._repeats[base] + 1}"
        self._names.add(unique)
        out, names = Tensor(unique, width), tuple(x.name for x in inputs)
        self.ops.append(op(out, names, weights or {}, **fields))
        return out
