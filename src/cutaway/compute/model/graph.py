"""The graph: what a transformer computes, as a flat list of ops on symbolic tensors.

An architecture calls the methods of ``Graph`` once, at load; what it leaves is ``graph.ops``, in an
order that can be run from top to bottom. Every tensor is a matrix (M, width) whose row count M is
open: prefill, decode and verification are the same list with another M. Knows names, widths and
which weights an op needs, and checks them against the file's tensor table.
"""

from cutaway.compute.model.mixture import Mixture
from cutaway.compute.model.rope import Rope
from cutaway.compute.model.state_ops import StateOps
from cutaway.compute.model.wiring import Op, Tensor
from cutaway.errors import FormatError

__all__ = ["Graph", "Op", "Tensor"]


class Graph(StateOps):
    """Collects ops. ``shapes`` is the file's tensor table: name -> (rows, cols) or (size,)."""

    # -- the ops -----------------------------------------------------------------------------

    def embed(self, weight: str) -> Tensor:
        """Rows of the embedding matrix for the batch's tokens: -> (M, hidden)."""
        return self._look_up("embed", weight)

    def embed_positions(self, weight: str, context: int) -> Tensor:
        """Rows of a matrix for the batch's positions, 0 … context - 1: -> (M, hidden)."""
        if (rows := self.matrix(weight)[0]) < context:
            raise FormatError(f"tensor {weight}.weight has {rows} rows for {context} positions")
        return self._look_up("embed_positions", weight)

    def embed_first(self, weight: str) -> Tensor:
        """The first row of a matrix, for every row of the batch: -> (M, hidden)."""
        return self._look_up("embed_first", weight)

    def _look_up(self, kind: str, weight: str) -> Tensor:
        weights = {"weight": f"{weight}.weight"}
        return self._add(kind, self.matrix(weight)[1], name=weight, weights=weights)

    def rms_norm(self, x: Tensor, weight: str, eps: float, *, group: int | None = None) -> Tensor:
        """x / sqrt(mean(x²) + eps) · w (Zhang & Sennrich 2019, arXiv 1910.07467): (M, n) -> (M, n).

        group: numbers that share a mean, such as a head's. All groups have the same weights, or,
               where the file has a matrix, each has a row of it
        """
        group = group or x.width
        self._expect_groups(x, group)
        apart = (x.width // group, group)
        has_rows = self.shapes.get(f"{weight}.weight") == apart
        self._expect(f"{weight}.weight", apart if has_rows else (group,))
        return self._add(
            "rms_norm", x.width, x, name=weight,
            weights={"weight": f"{weight}.weight"}, attrs={"eps": eps, "group": group},
        )  # fmt: skip

    def layer_norm(self, x: Tensor, weight: str, eps: float, *, bias: bool = True) -> Tensor:
        """(x - mean) / sqrt(variance + eps) · w (+ b) (Ba et al. 2016, arXiv 1607.06450)."""
        roles = ("weight", "bias") if bias else ("weight",)
        weights = {role: f"{weight}.{role}" for role in roles}
        for name in weights.values():
            self._expect(name, (x.width,))
        return self._add("layer_norm", x.width, x, name=weight, weights=weights, attrs={"eps": eps})

    def linear(
        self, x: Tensor, weight: str, rows: tuple[int, int] | None = None, bias: str = ""
    ) -> Tensor:
        """x Wᵀ (+ b where the file has one): (M, in) -> (M, out).

        rows: only outputs first … last - 1, of a matrix that is several in one
        bias: whose it is, where it is not called as the matrix is
        Where the file has an order (GPTQ's act-order), column i is for number order[i] of x.
        """
        out, inner = self.matrix(weight)
        if inner != x.width:
            raise FormatError(f"tensor {weight}.weight takes {inner} inputs; {x.width} come in")
        weights = {"weight": f"{weight}.weight"}
        if self.has(named := f"{bias or weight}.bias"):
            self._expect(named, (out,))
            weights["bias"] = named
        if self.has(order := f"{weight}.order"):
            self._expect(order, (inner,))
            weights["order"] = order
        first, last = rows or (0, out)
        if not 0 <= first < last <= out:
            raise FormatError(f"tensor {weight}.weight has {out} rows, and not {first} to {last}")
        self._allow_factors(weight, 1)
        attrs = {"rows": (first, last)}
        return self._add("linear", last - first, x, name=weight, weights=weights, attrs=attrs)

    def rope(self, x: Tensor, rope: Rope, *, head_dim: int, factors: str | None = None) -> Tensor:
        """Rotate pairs of each head's numbers by position · frequency: (M, n) -> (M, n).

        factors: a tensor of rope.dim / 2 divisors of the frequencies. GGUF stores llama's q and k
        permuted, so that the two of a pair are neighbours.
        """
        self._expect_groups(x, head_dim)
        weights = {}
        if factors is not None:
            self._expect(f"{factors}.weight", (rope.dim // 2,))
            weights["factors"] = f"{factors}.weight"
        attrs = {"head_dim": head_dim, "rope": rope}
        return self._add("rope", x.width, x, weights=weights, attrs=attrs)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor,
        *, layer: int, heads: int, kv_heads: int, head_dim: int,
        scale: float, softcap: float = 0.0, window: int = 0, reach: int = 0, sinks: str = "",
    ) -> Tensor:  # fmt: skip
        """Store k and v in the cache, then softmax(scale · q kᵀ) v of what each row may see.

        q (M, heads·head_dim), k and v (M, kv_heads·head_dim) -> (M, heads·head_dim). Query
        heads share key-value heads in equal groups (Ainslie et al. 2023, arXiv 2305.13245).
        softcap: scores s become softcap · tanh(s / softcap) (Gemma 2, arXiv 2408.00118); 0: as is
        window: how many tokens are seen, itself included (Mistral, arXiv 2310.06825); 0: all
        reach: how many to each side are seen (ModernBERT, arXiv 2412.13663); 0: all
        sinks: a tensor of a score for each head, which has a share of its weights and no value
               (gpt-oss, arXiv 2508.10925); "": none
        """
        wanted = (heads * head_dim, kv_heads * head_dim, kv_heads * head_dim)
        if (q.width, k.width, v.width) != wanted:
            raise FormatError(
                f"layer {layer}: q, k, v are {q.width}, {k.width}, {v.width} wide, which is not "
                f"{heads} heads of {head_dim} sharing {kv_heads} kv heads"
            )
        attrs = {
            "layer": layer, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim,
            "scale": scale, "softcap": softcap, "window": window, "reach": reach,
        }  # fmt: skip
        weights = {}
        if sinks:
            weights["sinks"] = f"{sinks}.weight"
            self._expect(weights["sinks"], (heads,))
        return self._add("attend", q.width, q, k, v, weights=weights, attrs=attrs)

    def pick(self, x: Tensor, size: int, which: int, of: int) -> Tensor:
        """Of each ``of`` groups of ``size`` numbers number ``which``: (M, n) -> (M, n / of)."""
        self._expect_groups(x, size * of)
        attrs = {"size": size, "which": which, "of": of}
        return self._add("pick", x.width // of, x, attrs=attrs)

    def silu(self, x: Tensor) -> Tensor:
        """x · sigmoid(x): (M, n) -> (M, n)."""
        return self._add("silu", x.width, x)

    def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        """silu(gate) · up (SwiGLU; Shazeer 2020, arXiv 2002.05202): (M, n) -> (M, n)."""
        return self._add("silu_mul", up.width, gate, up)

    def gelu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        """gelu(gate) · up, gelu by tanh (GeGLU; Shazeer 2020): (M, n) -> (M, n)."""
        return self._add("gelu_mul", up.width, gate, up)

    def gelu_exact_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        """gelu(gate) · up, gelu by the normal distribution: (M, n) -> (M, n)."""
        return self._add("gelu_exact_mul", up.width, gate, up)

    def gelu(self, x: Tensor) -> Tensor:
        """x · Φ(x), Φ approached by tanh (Hendrycks & Gimpel 2016, arXiv 1606.08415)."""
        return self._add("gelu", x.width, x)

    def gelu_exact(self, x: Tensor) -> Tensor:
        """x · Φ(x), Φ the normal distribution's: (M, n) -> (M, n)."""
        return self._add("gelu_exact", x.width, x)

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
        return self._add("clamped_swiglu", up.width, gate, up, attrs={"limit": limit})

    def sigmoid_mul(self, gate: Tensor, x: Tensor) -> Tensor:
        """sigmoid(gate) · x, gate (M, n), or (M, 1) for all of a row: (M, n) -> (M, n)."""
        if gate.width not in (1, x.width):
            raise FormatError(f"{gate.name} ({gate.width}) is no gate of {x.name} ({x.width})")
        return self._add("sigmoid_mul", x.width, gate, x)

    def experts(self, x: Tensor, scores: Tensor, prefix: str, mixture: Mixture) -> Tensor:
        """A mixture of MLPs (Shazeer et al. 2017, arXiv 1701.06538): (M, n) -> (M, n).

        Each row goes through the experts that its scores (M, experts) choose, and takes their
        outputs by weight. Biases, of the choice and of the experts' matrices, are those that the
        file has.
        """
        roles = ("up", "down") if mixture.activation == "relu2" else ("gate", "up", "down")
        weights = {role: f"{prefix}ffn_{role}_exps.weight" for role in roles}
        count, inner, _ = self._shape(weights["up"], 3)
        if count != scores.width:
            raise FormatError(f"{prefix}: {count} experts, and scores for {scores.width}")
        for role in roles:
            shape = (x.width, inner) if role == "down" else (inner, x.width)
            self._expect(weights[role], (count, *shape))
            self._allow_factors(f"{prefix}ffn_{role}_exps", count)
            if self.has(bias := f"{prefix}ffn_{role}_exps.bias"):
                self._expect(bias, (count, shape[0]))
                weights[f"{role}_bias"] = bias
        if self.has(bias := f"{prefix}exp_probs_b.bias"):
            self._expect(bias, (count,))
            weights["choosing_bias"] = bias
        attrs = {"mixture": mixture}
        return self._add("experts", x.width, x, scores, weights=weights, attrs=attrs)

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

    def softcap(self, x: Tensor, cap: float) -> Tensor:
        """cap · tanh(x / cap), and x itself where cap is 0: (M, n) -> (M, n)."""
        return self._add("softcap", x.width, x, attrs={"cap": cap}) if cap else x

    def logit_rows(self, x: Tensor) -> Tensor:
        """Only the rows whose logits the batch asks for: (M, n) -> (L, n)."""
        return self._add("logit_rows", x.width, x)

    def after_rows(self) -> "Graph":
        """The ops after the choice of rows, on numbers that are given in its place."""
        chosen = next(i for i, op in enumerate(self.ops) if op.kind == "logit_rows")
        rest = Graph(self.shapes)
        rest.ops = [Op("given", self.ops[chosen].out), *self.ops[chosen + 1 :]]
        return rest

    def body(self) -> "Graph":
        """The ops up to the rows that the head reads; all of them where there is no head."""
        kinds = [op.kind for op in self.ops]
        chosen = kinds.index("logit_rows")
        after = kinds[chosen:]
        body = Graph(self.shapes)
        body.ops = self.ops[: chosen + after.index("linear") if "linear" in after else None]
        return body

    @property
    def has_head(self) -> bool:
        """Whether it predicts tokens; else it ends with the rows that a head would read."""
        return len(self.body().ops) < len(self.ops)

    @property
    def has_state(self) -> bool:
        """Whether layers keep a recurrent state of each text."""
        return any("state" in op.attrs for op in self.ops)
