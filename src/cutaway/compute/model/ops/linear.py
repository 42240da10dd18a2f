"""Products with matrices: linear layers with their adapters, and products by head."""

from dataclasses import dataclass, replace
from itertools import cycle
from typing import NamedTuple, Self

import numpy as np

from cutaway.compute.calls import NOTHING, Finish, LinearCall, LinearPart, OpCall, View
from cutaway.compute.model.op import Array, Lowering, Op, Run, Shapes, Site, Slice, Tensor
from cutaway.compute.model.wiring import Wiring
from cutaway.errors import FormatError


class Lora(NamedTuple):
    """An adapter of one matrix (see ``lora``): the names of its A and B, and a factor of B A."""

    a: str
    b: str
    scale: float

    @property
    def factor(self) -> np.float32:
        """``scale`` in float32, the type of activations."""
        return np.float32(self.scale)


@dataclass(frozen=True, kw_only=True)
class Adaptable(Op):
    """An op with one matrix, which can have adapters; loras: these, in the order of adding."""

    loras: tuple[Lora, ...] = ()

    def with_matrix(self, weight: str, out: Tensor) -> Self:
        """Return the op with another matrix, with a row for each column of ``out``, no adapters."""
        return replace(self, out=out, weights={"weight": weight}, loras=())


@dataclass(frozen=True, kw_only=True)
class Linear(Adaptable, kind="linear"):
    """W x + b, for the rows first … last - 1 of W; each adapter adds s B A x."""

    matrix_roles = ("weight",)
    is_linear = True
    rows: tuple[int, int]

    def matrices(self, shapes: Shapes) -> list[Slice]:  # noqa: ARG002
        """See ``Op``."""
        return [self.matrix]

    @property
    def matrix(self) -> Slice:
        """The matrix, and which rows of it the op reads."""
        return self.weights["weight"], *self.rows

    def with_matrix(self, weight: str, out: Tensor) -> Self:
        """See ``Adaptable``."""
        return replace(super().with_matrix(weight, out), rows=(0, out.width))

    def _compute(self, run: Run, x: Array) -> Array:
        rows, order = slice(*self.rows), self.weights.get("order")
        read = x if order is None else x[:, run.weight(order).astype(int)]
        matrix = np.atleast_2d(run.weight(self.weights["weight"]))
        y: Array = read @ matrix[rows].T  # (M, in) (in, out) -> (M, out)
        if "bias" in self.weights:
            y = y + run.weight(self.weights["bias"])[rows]
        for lora in self.loras:
            inner: Array = x @ run.weight(lora.a).T * lora.factor
            y = y + inner @ run.weight(lora.b)[rows].T  # (M, rank) (rank, out)
        return y

    def part(self, to: Lowering, out: View) -> LinearPart:
        """Return its matrix as a part of a ``LinearCall``."""
        [matrix], bias = to.matrices(self), to.vector(self.weights.get("bias"))
        return LinearPart(matrix.number, out, bias[slice(*self.rows)])


class HeadsLinear(Op, kind="heads_linear"):
    """Multiplies each head's numbers by a matrix of its own, or by the only one."""

    matrix_roles = ("weight",)
    is_stacked = True
    is_linear = True

    def _compute(self, run: Run, x: Array) -> Array:
        matrices = run.weight(self.weights["weight"])  # (heads, out, in), or (out, in)
        apart = x.reshape(len(x), x.shape[1] // matrices.shape[-1], -1)  # M may be 0
        rule = "mhi,hoi->mho" if matrices.ndim == 3 else "mhi,oi->mho"
        y: Array = np.einsum(rule, apart, matrices)
        return y.reshape(len(x), self.out.width)

    def _lower(self, to: Lowering, at: Site) -> OpCall:
        buffer, column = at.out
        matrices = to.matrices(self)
        heads = at.widths[0] // matrices[0].cols
        parts = [
            LinearPart(head.number, (buffer, column + i * head.rows), NOTHING, i * head.cols)
            for i, head in zip(range(heads), cycle(matrices), strict=False)
        ]
        return LinearCall(at.late, at.x, Finish(), parts)


class LinearMethods(Wiring):
    """The part of ``Graph`` with these ops."""

    def linear(
        self, x: Tensor, weight: str, rows: tuple[int, int] | None = None, bias: str = "",
        *, ending: str = "bias",
    ) -> Tensor:  # fmt: skip
        """Add x Wᵀ (+ b if the file has a bias): (M, in) -> (M, out).

        rows: (first, last): only outputs first … last - 1, if several matrices are fused into one
        bias: the name of the bias without ".bias", if it is not the matrix's name; ending: the
              ending of the name in place of "bias"
        If the file has an order (GPTQ's act-order), column i is for number order[i] of x.
        """
        out, inner = self.matrix(weight)
        if inner != x.width:
            raise FormatError(f"tensor {weight}.weight takes {inner} inputs; {x.width} come in")
        weights = {"weight": f"{weight}.weight"}
        if self.has(bias_name := f"{bias or weight}.{ending}"):
            self._expect(bias_name, (out,))
            weights["bias"] = bias_name
        if self.has(order := f"{weight}.order"):
            self._expect(order, (inner,))
            weights["order"] = order
        first, last = rows or (0, out)
        if not 0 <= first < last <= out:
            raise FormatError(f"tensor {weight}.weight has {out} rows, and not {first} to {last}")
        self._allow_factors(weight, 1)
        return self._add(Linear, last - first, x, name=weight, weights=weights, rows=(first, last))

    def heads_linear(self, x: Tensor, weight: str, *, heads: int = 0) -> Tensor:
        """Multiply each head's numbers by a matrix of its own: (M, heads·in) -> (M, heads·out).

        heads: how many heads have the same matrix, if the file has only one
        """
        name = f"{weight}.weight"
        if heads:
            out, inner = self._shape(name, 2)
        else:
            heads, out, inner = self._shape(name, 3)
        if x.width != heads * inner:
            raise FormatError(
                f"tensor {name} takes {heads} heads of {inner} inputs; {x.width} come in"
            )
        self._allow_factors(weight, 1 if len(self.shapes[name]) == 2 else heads)
        return self._add(HeadsLinear, heads * out, x, name=weight, weights={"weight": name})
