"""The parts of architectures: embedding, attention, MLP, head.

Knows how a part is wired. The variants of a part follow from arguments, from numbers of the config
that are neutral in other models, or from the tensors of the file (one matrix in place of several).
"""

from collections.abc import Callable

from cutaway.compute.model.config import ModelConfig
from cutaway.compute.model.graph import Graph, Tensor
from cutaway.compute.model.ops.attention import Heads, Mask
from cutaway.compute.model.positions import NO_BIAS, Bias, Rope
from cutaway.errors import FormatError

Gate = Callable[[Tensor, Tensor], Tensor]
OutputGate = Callable[[Graph, Tensor, Tensor], Tensor]
PLAIN = {
    "gelu": Graph.gelu_exact,
    "gelu_tanh": Graph.gelu,
    "relu2": Graph.relu2,
    "relu": Graph.relu,
}
"""``ModelConfig.activation`` -> the op of an MLP without a gate."""
GELU = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}
"""See ``Architecture.activations``."""
SEES_ALL = {"attention.causal": False}
"""An entry of ``Architecture.defaults``: each token sees the whole text."""


def embedding(g: Graph, c: ModelConfig, weight: str = "token_embd") -> Tensor:
    """Add the tokens' embedding: -> (M, hidden)."""
    return g.scale(g.embed(weight), c.embedding_scale)


def attention(
    g: Graph, c: ModelConfig, h: Tensor, layer: int, rope: Rope | None,
    *, norms: str = "", has_sinks: bool = False, gate: OutputGate | None = None,
    has_sub_norm: bool = False, chunked: bool = False, growth: Rope | None = None,
    bias: Bias = NO_BIAS, value_dim: int | None = None,
) -> Tensor:  # fmt: skip
    """Add attention with its four matrices: (M, hidden) -> (M, hidden).

    norms: "head" if each head of q and k is normed by itself; "all" if all heads are normed
           together; "rotated head" or "rotated head, unweighted" if each is normed after rotation;
           "centred head" if each is normed by itself, less its mean
    has_sinks: whether each head has one more score than those of the tokens: see `Graph.attend`
    gate: multiplies the input of the last matrix by a function of one more product, which has a
          number for each head, or for each number of each head; None: there is no gate
    has_sub_norm: whether a norm follows, before the last matrix
    chunked: see `Mask`; growth: a rope by which queries grow with their positions
    bias: is added to scores by distance; if it depends on queries and keys, both have one more
          matrix for it in each head
    value_dim: how many numbers a head's value has, if not as many as its key
    """
    p = f"blk.{layer}."
    q, k, v = _queries_keys_values(g, c, h, p, value_dim or c.head_dim)
    if norms in ("head", "all", "centred head"):
        q = _norm(g, q, c, f"{p}attn_q_norm", norms)
        k = _norm(g, k, c, f"{p}attn_k_norm", norms)
    if rope is not None:
        q, k = _rotate(g, c, q, k, rope)
    if growth is not None:
        q = g.rope(q, growth, head_dim=c.head_dim)
    if norms == "rotated head, unweighted":
        q, k = (g.rms_norm(x, "", c.norm_eps, group=c.head_dim) for x in (q, k))
    if norms == "rotated head":
        q = _norm(g, q, c, f"{p}attn_q_norm", norms)
        k = _norm(g, k, c, f"{p}attn_k_norm", norms)
    window = c.windows[layer]
    mask = Mask(window, chunked=chunked and window > 0) if c.is_causal else Mask(reach=window)
    distances = _distances(g, q, k, p) if bias.per_head else ()
    a = g.attend(
        q, k, v, *distances, layer=layer, heads=Heads(c.heads, c.kv_heads, c.head_dim),
        scale=c.attention_scale, softcap=c.attention_softcap, mask=mask, bias=bias,
        sinks=f"{p}attn_sinks" if has_sinks else "", value_dim=value_dim,
    )  # fmt: skip
    if gate is not None:
        a = gate(g, g.spread(g.linear(h, f"{p}attn_gate"), a.width), a)
    if has_sub_norm:
        a = g.rms_norm(a, f"{p}attn_sub_norm", c.norm_eps)
    return g.linear(a, f"{p}attn_output")


def _rotate(g: Graph, c: ModelConfig, q: Tensor, k: Tensor, rope: Rope) -> tuple[Tensor, Tensor]:
    """Return queries (M, heads·head_dim) and keys (M, kv_heads·head_dim) after rotation."""
    factors = rope_factors(g, c) if rope is c.rope else None  # none for other ropes
    of_q = c.rope_queries if rope is c.rope else rope
    return (
        g.rope(q, of_q, head_dim=c.head_dim, factors=factors),
        g.rope(k, rope, head_dim=c.head_dim, factors=factors),
    )


def _distances(g: Graph, q: Tensor, k: Tensor, p: str) -> tuple[Tensor, Tensor]:
    """Return the inputs of biases that depend on queries and keys: see `Graph.attend`."""
    return g.heads_linear(q, f"{p}attn_k_rel"), g.heads_linear(k, f"{p}attn_q_rel")


