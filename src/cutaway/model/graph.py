"""The graph: what a transformer computes, as a flat list of ops on symbolic tensors.

An architecture calls the methods of ``Graph`` once, at load; what it leaves is
``graph.ops``, in an order that can be run from top to bottom. Every tensor is a
matrix (M, width) whose row count M stays free: prefill, decode and verification are
the same list with another M.
Knows names, widths and which weights an op needs, and checks them against the file's
tensor table. Refuses to know how an op is computed, and what a weight's bytes mean.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cutaway.errors import FormatError


@dataclass(frozen=True, slots=True)
class Tensor:
    """A symbolic activation, (M, width), named after the op that makes it."""

    name: str
    width: int


@dataclass(frozen=True, slots=True)
class Op:
    """One operation: its kind, the tensor it makes, its inputs, weights by role, and numbers."""

    kind: str
    out: Tensor
    inputs: tuple[str, ...] = ()
    weights: Mapping[str, str] = field(default_factory=dict)
    attrs: Mapping[str, Any] = field(default_factory=dict)


class Graph:
    """Collects ops. ``shapes`` is the file's tensor table: name -> (rows, cols) or (size,)."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.shapes = shapes
        self.ops: list[Op] = []
        self._names: set[str] = set()
        self._scope = ""

    def layers(self, count: int) -> Iterator[str]:
        """Yield each layer's prefix, ``blk.0.`` …; ops made meanwhile are named after it."""
        for i in range(count):
            self._scope = f"blk.{i}."
            yield self._scope
        self._scope = ""

    # -- the ops -----------------------------------------------------------------------------

    def embed(self, weight: str) -> Tensor:
        """Rows of the embedding matrix for the batch's tokens: -> (M, hidden)."""
        (_, width) = self._shape(f"{weight}.weight", 2)
        return self._add("embed", width, name=weight, weights={"weight": f"{weight}.weight"})

    def rms_norm(self, x: Tensor, weight: str, eps: float) -> Tensor:
        """x / sqrt(mean(x²) + eps) · w (Zhang & Sennrich 2019, arXiv 1910.07467): (M, n) kept."""
        self._expect(f"{weight}.weight", (x.width,))
        return self._add(
            "rms_norm", x.width, x, name=weight,
            weights={"weight": f"{weight}.weight"}, attrs={"eps": eps},
        )  # fmt: skip

    def linear(self, x: Tensor, weight: str) -> Tensor:
        """x Wᵀ (+ b where the file has one): (M, in) -> (M, out)."""
        (out, inner) = self._shape(f"{weight}.weight", 2)
        if inner != x.width:
            raise FormatError(f"tensor {weight}.weight takes {inner} inputs; {x.width} come in")
        weights = {"weight": f"{weight}.weight"}
        if self.has(f"{weight}.bias"):
            self._expect(f"{weight}.bias", (out,))
            weights["bias"] = f"{weight}.bias"
        return self._add("linear", out, x, name=weight, weights=weights)

    def rope(
        self, x: Tensor, *, head_dim: int, rope_dim: int, base: float, stretch: float = 1.0,
        factors: str | None = None,
    ) -> Tensor:  # fmt: skip
        """Rotate neighbouring pairs (2i, 2i+1) by position · frequency: (M, n) -> (M, n).

        See ``rope.frequencies``; factors: a tensor of rope_dim / 2 divisors. GGUF stores llama's q
        and k permuted for this form.
        """
        if x.width % head_dim:
            raise FormatError(f"{x.name} is {x.width} wide, which is no whole number of heads")
        attrs = {"head_dim": head_dim, "rope_dim": rope_dim, "base": base, "stretch": stretch}
        weights = {}
        if factors is not None:
            self._expect(f"{factors}.weight", (rope_dim // 2,))
            weights["factors"] = f"{factors}.weight"
        return self._add("rope", x.width, x, weights=weights, attrs=attrs)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor,
        *, layer: int, heads: int, kv_heads: int, head_dim: int,
    ) -> Tensor:  # fmt: skip
        """Store k and v in the cache, then softmax(q kᵀ / √head_dim) v under the causal mask.

        q (M, heads·head_dim), k and v (M, kv_heads·head_dim) -> (M, heads·head_dim). Query
        heads share key-value heads in equal groups (Ainslie et al. 2023, arXiv 2305.13245).
        """
        wanted = (heads * head_dim, kv_heads * head_dim, kv_heads * head_dim)
        if (q.width, k.width, v.width) != wanted:
            raise FormatError(
                f"layer {layer}: q, k, v are {q.width}, {k.width}, {v.width} wide, which is not "
                f"{heads} heads of {head_dim} sharing {kv_heads} kv heads"
            )
        attrs = {"layer": layer, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
        return self._add("attend", q.width, q, k, v, attrs=attrs)

    def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        """silu(gate) · up (SwiGLU; Shazeer 2020, arXiv 2002.05202): (M, n) -> (M, n)."""
        return self._add("silu_mul", up.width, gate, up)

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        """a + b, the residual stream: (M, n) -> (M, n)."""
        if a.width != b.width:
            raise FormatError(f"cannot add {a.name} ({a.width}) and {b.name} ({b.width})")
        return self._add("add", a.width, a, b)

    def logit_rows(self, x: Tensor) -> Tensor:
        """Only the rows whose logits the batch asks for: (M, n) -> (L, n)."""
        return self._add("logit_rows", x.width, x)

    # -- the tensor table --------------------------------------------------------------------

    def has(self, weight: str) -> bool:
        """Whether the file has a tensor of this full name."""
        return weight in self.shapes

    def check_all_used(self) -> None:
        """Raise FormatError if the file holds a tensor that no op reads.

        A tensor left over means that the model is not what the architecture takes it for
        (an extra norm, a rope table), and that its text would be quietly wrong.
        """
        used = {name for op in self.ops for name in op.weights.values()}
        unused = [name for name in self.shapes if name not in used]
        if unused:
            raise FormatError(
                f"tensor {unused[0]} (and {len(unused) - 1} more) has no place in this "
                "architecture; this variant of the model is not supported"
            )

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
