"""Cohere's Command models: attention and MLP side by side, after one norm without a bias."""

from cutaway.compute.model.architectures.parts import attention, embedding, gated_mlp, head
from cutaway.compute.model.config import ModelConfig
from cutaway.compute.model.graph import Graph, Tensor


def cohere(g: Graph, c: ModelConfig, *, rotates_all: bool = True) -> Tensor:
    """Command R. Returns the logits, (L, vocab).

    rotates_all: else layers that see the whole text have no positions
    """
    x = embedding(g, c)  # (M, hidden)
    for layer, p in enumerate(g.layers(c.layers)):
        h = g.layer_norm(x, f"{p}attn_norm", c.norm_eps, bias=False)
        rope = c.rope if rotates_all or c.windows[layer] else None
        after = g.add(x, attention(g, c, h, layer, rope))
        x = g.add(after, gated_mlp(g, h, p, g.silu_mul))

    return head(g, c, g.layer_norm(g.logit_rows(x), "output_norm", c.norm_eps, bias=False))


def cohere2(g: Graph, c: ModelConfig) -> Tensor:
    """Command A and R7B (Cohere 2025, arXiv 2504.00698): three of four layers see a window."""
    return cohere(g, c, rotates_all=False)
