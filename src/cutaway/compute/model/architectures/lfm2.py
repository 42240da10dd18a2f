"""LFM2: in most layers a short convolution between two gates, attention in the others."""

from cutaway.compute.model.architectures.parts import attention, embedding, feed_forward, head
from cutaway.compute.model.config import ModelConfig
from cutaway.compute.model.graph import Graph, Tensor


def lfm2(g: Graph, c: ModelConfig) -> Tensor:
    """Liquid AI 2025, arXiv 2511.23404. GGUF calls the last norm after the embedding."""
    x = embedding(g, c)  # (M, hidden)
    for layer, p in enumerate(g.layers(c.layers)):
        h = g.rms_norm(x, f"{p}attn_norm", c.norm_eps)
        if c.recurrent[layer]:
            a = _short_conv(g, h, layer)
        else:
            a = attention(g, c, h, layer, c.rope, norms="head")
        x = g.add(x, a)
        h = g.rms_norm(x, f"{p}ffn_norm", c.norm_eps)
        for m in feed_forward(g, c, h, layer):
            x = g.add(x, m)  # (M, hidden)
    return head(g, c, g.rms_norm(g.logit_rows(x), "token_embd_norm", c.norm_eps))


def _short_conv(g: Graph, h: Tensor, layer: int) -> Tensor:
    """out(C · conv(B · x)), the three from one matrix: (M, hidden) -> (M, hidden)."""
    p, n = f"blk.{layer}.shortconv.", h.width
    b, c, x = (g.linear(h, f"{p}in_proj", (i * n, (i + 1) * n)) for i in range(3))
    return g.linear(g.mul(c, g.conv(g.mul(b, x), f"{p}conv", layer=layer)), f"{p}out_proj")
