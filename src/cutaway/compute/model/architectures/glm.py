"""GLM 4: norms before and after attention and MLP, rope on a part of each head."""

from cutaway.compute.model.architectures.parts import attention, embedding, gated_mlp, head
from cutaway.compute.model.config import ModelConfig
from cutaway.compute.model.graph import Graph, Tensor


def glm4(g: Graph, c: ModelConfig) -> Tensor:
    """GLM-4-0414. Returns the logits, (L, vocab)."""
    x = embedding(g, c)  # (M, hidden)
    for layer, p in enumerate(g.layers(c.layers)):
        h = g.rms_norm(x, f"{p}attn_norm", c.norm_eps)
        a = attention(g, c, h, layer, c.rope)
        x = g.add(x, g.rms_norm(a, f"{p}post_attention_norm", c.norm_eps))
        h = g.rms_norm(x, f"{p}ffn_norm", c.norm_eps)
        m = gated_mlp(g, h, p, g.silu_mul)
        x = g.add(x, g.rms_norm(m, f"{p}post_ffw_norm", c.norm_eps))

    return head(g, c, g.rms_norm(g.logit_rows(x), "output_norm", c.norm_eps))
