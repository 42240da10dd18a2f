"""Gemma: scaled embeddings; 2 and 3 have norms after attention and MLP, too, and windows.

In Gemma 4 layers differ in their heads, and each has an embedding of the token of its own.
"""

from cutaway.compute.model.architectures.parts import attention, embedding, gated_mlp, head
from cutaway.compute.model.config import ModelConfig
from cutaway.compute.model.graph import Graph, Tensor
from cutaway.compute.model.ops.attention import Heads, Mask
from cutaway.errors import FormatError


def gemma(g: Graph, c: ModelConfig) -> Tensor:
    """Gemma Team 2024, arXiv 2403.08295: llama with another gate. Returns the logits, (L, vocab).

    GGUF's norm weights have their 1 added already.
    """
    x = g.scale(embedding(g, c), c.hidden**0.5)  # (M, hidden)
    for layer, p in enumerate(g.layers(c.layers)):
        h = g.rms_norm(x, f"{p}attn_norm", c.norm_eps)
        x = g.add(x, attention(g, c, h, layer, c.rope))
        h = g.rms_norm(x, f"{p}ffn_norm", c.norm_eps)
        x = g.add(x, gated_mlp(g, h, p, g.gelu_mul))

    return head(g, c, g.rms_norm(g.logit_rows(x), "output_norm", c.norm_eps))


def gemma2(g: Graph, c: ModelConfig, *, norms: str = "") -> Tensor:
    """Gemma Team 2024, arXiv 2408.00118.

    norms: see ``attention``. Returns the logits, (L, vocab).
    """
    x = g.scale(embedding(g, c), c.hidden**0.5)  # (M, hidden)
    for layer, p in enumerate(g.layers(c.layers)):
        h = g.rms_norm(x, f"{p}attn_norm", c.norm_eps)
        rope = c.rope_local if norms and c.windows[layer] else c.rope
        a = attention(g, c, h, layer, rope, norms=norms)
        x = g.add(x, g.rms_norm(a, f"{p}post_attention_norm", c.norm_eps))

        h = g.rms_norm(x, f"{p}ffn_norm", c.norm_eps)
        m = gated_mlp(g, h, p, g.gelu_mul)
        x = g.add(x, g.rms_norm(m, f"{p}post_ffw_norm", c.norm_eps))

    return head(g, c, g.rms_norm(g.logit_rows(x), "output_norm", c.norm_eps))


def gemma3(g: Graph, c: ModelConfig) -> Tensor:
    """With a norm of each head's query and key (Gemma Team 2025, arXiv 2503.19786)."""
    return gemma2(g, c, norms="head")


def gemma_embedding(g: Graph, c: ModelConfig) -> Tensor:
    """Gemma 3 whose tokens see to both sides, without a head (arXiv 2509.20354)."""
    gemma3(g, c)
    return g.cut_head()


# -- Gemma 4 ---------------------------------------------------------------------------------------


def gemma4(g: Graph, c: ModelConfig) -> Tensor:
    """Gemma Team 2026: E2B, E4B, 12B, 26B-A4B, 31B. Returns the logits, (L, vocab)."""
    x = g.scale(embedding(g, c), c.hidden**0.5)  # (M, hidden)
    beside = _of_layers(g, c, x)
    for layer, p in enumerate(g.layers(c.layers)):
        h = g.rms_norm(x, f"{p}attn_norm", c.norm_eps)
        a = _attention(g, c, h, layer)
        x = g.add(x, g.rms_norm(a, f"{p}post_attention_norm", c.norm_eps))
        m = _feed_forward(g, c, x, p)
        x = g.add(x, g.rms_norm(m, f"{p}post_ffw_norm", c.norm_eps))
        if beside is not None:
            n = beside.width // c.layers
            mine = g.pick(beside, beside.width, layer * n, (layer + 1) * n)
            mine = g.gelu_mul(g.linear(x, f"{p}inp_gate"), mine)
            x = g.add(x, g.rms_norm(g.linear(mine, f"{p}proj"), f"{p}post_norm", c.norm_eps))
        if g.has(f"{p}layer_output_scale.weight"):
            x = g.scale_by(x, f"{p}layer_output_scale")

    return head(g, c, g.rms_norm(g.logit_rows(x), "output_norm", c.norm_eps))


