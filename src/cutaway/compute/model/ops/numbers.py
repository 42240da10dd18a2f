"""Ops that work number by number, on inputs as wide as their result: (M, n) -> (M, n).

A new op is a class here, a method in ``NumberMethods``, and a line in native/elementwise.def.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import erf, pi, prod, sqrt
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from cutaway.compute.calls import NOWHERE, Elementwise, OpCall, WeighCall
from cutaway.compute.model.op import Array, Lowering, Op, Run, Site, Tensor
from cutaway.compute.model.wiring import Wiring
from cutaway.errors import FormatError

Numbers = NDArray[Any]
"""float32, or float64 if a step is computed again in double precision."""


_UP_TO_GATE = 6.25  # Inkling 2 caps up at 25 where it caps the gate at 4

_erf = np.frompyfunc(erf, 1, 1)  # NumPy has no erf


def cap_softly(x: Numbers, cap: float) -> Numbers:
    """Return cap · tanh(x / cap), for scores or logits."""
    capped: Numbers = np.float32(cap) * np.tanh(x / np.float32(cap))
    return capped


def _silu(x: Numbers) -> Numbers:
    return _scale_by_sigmoid(x, x)


def _gelu(x: Numbers) -> Numbers:
    inner = np.float32(sqrt(2 / pi)) * (x + np.float32(0.044715) * x * x * x)
    y: Numbers = np.float32(0.5) * x * (1 + np.tanh(inner))
    return y


def _gelu_exact(x: Numbers) -> Numbers:
    normal: Any = 1 + _erf(x * np.float32(sqrt(0.5)))
    y: Numbers = x * (0.5 * normal.astype(np.float32))
    return y


def _scale_by_sigmoid(x: Numbers, a: Numbers) -> Numbers:
    """x · sigmoid(a)."""
    # If a is below -88, exp overflows to infinity, and x / infinity is 0, which is right.
    with np.errstate(over="ignore"):
        y: Numbers = x / (1 + np.exp(-a))
    return y


def _elu_less_x(x: Numbers) -> Numbers:
    below = np.minimum(x, 0)
    y: Numbers = np.expm1(below) - below
    return y


# -- the ops ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Number(Op):
    """An op of one or two inputs; number: the constant of its definition, if there is one."""

    BY_KIND: ClassVar[dict[str, type["Number"]]] = {}
    misfit: ClassVar[str] = "{} is no gate of {}"  # the error if two inputs differ in width
    number: float = 0.0

    def __init_subclass__(
        cls, kind: str = "", definition: Callable[..., Any] | None = None
    ) -> None:
        super().__init_subclass__(kind)
        if definition is not None:
            cls._define = staticmethod(definition)
        if kind:
            Number.BY_KIND[kind] = cls

    _define: ClassVar[Callable[..., Any]]

    def result(self, *inputs: Numbers) -> Numbers:
        """Compute the definition on the inputs."""
        y: Numbers = self._define(*inputs)
        return y

    def _compute(self, _: Run, *inputs: Array) -> Array:
        return self.result(*inputs)

    def _lower(self, _: Lowering, at: Site) -> OpCall:
        return self._call(at, self.kind, self.number)

    def _call(self, at: Site, kind: str, number: float) -> Elementwise:
        a, b = (*at.reads, NOWHERE)[:2]
        width, is_spread = self.out.width, at.widths[0] != self.out.width
        return Elementwise(at.late, kind, a, b, number, width, at.out, is_spread)


class Silu(Number, kind="silu", definition=_silu):
    """x · sigmoid(x)."""


class Sigmoid(Number, kind="sigmoid", definition=lambda x: _scale_by_sigmoid(np.ones_like(x), x)):
    """1 / (1 + e^-x)."""


class Decay(Number, kind="decay"):
    """e^(-number · sigmoid(x)), the share of a state that is kept; number is at least 0."""

    def _define(self, x: Numbers) -> Numbers:
        y: Numbers = np.exp(_scale_by_sigmoid(np.full_like(x, -self.number), x))
        return y


class Gelu(Number, kind="gelu", definition=_gelu):
    """x · Φ(x), where Φ is approximated by tanh (Hendrycks & Gimpel 2016, arXiv 1606.08415)."""


class GeluExact(Number, kind="gelu_exact", definition=_gelu_exact):
    """x · Φ(x), where Φ is the normal distribution."""


class Relu(Number, kind="relu", definition=lambda x: np.maximum(x, 0)):
    """max(x, 0)."""


class ReluAbove(Number, kind="relu_above"):
    """max(x - number, 0)."""

    def _define(self, x: Numbers) -> Numbers:
        y: Numbers = np.maximum(x - np.float32(self.number), 0)
        return y


class Relu2(Number, kind="relu2", definition=lambda x: np.maximum(x, 0) ** 2):
    """max(x, 0)² (So et al. 2021, arXiv 2109.08668)."""


class EluLessX(Number, kind="elu_less_x", definition=_elu_less_x):
    """e^x - 1 - x where x is below 0, else 0; this is ELU less the identity."""


class Add(Number, kind="add", definition=np.add):
    """a + b, the residual stream."""

    misfit = "cannot add {} and {}"


class Scale(Number, kind="scale"):
    """x · number."""

    is_linear = True

    def _define(self, x: Numbers) -> Numbers:
        return x * np.float32(self.number)


class Softcap(Number, kind="softcap"):
    """number · tanh(x / number)."""

    def _define(self, x: Numbers) -> Numbers:
        return cap_softly(x, self.number)


class ScaleBy(Number, kind="scale_by"):
    """x times the only number of a tensor."""

    def _compute(self, run: Run, *inputs: Array) -> Array:
        return inputs[0] * run.weight(self.weights["factor"])

    def _lower(self, to: Lowering, at: Site) -> OpCall:
        return self._call(at, Scale.kind, float(to.vector(self.weights["factor"])[0]))


class Weigh(Number, kind="weigh"):
    """Each number times a weight of its own."""

    def _compute(self, run: Run, *inputs: Array) -> Array:
        return inputs[0] * run.weight(self.weights["weight"]).ravel()

    def _lower(self, to: Lowering, at: Site) -> OpCall:
        weight = to.vector(self.weights["weight"]).ravel()
        return WeighCall(at.late, at.reads[0], weight, at.out)


class ClampedSwiglu(Number, kind="clamped_swiglu"):
    """gate · sigmoid(1.702 gate) · (up + 1), both clamped first (gpt-oss, arXiv 2508.10925).

    The op's number is a limit: gate is clamped to at most limit, up to -limit … limit.
    """

    def _define(self, gate: Numbers, up: Numbers) -> Numbers:
        limit = np.float32(self.number)
        gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
        y: Numbers = _scale_by_sigmoid(gate, np.float32(1.702) * gate) * (up + 1)
        return y


class CappedSwiglu(Number, kind="capped_swiglu"):
    """cap(gate, number) · sigmoid(gate) · cap(up, 6.25 number); cap(x, c) is c · tanh(x / c)."""

    def _define(self, gate: Numbers, up: Numbers) -> Numbers:
        y: Numbers = _scale_by_sigmoid(cap_softly(gate, self.number), gate)
        return y * cap_softly(up, _UP_TO_GATE * self.number)


class Gate(Number):
    """The second input times ``share(first input)``."""

    is_linear = True
    share: ClassVar[Callable[..., Any]]

    def __init_subclass__(cls, kind: str, share: Callable[..., Any]) -> None:
        super().__init_subclass__(kind)
        cls.share = staticmethod(share)

    def _define(self, gate: Numbers, x: Numbers) -> Numbers:
        y: Numbers = self.share(gate) * x
        return y


class Mul(Gate, kind="mul", share=lambda a: a):
    """a · b; a is (M, n), or (M, 1): then it has one number for a whole row."""

    misfit = "cannot multiply {} and {}"


class SiluMul(Gate, kind="silu_mul", share=_silu):
    """silu(gate) · up (SwiGLU; Shazeer 2020, arXiv 2002.05202)."""


class GeluMul(Gate, kind="gelu_mul", share=_gelu):
    """gelu(gate) · up, where gelu is approximated by tanh (GeGLU; Shazeer 2020)."""


class GeluExactMul(Gate, kind="gelu_exact_mul", share=_gelu_exact):
    """gelu(gate) · up, where gelu is x times the normal distribution."""


class SigmoidMul(Gate, kind="sigmoid_mul", share=lambda x: _scale_by_sigmoid(np.ones_like(x), x)):
    """sigmoid(gate) · x; gate is (M, n), or (M, 1): then it has one number for a whole row."""

    def _define(self, gate: Numbers, x: Numbers) -> Numbers:
        return _scale_by_sigmoid(x, gate)


class SoftplusMul(Gate, kind="softplus_mul", share=lambda x: np.logaddexp(x, np.zeros_like(x))):
    """log(1 + e^gate) · x."""


# -- in a graph ------------------------------------------------------------------------------------


Unary = Callable[["NumberMethods", Tensor], Tensor]
Binary = Callable[["NumberMethods", Tensor, Tensor], Tensor]


def _unary(op: type[Number]) -> Unary:
    return lambda graph, x: graph._number(op, x)


def _binary(op: type[Number]) -> Binary:
    return lambda graph, a, b: graph._number(op, a, b)


class NumberMethods(Wiring):
    """The part of ``Graph`` with these ops."""

    silu, gelu, gelu_exact = _unary(Silu), _unary(Gelu), _unary(GeluExact)
    sigmoid = _unary(Sigmoid)
    relu, relu2, elu_less_x = _unary(Relu), _unary(Relu2), _unary(EluLessX)
    add, silu_mul = _binary(Add), _binary(SiluMul)
    gelu_mul, gelu_exact_mul = _binary(GeluMul), _binary(GeluExactMul)
    softplus_mul = _binary(SoftplusMul)

    def scale(self, x: Tensor, factor: float) -> Tensor:
        """Add x · factor; return x itself if the factor is 1."""
        return x if factor == 1 else self._number(Scale, x, number=factor)

    def softcap(self, x: Tensor, cap: float) -> Tensor:
        """Add cap · tanh(x / cap); return x itself if cap is 0."""
        return self._number(Softcap, x, number=cap) if cap else x

    def scale_by(self, x: Tensor, weight: str) -> Tensor:
        """Add x · (the only number of a tensor)."""
        factor = f"{weight}.weight"
        self._expect(factor, (1,))
        return self._add(ScaleBy, x.width, x, name=weight, weights={"factor": factor})

    def weigh(self, x: Tensor, weight: str) -> Tensor:
        """Add x · w, where each number has a weight of its own: (M, n) -> (M, n)."""
        name = f"{weight}.weight"
        if prod(self.shapes.get(name, (0,))) != x.width:
            self._expect(name, (x.width,))
        return self._add(Weigh, x.width, x, name=weight, weights={"weight": name})

    def decay(self, x: Tensor, number: float) -> Tensor:
        """See ``Decay``."""
        return self._number(Decay, x, number=number)

    def relu_above(self, x: Tensor, number: float) -> Tensor:
        """See ``ReluAbove``."""
        return self._number(ReluAbove, x, number=number)

    def mul(self, a: Tensor, b: Tensor) -> Tensor:
        """See ``Mul``."""
        return self._number(Mul, a, b, is_spread=a.width == 1)

    def clamped_swiglu(self, gate: Tensor, up: Tensor, limit: float) -> Tensor:
        """See ``ClampedSwiglu``."""
        return self._number(ClampedSwiglu, gate, up, number=limit)

    def capped_swiglu(self, gate: Tensor, up: Tensor, cap: float) -> Tensor:
        """See ``CappedSwiglu``."""
        return self._number(CappedSwiglu, gate, up, number=cap)

    def sigmoid_mul(self, gate: Tensor, x: Tensor) -> Tensor:
        """See ``SigmoidMul``."""
        return self._number(SigmoidMul, gate, x, is_spread=gate.width == 1)

    def _number(
        self, op: type[Number], *inputs: Tensor, number: float = 0.0, is_spread: bool = False
    ) -> Tensor:
        """Add an op; is_spread: whether the first input has one number for a whole row."""
        width = inputs[-1].width
        if not is_spread and any(x.width != width for x in inputs):
            raise FormatError(op.misfit.format(*(f"{x.name} ({x.width})" for x in inputs)))
        return self._add(op, width, *inputs, number=number)
