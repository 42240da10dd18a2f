"""The graph: what a transformer computes, as a flat list of ops on symbolic tensors.

An architecture calls the methods of ``Graph`` once, at load; what it leaves is ``graph.ops``, in an
order that can be run from top to bottom. Every tensor is a matrix (M, width) whose row count M is
open: prefill, decode and verification are the same list with another M. Knows names, widths and
which weights an op needs, and checks them against the file's tensor table.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cutaway.compute.model.mixture import Mixture
from cutaway.compute.model.rope import Rope
from cutaway.errors import FormatError


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


class Graph:
    """Collects ops. ``shapes`` is the file's tensor table: name -> (rows, cols) or (size,)."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.shapes = shapes
        self.ops: list[Op] = []
        self._names: set[str] = set()
        self._allowed_unused: set[str] = set()
        self._scope = ""

    def layers(self, count: int) -> Iterator[str]:
        """Yield each layer's prefix, ``blk.0.`` …; ops made in the loop are named after it."""
        for i in range(count):
            self._scope = f"blk.{i}."
            yield self._scope
        self._scope = ""

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

        group: numbers that share a mean, such as a head's; all groups have the same weights
        """
        group = group or x.width
        self._expect(f"{weight}.weight", (group,))
        self._expect_groups(x, group)
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
        """Width of the inner layer of the first layer's MLP, or of one of its experts."""
        found = (f"blk.0.ffn_down{several}.weight" for several in ("", "_exps"))
        return next(self.shapes[name][-1] for name in found if name in self.shapes)

    def allow_unused(self, weight: str) -> None:
        """Let a tensor be unused: the architecture knows it and chose another."""
        self._allowed_unused.add(weight)

    def _allow_factors(self, weight: str, count: int) -> None:
        """Let a file have factors of a matrix, or of each of `count`: `ModelFile.factors`.

        Its input_scale is for those that round activations to 4 bits, as nobody does here.
        """
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
