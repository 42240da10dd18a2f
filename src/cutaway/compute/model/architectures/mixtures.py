"""Mixtures of experts that are wired otherwise than llama: Phi 3.5 MoE, AFMoE, Llama 4."""

from dataclasses import fields

from cutaway.compute.model.architectures.parts import attention, embedding, feed_forward, head
from cutaway.compute.model.config import ModelConfig
from cutaway.compute.model.graph import Graph, Tensor
from cutaway.compute.model.rope import GrowingRope


def phimoe(g: Graph, c: ModelConfig) -> Tensor:
    """Abdin et al. 2024, arXiv 2404.14219: layer norms, experts in each layer."""
    x = embedding(g, c)  # (M, hidden)
    for layer, p in enumerate(g.layers(c.layers)):
        h = g.layer_norm(x, f"{p}attn_norm", c.norm_eps)
        x = g.add(x, attention(g, c, h, layer, c.rope))
        h = g.layer_norm(x, f"{p}ffn_norm", c.norm_eps)
        for m in feed_forward(g, c, h, layer):
            x = g.add(x, m)

    return head(g, c, g.layer_norm(g.logit_rows(x), "output_norm", c.norm_eps))


def afmoe(g: Graph, c: ModelConfig) -> Tensor:
    """Arcee 2025, Trinity: norms on both sides, attention with a gate, rotated in windows alone."""
    x = g.scale(embedding(g, c), c.hidden**0.5)  # (M, hidden)
    for layer, p in enumerate(g.layers(c.layers)):
        h = g.rms_norm(x, f"{p}attn_norm", c.norm_eps)
        rope = c.rope if c.windows[layer] else None
        a = attention(g, c, h, layer, rope, norms="head", has_gate=True)
        x = g.add(x, g.rms_norm(a, f"{p}post_attention_norm", c.norm_eps))

        h = g.rms_norm(x, f"{p}ffn_norm", c.norm_eps)
        first, *others = feed_forward(g, c, h, layer)
        for other in others:
            first = g.add(first, other)
        x = g.add(x, g.rms_norm(first, f"{p}post_ffw_norm", c.norm_eps))

    return head(g, c, g.rms_norm(g.logit_rows(x), "output_norm", c.norm_eps))


def llama4(g: Graph, c: ModelConfig) -> Tensor:
    """Meta 2025: most layers see a chunk of the text and are rotated; the others see all of it,
    without positions, and their queries grow (arXiv 2501.19399)."""
    norms = "" if c.experts == 128 else "rotated head, unweighted"  # Maverick has none
    grown = _grown(c)
    x = embedding(g, c)  # (M, hidden)
    for layer, p in enumerate(g.layers(c.layers)):
        h = g.rms_norm(x, f"{p}attn_norm", c.norm_eps)
        if c.windows[layer] or not any(c.windows):
            a = attention(g, c, h, layer, c.rope, norms=norms, chunked=True)
        else:
            a = attention(g, c, h, layer, None, grown=grown)
        x = g.add(x, a)
        h = g.rms_norm(x, f"{p}ffn_norm", c.norm_eps)
        for m in feed_forward(g, c, h, layer):
            x = g.add(x, m)

    return head(g, c, g.rms_norm(g.logit_rows(x), "output_norm", c.norm_eps))


def _grown(c: ModelConfig) -> GrowingRope | None:
    """What queries that are not rotated are multiplied by."""
    if not c.temperature_period:
        return None
    plain = {each.name: getattr(c.rope, each.name) for each in fields(c.rope)}
    plain |= {"dim": c.head_dim, "yarn": None, "attention_factor": 1.0}
    growth, period = c.temperature_growth, c.temperature_period
    return GrowingRope(**plain, growth=growth, period=period, offset=1, turns=False)
