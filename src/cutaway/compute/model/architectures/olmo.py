"""OLMo 2: norms after attention and MLP only."""

from cutaway.compute.model.architectures.parts import attention, embedding, gated_mlp, head
from cutaway.compute.model.config import ModelConfig
from cutaway.compute.model.graph import Graph, Tensor


def olmo2(g: Graph, c: ModelConfig) -> Tensor:
    """Team OLMo 2024, arXiv 2501.00656. Returns the logits, (L, vocab)."""
    x = embedding(g, c)  # (M, hidden)
    for layer, p in enumerate(g.layers(c.layers)):
        a = attention(g, c, x, layer, c.rope, norms="all")
        x = g.add(x, g.rms_norm(a, f"{p}post_attention_norm", c.norm_eps))
        m = gated_mlp(g, x, p, g.silu_mul)
        x = g.add(x, g.rms_norm(m, f"{p}post_ffw_norm", c.norm_eps))

    return head(g, c, g.rms_norm(g.logit_rows(x), "output_norm", c.norm_eps))
