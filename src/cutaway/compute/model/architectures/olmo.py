"""OLMo 2 and 3, EXAONE 4: norms after attention and MLP only."""

from cutaway.compute.model.architectures.parts import attention, embedding, gated_mlp, head
from cutaway.compute.model.config import ModelConfig
from cutaway.compute.model.graph import Graph, Tensor
from cutaway.compute.model.rope import Rope


def olmo2(g: Graph, c: ModelConfig) -> Tensor:
    """Team OLMo 2024, arXiv 2501.00656; OLMo 3 (arXiv 2512.13961) has windows and two ropes."""
    ropes: list[Rope | None] = [c.rope_local if window else c.rope for window in c.windows]
    return _norms_behind(g, c, ropes, norms="all")


def exaone4(g: Graph, c: ModelConfig) -> Tensor:
    """LG AI Research 2025, arXiv 2507.11407: beside windows, those that see all rotate nothing."""
    is_local = any(c.windows)
    ropes = [c.rope if window or not is_local else None for window in c.windows]
    return _norms_behind(g, c, ropes, norms="head")


def _norms_behind(g: Graph, c: ModelConfig, ropes: list[Rope | None], *, norms: str) -> Tensor:
    """Returns the logits, (L, vocab). norms: see ``attention``."""
    x = embedding(g, c)  # (M, hidden)
    for layer, p in enumerate(g.layers(c.layers)):
        a = attention(g, c, x, layer, ropes[layer], norms=norms)
        x = g.add(x, g.rms_norm(a, f"{p}post_attention_norm", c.norm_eps))
        m = gated_mlp(g, x, p, g.silu_mul)
        x = g.add(x, g.rms_norm(m, f"{p}post_ffw_norm", c.norm_eps))

    return head(g, c, g.rms_norm(g.logit_rows(x), "output_norm", c.norm_eps))