def _norm(g: Graph, x: Tensor, c: ModelConfig, weight: str, norms: str) -> Tensor:
    """Norm queries or keys."""
    if norms == "centred head":
        return g.layer_norm(x, weight, c.norm_eps, bias=False, group=c.head_dim)
    return g.rms_norm(x, weight, c.norm_eps, group=None if norms == "all" else c.head_dim)


def _queries_keys_values(
    g: Graph, c: ModelConfig, h: Tensor, p: str, value_dim: int
) -> tuple[Tensor, Tensor, Tensor]:
    if not g.has(f"{p}attn_qkv.weight"):
        return g.linear(h, f"{p}attn_q"), g.linear(h, f"{p}attn_k"), g.linear(h, f"{p}attn_v")
    q = c.heads * c.head_dim
    k = q + c.kv_heads * c.head_dim
    v = k + c.kv_heads * value_dim
    rows = ((0, q), (q, k), (k, v))
    first, second, third = (g.linear(h, f"{p}attn_qkv", r) for r in rows)
    return first, second, third


def rope_factors(g: Graph, c: ModelConfig) -> str | None:
    """Return the tensor of frequencies' divisors: Llama 3's, or one of Phi's two; None if none."""
    if g.has("rope_freqs.weight"):
        return "rope_freqs"
    if not g.has("rope_factors_long.weight"):
        return None
    names = ("rope_factors_long", "rope_factors_short")
    name, other = names if c.extends_context else reversed(names)
    g.allow_unused(f"{other}.weight")
    return name


def gated_mlp(g: Graph, h: Tensor, p: str, gate: Gate, *, of: str = "") -> Tensor:
    """Add down(gate(first, second)), where first and second have one fused matrix or two.

    (M, n) -> (M, n). of: the ending of the tensors' names
    """
    (width, _), (_, inner) = g.matrix(f"{p}ffn_up{of}"), g.matrix(f"{p}ffn_down{of}")
    if width == 2 * inner:
        first = g.linear(h, f"{p}ffn_up{of}", (0, inner))
        second = g.linear(h, f"{p}ffn_up{of}", (inner, width))
    else:
        first, second = g.linear(h, f"{p}ffn_gate{of}"), g.linear(h, f"{p}ffn_up{of}")
    return g.linear(gate(first, second), f"{p}ffn_down{of}")


def feed_forward(
    g: Graph, c: ModelConfig, h: Tensor, layer: int, *, shared_gate: bool = False
) -> list[Tensor]:
    """Return the terms that a layer adds to the stream, (M, n) each.

    They are the result of its MLP; or, if the file has experts, the result of the experts and that
    of an MLP that all rows share, if there is one.
    shared_gate: whether a sigmoid of each row weighs the shared MLP
    """
    p = f"blk.{layer}."
    if not g.has(f"{p}ffn_gate_inp.weight"):
        return [gated_mlp(g, h, p, g.silu_mul)]
    mixture = experts(g, c, h, p)
    if not g.has(f"{p}ffn_up_shexp.weight"):
        return [mixture]
    shared = gated_mlp(g, h, p, g.silu_mul, of="_shexp")
    if shared_gate:
        shared = g.sigmoid_mul(g.linear(h, f"{p}ffn_gate_inp_shexp"), shared)
    return [mixture, shared]


def experts(g: Graph, c: ModelConfig, h: Tensor, p: str) -> Tensor:
    """Add the layer's experts, and the linear layer that scores them: (M, n) -> (M, n)."""
    if g.has(f"{p}ffn_up.0.weight"):
        raise FormatError(
            f"{p}ffn_up.0.weight: files with a tensor for each expert, as they were written until "
            "April 2024, are not supported; convert the model again"
        )
    if c.mixture is None:
        raise FormatError(f"{p}ffn_gate_inp.weight chooses experts, and expert_count says none")
    scores = g.linear(h, f"{p}ffn_gate_inp")  # (M, experts)
    return g.experts(h, scores, p, c.mixture)


def plain_mlp(
    g: Graph, h: Tensor, p: str, act: Callable[[Tensor], Tensor], *, of: str = ""
) -> Tensor:
    """Add down(act(up(h))): (M, n) -> (M, n). of: see ``gated_mlp``."""
    return g.linear(act(g.linear(h, f"{p}ffn_up{of}")), f"{p}ffn_down{of}")


def head(g: Graph, c: ModelConfig, x: Tensor, matrix: str = "") -> Tensor:
    """Add the matrix that turns the last norm's result into logits: (L, n) -> (L, vocab).

    matrix: the name of the matrix, if it is not the model's own
    """
    weight = matrix or ("output" if g.has("output.weight") else "token_embd")
    logits = g.linear(x, weight, bias="output")
    return g.softcap(g.scale(logits, 1 / c.logit_scale), c.logit_softcap)