def _of_layers(g: Graph, c: ModelConfig, x: Tensor) -> Tensor | None:
    """What each layer adds of the token itself, all side by side: (M, layers·n); None: nothing."""
    if not g.has("per_layer_token_embd.weight"):
        return None
    rows, width = g.matrix("per_layer_token_embd")
    if rows != g.matrix("token_embd")[0] or width % c.layers:
        raise FormatError(
            f"tensor per_layer_token_embd.weight is {rows} by {width}, which is no row for each "
            f"token with as many numbers for each of {c.layers} layers"
        )
    n = width // c.layers
    token = g.scale(g.embed_stored("per_layer_token_embd"), n**0.5)
    seen = g.scale(g.linear(x, "per_layer_model_proj"), c.hidden**-0.5)
    seen = g.rms_norm(seen, "per_layer_proj_norm", c.norm_eps, group=n)
    return g.scale(g.add(seen, token), 2**-0.5)


def _attention(g: Graph, c: ModelConfig, h: Tensor, layer: int) -> Tensor:
    """Attention with norms of queries, keys and values: (M, hidden) -> (M, hidden).

    Values are keys before their norm where a layer has no matrix for them.
    """
    p, (kv_heads, n, reads) = f"blk.{layer}.", c.own_heads[layer]
    window = c.windows[layer]
    rope = c.rope_local if window else c.rope
    factors = None if window or not g.has("rope_freqs.weight") else "rope_freqs"
    q = g.rms_norm(g.linear(h, f"{p}attn_q"), f"{p}attn_q_norm", c.norm_eps, group=n)
    q = g.rope(q, rope, head_dim=n, factors=factors)
    scale = c.attention_scale
    if reads != layer:
        for one in ("attn_k", "attn_v", "attn_k_norm"):  # of which some files have copies
            g.allow_unused(f"{p}{one}.weight")
        a = g.attend_again(q, layer=layer, reads=reads, heads=c.heads, scale=scale)
        return g.linear(a, f"{p}attn_output")
    k = g.linear(h, f"{p}attn_k")
    v = g.linear(h, f"{p}attn_v") if g.has(f"{p}attn_v.weight") else k
    v = g.rms_norm(v, "", c.norm_eps, group=n)
    k = g.rope(
        g.rms_norm(k, f"{p}attn_k_norm", c.norm_eps, group=n), rope, head_dim=n, factors=factors
    )
    a = g.attend(
        q, k, v, layer=layer, heads=Heads(c.heads, kv_heads, n), scale=scale, mask=Mask(window)
    )  # fmt: skip
    return g.linear(a, f"{p}attn_output")


def _feed_forward(g: Graph, c: ModelConfig, x: Tensor, p: str) -> Tensor:
    """The MLP, and beside it the experts, each with norms of its own: (M, n) -> (M, n)."""
    m = gated_mlp(g, g.rms_norm(x, f"{p}ffn_norm", c.norm_eps), p, g.gelu_mul)
    if c.mixture is None:
        return m
    m = g.rms_norm(m, f"{p}post_ffw_norm_1", c.norm_eps)
    read = g.rms_norm(x, f"{p}ffn_gate_inp", c.norm_eps, ending="scale")
    scores = g.linear(g.scale(read, c.hidden**-0.5), f"{p}ffn_gate_inp")
    y = g.experts(g.rms_norm(x, f"{p}pre_ffw_norm_2", c.norm_eps), scores, p, c.mixture)
    return g.add(m, g.rms_norm(y, f"{p}post_ffw_norm_2", c.norm_eps))
