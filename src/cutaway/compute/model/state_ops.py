"""The ops of a graph that keep a recurrent state of each text: their tensors and sizes."""

from cutaway.compute.model.wiring import Tensor, Wiring
from cutaway.errors import FormatError


class StateOps(Wiring):
    """As ``Graph``, of which it is a part. ``attrs["state"]`` of each op is its state's shape."""

    def conv(self, x: Tensor, weight: str, *, layer: int) -> Tensor:
        """Each number's weighted sum over the last tokens, its own the last: (M, n) -> (M, n).

        A depthwise causal convolution. The matrix has a row of weights for each number, oldest
        token first. The state is the inputs of all these tokens but the newest.
        """
        named, inputs = f"{weight}.weight", {"weight": f"{weight}.weight"}
        if (taps := self._shape(named, 2)[1]) < 2:
            raise FormatError(f"tensor {named} has weights of {taps} tokens, not of 2 or more")
        self._expect(named, (x.width, taps))
        if self.has(bias := f"{weight}.bias"):
            self._expect(bias, (x.width,))
            inputs["bias"] = bias
        attrs = {"layer": layer, "state": (taps - 1, x.width)}
        return self._add("conv", x.width, x, name=weight, weights=inputs, attrs=attrs)

    def delta_net(
        self, x: Tensor, a: Tensor, b: Tensor, prefix: str, *, layer: int, k_heads: int,
        heads: int, keys: int, values: int, grouped: bool,
    ) -> Tensor:  # fmt: skip
        """A gated delta net (Yang et al. 2024, arXiv 2412.06464): -> (M, heads·values).

        x     (M, 2·k_heads·keys + heads·values): queries, keys and values side by side
        a, b  (M, heads): how much of its state a head forgets, and how much it learns
        Each head's state is a matrix S (keys, values). A token multiplies it by
        e^(ssm_a · softplus(a + ssm_dt)), adds k ⊗ (v - kᵀS) · sigmoid(b), and gives qᵀS; q and k
        have length 1, and q is divided by √keys.
        grouped: whether neighbours among the heads share a key head; else every k_heads-th do
        """
        weights = {"a": f"{prefix}ssm_a", "dt": f"{prefix}ssm_dt.bias"}
        for name in weights.values():
            self._expect(name, (heads,))
        wanted = 2 * k_heads * keys + heads * values, heads, heads
        if (x.width, a.width, b.width) != wanted or heads % k_heads:
            raise FormatError(
                f"{prefix}: {x.width}, {a.width} and {b.width} numbers do not make {k_heads} heads "
                f"of {keys} for keys and {heads} of {values} for values"
            )
        attrs = {
            "layer": layer, "state": (heads, keys, values), "k_heads": k_heads, "grouped": grouped,
        }  # fmt: skip
        return self._add("delta_net", heads * values, x, a, b, weights=weights, attrs=attrs)

    def mamba2(
        self, x: Tensor, dt: Tensor, prefix: str, *, layer: int, k_heads: int, heads: int,
        keys: int, values: int,
    ) -> Tensor:  # fmt: skip
        """The heads of Mamba 2 (Dao & Gu 2024, arXiv 2405.21060): -> (M, heads·values).

        x   (M, heads·values + 2·k_heads·keys): values, keys and queries side by side, which are
            elsewhere called x, B and C; neighbours among the heads share a key and a query
        dt  (M, heads): how long a token's step is
        Each head's state is a matrix S (keys, values). A token, whose step is t = softplus(dt +
        ssm_dt), multiplies it by e^(ssm_a · t), adds k ⊗ v · t, and gives qᵀS + ssm_d · v.
        """
        weights = {"a": f"{prefix}ssm_a", "d": f"{prefix}ssm_d", "dt": f"{prefix}ssm_dt.bias"}
        for role, name in weights.items():
            self._expect(name, (heads,) if role == "dt" else (heads, 1))
        wanted = heads * values + 2 * k_heads * keys, heads
        if (x.width, dt.width) != wanted or heads % k_heads:
            raise FormatError(
                f"{prefix}: {x.width} and {dt.width} numbers do not make {heads} heads of {values} "
                f"for values and {k_heads} of {keys} for keys"
            )
        attrs = {"layer": layer, "state": (heads, keys, values), "k_heads": k_heads}
        return self._add("mamba2", heads * values, x, dt, weights=weights, attrs=attrs)
