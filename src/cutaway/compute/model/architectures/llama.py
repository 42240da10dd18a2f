"""Llama and those that are wired like it."""

from cutaway.compute.model.architectures.parts import attention, embedding, gated_mlp, head, mixture
from cutaway.compute.model.config import ModelConfig
from cutaway.compute.model.graph import Graph, Tensor


def llama(g: Graph, c: ModelConfig, *, norms: str = "", nope_interval: int = 0) -> Tensor:
    """Pre-norm decoder with rotary positions, grouped heads and a gated MLP or experts.

    Touvron et al. 2023, arXiv 2302.13971; with experts Jiang et al. 2024, arXiv 2401.04088.
    norms: see ``attention``; nope_interval: every so-many-th layer has no positions (NoPE).
    Returns the logits, (L, vocab).
    """
    x = embedding(g, c)  # (M, hidden)
    for layer, p in enumerate(g.layers(c.layers)):
        is_rotated = not nope_interval or (layer + 1) % nope_interval
        h = g.rms_norm(x, f"{p}attn_norm", c.norm_eps)
        a = attention(g, c, h, layer, c.rope if is_rotated else None, norms=norms)
        x = g.add(x, g.scale(a, c.residual_scale))

        h = g.rms_norm(x, f"{p}ffn_norm", c.norm_eps)
        m = mixture(g, c, h, p) if c.experts else gated_mlp(g, h, p, g.silu_mul)
        x = g.add(x, g.scale(m, c.residual_scale))  # (M, hidden)

    return head(g, c, g.rms_norm(g.logit_rows(x), "output_norm", c.norm_eps))


def qwen3(g: Graph, c: ModelConfig) -> Tensor:
    """Llama with a norm of each head's query and key (Yang et al. 2025, arXiv 2505.09388)."""
    return llama(g, c, norms="head")


def smollm3(g: Graph, c: ModelConfig) -> Tensor:
    """Llama without positions in every fourth layer (Yang et al. 2025, arXiv 2501.18795)."""
    return llama(g, c, nope_interval=4)
