"""The graph: what a transformer computes, as a flat list of ops on symbolic tensors.

An architecture calls the methods of ``Graph`` once, at load; what it leaves is ``graph.ops``, in an
order that can be run from top to bottom. Every tensor is a matrix (M, width) whose row count M is
open: prefill, decode and verification are the same list with another M. Knows names, widths and
which weights an op needs, and checks them against the file's tensor table.
"""

from typing import Any

from cutaway.compute.model.cuts import Cuts
from cutaway.compute.model.distance import Buckets, DistanceBias, Relative
from cutaway.compute.model.mixture import Mixture
from cutaway.compute.model.number_ops import NumberOps
from cutaway.compute.model.rope import Rope
from cutaway.compute.model.state_ops import StateOps
from cutaway.compute.model.wiring import Op, Tensor
from cutaway.errors import FormatError

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
