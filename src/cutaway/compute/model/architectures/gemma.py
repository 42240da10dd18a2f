"""Gemma: scaled embeddings; 2 and 3 have norms after attention and MLP, too, and windows."""

from cutaway.compute.model.architectures.parts import attention, embedding, gated_mlp, head
from cutaway.compute.model.config import ModelConfig
from cutaway.compute.model.graph import Graph, Tensor


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
