"""The graph: what a transformer computes, as a flat list of ops on symbolic tensors.

An architecture calls the methods of ``Graph`` once, at load; what it leaves is ``graph.ops``, in an
order that can be run from top to bottom. Every tensor is a matrix (M, width) whose row count M is
open: prefill, decode and verification are the same list with another M. Knows names, widths and
which weights an op needs, and checks them against the file's tensor table. Computes nothing.
"""

from typing import Any

from cutaway.compute.model.mixture import Mixture
from cutaway.compute.model.positions import Buckets, DistanceBias, Relative, Rope
from cutaway.compute.model.wiring import Cuts, Op, Tensor, Wiring
from cutaway.errors import FormatError

# -- ops that work number by number ----------------------------------------------------------------


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


# -- ops that keep a recurrent state of each text --------------------------------------------------


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


# -- the graph -------------------------------------------------------------------------------------


__all__ = ["Graph", "Op", "Tensor"]


class Graph(StateOps, NumberOps, Cuts):
    """Collects ops: those of `StateOps` and `NumberOps`, and all others; `Cuts` has its parts."""

    def given(self, width: int) -> Tensor:
        """Numbers that a batch has of each row beside its token: -> (M, width). The first op."""
        return self._add("given", width)

    def embed(self, weight: str) -> Tensor:
        """Rows of the embedding matrix for the batch's tokens: -> (M, hidden)."""
        self._shape(f"{weight}.weight", 2)  # a vector is not the row of one token
        return self._look_up("embed", weight)

    def embed_stored(self, weight: str) -> Tensor:
        """The same of a matrix so large that it stays in the file: its rows are read by token."""
        self._shape(f"{weight}.weight", 2)
        return self._look_up("embed_stored", weight)

    def embed_positions(self, weight: str, context: int) -> Tensor:
        """Rows of a matrix for the batch's positions, 0 … context - 1: -> (M, hidden)."""
        if (rows := self.matrix(weight)[0]) < context:
            raise FormatError(f"tensor {weight}.weight has {rows} rows for {context} positions")
        return self._look_up("embed_positions", weight)

    def embed_types(self, weight: str) -> Tensor:
        """Rows of a matrix for the types of the batch's tokens, as BERT has it: -> (M, hidden)."""
        return self._look_up("embed_types", weight)

    def _look_up(self, kind: str, weight: str) -> Tensor:
        weights = {"weight": f"{weight}.weight"}
        return self._add(kind, self.matrix(weight)[1], name=weight, weights=weights)

    def rms_norm(
        self,
        x: Tensor,
        weight: str,
        eps: float,
        *,
        group: int | None = None,
        ending: str = "weight",
    ) -> Tensor:
        """x / sqrt(mean(x²) + eps) · w (Zhang & Sennrich 2019, arXiv 1910.07467): (M, n) -> (M, n).

        weight: "" where the norm has none
        group: numbers that share a mean, such as a head's. All groups have the same weights, or,
               where the file has a matrix, each has a row of it
        ending: of the name of its weights; "": the name has none
        """
        group = group or x.width
        weights = {"weight": f"{weight}.{ending}" if ending else weight} if weight else {}
        self._expect_groups(x, group)
        for name in weights.values():
            apart = x.width // group, group
            self._expect(name, apart if self.shapes.get(name) == apart else (group,))
        attrs = {"eps": eps, "group": group}
        return self._add("rms_norm", x.width, x, name=weight, weights=weights, attrs=attrs)

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

    def heads_linear(self, x: Tensor, weight: str) -> Tensor:
        """Each head's numbers times a matrix of its own: (M, heads·in) -> (M, heads·out)."""
        named = f"{weight}.weight"
        heads, out, inner = self._shape(named, 3)
        if x.width != heads * inner:
            raise FormatError(
                f"tensor {named} takes {heads} heads of {inner} inputs; {x.width} come in"
            )
        self._allow_factors(weight, heads)
        return self._add("heads_linear", heads * out, x, name=weight, weights={"weight": named})

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
        scale: float, softcap: float = 0.0, window: int = 0, reach: int = 0, chunked: bool = False,
        sinks: str = "", distance: DistanceBias | None = None,
        relative: tuple[Tensor, Tensor, Relative] | None = None,
    ) -> Tensor:  # fmt: skip
        """Store k and v in the cache, then softmax(scale · q kᵀ) v of what each row may see.

        q (M, heads·head_dim), k and v (M, kv_heads·head_dim) -> (M, heads·head_dim). Query
        heads share key-value heads in equal groups (Ainslie et al. 2023, arXiv 2305.13245).
        softcap: scores s become softcap · tanh(s / softcap) (Gemma 2, arXiv 2408.00118); 0: as is
        window: how many tokens are seen, itself included (Mistral, arXiv 2310.06825); 0: all
        reach: how many to each side are seen (ModernBERT, arXiv 2412.13663); 0: all
        chunked: the text is cut into windows, and no token sees one of another (Llama 4)
        sinks: a tensor of a score for each head, which has a share of its weights and no value
               (gpt-oss, arXiv 2508.10925); "": none
        distance: what is added to scores by how far a token is; where it is learned, the file's
               position_bias has the numbers, (buckets, heads)
        relative: what each query and each key say of its distance to another, (M, heads·rows)
                  both, of which the two for a pair's distance are added to q kᵀ, and which those
                  are
        """
        wanted = (heads * head_dim, kv_heads * head_dim, kv_heads * head_dim)
        if (q.width, k.width, v.width) != wanted:
            raise FormatError(
                f"layer {layer}: q, k, v are {q.width}, {k.width}, {v.width} wide, which is not "
                f"{heads} heads of {head_dim} sharing {kv_heads} kv heads"
            )
        attrs: dict[str, Any] = {
            "layer": layer, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim,
            "scale": scale, "softcap": softcap, "window": window, "reach": reach,
            "chunked": chunked,
        }  # fmt: skip
        weights = self._score_weights(sinks, distance, heads)
        if distance is not None:
            attrs["distance"] = distance
        inputs = [q, k, v]
        if relative is not None:
            *said, attrs["relative"] = relative
            if any(x.width != heads * 2 * relative[2].span for x in said) or kv_heads != heads:
                raise FormatError(
                    f"layer {layer}: {heads} heads of {2 * relative[2].span} distances are wanted"
                )
            inputs += said
        return self._add("attend", q.width, *inputs, weights=weights, attrs=attrs)

    def _score_weights(
        self, sinks: str, distance: DistanceBias | None, heads: int
    ) -> dict[str, str]:
        """The file's numbers that join an attention's scores, by their roles."""
        weights = {}
        if sinks:
            weights["sinks"] = f"{sinks}.weight"
            self._expect(weights["sinks"], (heads,))
        if isinstance(distance, Buckets):
            weights["distance"] = "position_bias.weight"
            self._expect(weights["distance"], (self.matrix("position_bias")[0], heads))
        return weights

    def attend_again(
        self, q: Tensor, *, layer: int, reads: int, heads: int, scale: float
    ) -> Tensor:
        """``attend`` to keys and values that an earlier layer stored (Gemma 3n): none of its own.

        What that layer sees, this one does. reads: that layer's number
        """
        stored = [op.attrs for op in self.ops if op.kind == "attend" and op.attrs["layer"] == reads]
        if not stored or "reads" in stored[0]:
            raise FormatError(f"layer {layer} reads the keys and values of {reads}, which has none")
        attrs = {**stored[0], "layer": layer, "reads": reads, "heads": heads, "scale": scale}
        if q.width != heads * attrs["head_dim"] or heads % attrs["kv_heads"]:
            raise FormatError(
                f"layer {layer}: q is {q.width} wide, and layer {reads} has {attrs['kv_heads']} kv "
                f"heads of {attrs['head_dim']}"
            )
        return self._add("attend", q.width, q, attrs=attrs)

    def attend_latent(
        self, q: Tensor, k: Tensor, *, layer: int, heads: int, first: int, scale: float
    ) -> Tensor:
        """``attend`` where all heads share one key, and values are numbers of it from first on.

        q (M, heads·n), k (M, n) -> (M, heads·(n - first)). Keys alone are stored: the latent
        attention of DeepSeek-V2 (arXiv 2405.04434), with what makes heads of it absorbed.
        """
        if q.width != heads * k.width or not 0 <= first < k.width:
            raise FormatError(
                f"layer {layer}: q is {q.width} wide, which is not {heads} heads of {k.width}"
            )
        attrs = {
            "layer": layer, "heads": heads, "kv_heads": 1, "head_dim": k.width, "scale": scale,
            "softcap": 0.0, "window": 0, "reach": 0, "chunked": False, "values_from": first,
        }  # fmt: skip
        return self._add("attend", heads * (k.width - first), q, k, attrs=attrs)

    def pick(self, x: Tensor, group: int, first: int, last: int) -> Tensor:
        """Numbers first … last - 1 of each group: (M, n) -> (M, n / group · (last - first))."""
        self._expect_groups(x, group)
        if not 0 <= first < last <= group:
            raise FormatError(f"{x.name} has groups of {group}, and not {first} to {last} of them")
        attrs = {"group": group, "first": first, "last": last}
        return self._add("pick", x.width // group * (last - first), x, attrs=attrs)

    def join(self, a: Tensor, b: Tensor, groups: int) -> Tensor:
        """Of each group the numbers of a, then those of b: (M, n) and (M, m) -> (M, n + m)."""
        for x in (a, b):
            if x.width % groups:
                raise FormatError(f"{x.name} is {x.width} wide, which is no {groups} groups")
        return self._add("join", a.width + b.width, a, b, attrs={"groups": groups})

    def experts(self, x: Tensor, scores: Tensor, prefix: str, mixture: Mixture) -> Tensor:
        """A mixture of MLPs (Shazeer et al. 2017, arXiv 1701.06538): (M, n) -> (M, n).

        Each row goes through the experts that its scores (M, experts) choose, and takes their
        outputs by weight. Biases, of the choice and of the experts' matrices, are those that the
        file has.
        """
        roles = ("gate", "up", "down") if mixture.is_gated else ("up", "down")
        weights = {role: f"{prefix}ffn_{role}_exps.weight" for role in roles}
        count, inner, _ = self._shape(weights["up"], 3)
        if count != scores.width:
            raise FormatError(f"{prefix}: {count} experts, and scores for {scores.width}")
        mixture.check(count, prefix)
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

    def logit_rows(self, x: Tensor) -> Tensor:
        """Only the rows whose logits the batch asks for: (M, n) -> (L, n)."""
        return self._add("logit_rows", x.width, x)

    def pooled(self, x: Tensor) -> Tensor:
        """A text's rows as one: what follows reads that, each text by itself: (L, n) -> (L, n).

        Whoever runs the graph pools; it is no op.
        """
        return self._add("pooled", x.width, x)
