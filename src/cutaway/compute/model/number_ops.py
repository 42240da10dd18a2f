"""The ops that work number by number: activations, gates, sums, factors."""

from cutaway.compute.model.wiring import Tensor, Wiring
from cutaway.errors import FormatError


class NumberOps(Wiring):
    """Of results and inputs of the same width: (M, n) -> (M, n)."""

    def silu(self, x: Tensor) -> Tensor:
        """x · sigmoid(x): (M, n) -> (M, n)."""
        return self._add("silu", x.width, x)

    def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        """silu(gate) · up (SwiGLU; Shazeer 2020, arXiv 2002.05202): (M, n) -> (M, n)."""
        return self._gated("silu_mul", gate, up)

    def gelu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        """gelu(gate) · up, gelu by tanh (GeGLU; Shazeer 2020): (M, n) -> (M, n)."""
        return self._gated("gelu_mul", gate, up)

    def gelu_exact_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        """gelu(gate) · up, gelu by the normal distribution: (M, n) -> (M, n)."""
        return self._gated("gelu_exact_mul", gate, up)

    def gelu(self, x: Tensor) -> Tensor:
        """x · Φ(x), Φ approached by tanh (Hendrycks & Gimpel 2016, arXiv 1606.08415)."""
        return self._add("gelu", x.width, x)

    def gelu_exact(self, x: Tensor) -> Tensor:
        """x · Φ(x), Φ the normal distribution's: (M, n) -> (M, n)."""
        return self._add("gelu_exact", x.width, x)

    def relu(self, x: Tensor) -> Tensor:
        """max(x, 0): (M, n) -> (M, n)."""
        return self._add("relu", x.width, x)

    def relu2(self, x: Tensor) -> Tensor:
        """max(x, 0)² (So et al. 2021, arXiv 2109.08668): (M, n) -> (M, n)."""
        return self._add("relu2", x.width, x)

    def elu_less_x(self, x: Tensor) -> Tensor:
        """e^x - 1 - x below 0, else 0: what ELU adds to the identity there: (M, n) -> (M, n)."""
        return self._add("elu_less_x", x.width, x)

    def clamped_swiglu(self, gate: Tensor, up: Tensor, limit: float) -> Tensor:
        """gate · sigmoid(1.702 gate) · (up + 1), both within a limit (gpt-oss, arXiv 2508.10925).

        (M, n) -> (M, n); gate is at most the limit, up between minus it and it.
        """
        return self._gated("clamped_swiglu", gate, up, limit=limit)

    def sigmoid_mul(self, gate: Tensor, x: Tensor) -> Tensor:
        """sigmoid(gate) · x, gate (M, n), or (M, 1) for all of a row: (M, n) -> (M, n)."""
        if gate.width not in (1, x.width):
            raise FormatError(f"{gate.name} ({gate.width}) is no gate of {x.name} ({x.width})")
        return self._add("sigmoid_mul", x.width, gate, x)

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        """a + b, the residual stream: (M, n) -> (M, n)."""
        if a.width != b.width:
            raise FormatError(f"cannot add {a.name} ({a.width}) and {b.name} ({b.width})")
        return self._add("add", a.width, a, b)

    def mul(self, a: Tensor, b: Tensor) -> Tensor:
        """a · b, number by number: (M, n) -> (M, n)."""
        if a.width != b.width:
            raise FormatError(f"cannot multiply {a.name} ({a.width}) and {b.name} ({b.width})")
        return self._add("mul", a.width, a, b)

    def scale(self, x: Tensor, factor: float) -> Tensor:
        """x · factor, and x itself where that changes nothing: (M, n) -> (M, n)."""
        return x if factor == 1 else self._add("scale", x.width, x, attrs={"factor": factor})

    def scale_by(self, x: Tensor, weight: str) -> Tensor:
        """x · the one number of a tensor: (M, n) -> (M, n)."""
        named = f"{weight}.weight"
        self._expect(named, (1,))
        return self._add("scale_by", x.width, x, name=weight, weights={"factor": named})

    def softcap(self, x: Tensor, cap: float) -> Tensor:
        """cap · tanh(x / cap), and x itself where cap is 0: (M, n) -> (M, n)."""
        return self._add("softcap", x.width, x, attrs={"cap": cap}) if cap else x

    def _gated(self, kind: str, gate: Tensor, up: Tensor, **attrs: float) -> Tensor:
        if gate.width != up.width:
            raise FormatError(f"{gate.name} ({gate.width}) is no gate of {up.name} ({up.width})")
        return self._add(kind, up.width, gate, up, attrs=attrs)
