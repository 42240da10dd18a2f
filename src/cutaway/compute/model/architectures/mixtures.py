"""Mixtures of experts that are wired otherwise than llama: Phi 3.5, AFMoE, Llama 4, DeepSeek."""

from dataclasses import fields

from cutaway.compute.model.architectures.parts import attention, embedding, feed_forward, head
from cutaway.compute.model.config import ModelConfig
from cutaway.compute.model.graph import Graph, Tensor
from cutaway.compute.model.positions import GrowingRope
from cutaway.errors import FormatError


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


# -- DeepSeek V2 and V3: a latent in place of keys and values (arXiv 2405.04434, 2412.19437) -------


_EPS = 1e-6  # of the norms within attention, whatever the others' is


def deepseek2(g: Graph, c: ModelConfig) -> Tensor:
    """Llama with latent attention, and experts behind the first layers. Returns the logits."""
    x = embedding(g, c)  # (M, hidden)
    for layer, _ in enumerate(g.layers(c.layers)):
        x = deepseek2_layer(g, c, x, layer)
    return head(g, c, g.rms_norm(g.logit_rows(x), "output_norm", c.norm_eps))


def deepseek2_layer(g: Graph, c: ModelConfig, x: Tensor, layer: int) -> Tensor:
    """One of them: (M, hidden) -> (M, hidden)."""
    p = f"blk.{layer}."
    h = g.rms_norm(x, f"{p}attn_norm", c.norm_eps)
    x = g.add(x, _latent_attention(g, c, h, layer))
    h = g.rms_norm(x, f"{p}ffn_norm", c.norm_eps)
    for m in feed_forward(g, c, h, layer):
        x = g.add(x, m)
    return x


def _latent_attention(g: Graph, c: ModelConfig, h: Tensor, layer: int) -> Tensor:
    """Attention to latents: (M, hidden) -> (M, hidden).

    A head's key is K·latent beside the rotated numbers that all heads share, its value V·latent.
    Since q · K·latent = Kᵀq · latent, K goes into the query and V behind the attention, and all
    heads share one key, of which the latent is the value. Prompts and decoding alike.
    """
    if c.latent is None:
        raise FormatError("the model file lacks the metadata key attention.kv_lora_rank")
    p, (rank, rotated, keys, _) = f"blk.{layer}.", c.latent
    q = _queries(g, h, p)  # (M, heads·(keys + rotated))
    absorbed = g.heads_linear(g.pick(q, keys + rotated, 0, keys), f"{p}attn_k_b")
    q = g.join(g.pick(q, keys + rotated, keys, keys + rotated), absorbed, c.heads)

    latent = g.linear(h, f"{p}attn_kv_a_mqa", (0, rank))
    shared = g.linear(h, f"{p}attn_kv_a_mqa", (rank, rank + rotated))
    k = g.join(shared, g.rms_norm(latent, f"{p}attn_kv_a_norm", _EPS), 1)  # (M, rotated + rank)

    q, k = (g.rope(each, c.rope, head_dim=c.head_dim) for each in (q, k))
    a = g.attend_latent(
        q, k, layer=layer, heads=c.heads, first=rotated, scale=c.attention_scale
    )  # (M, heads·rank)
    return g.linear(g.heads_linear(a, f"{p}attn_v_b"), f"{p}attn_output")


def _queries(g: Graph, h: Tensor, p: str) -> Tensor:
    """Through one matrix, or two with a norm between them."""
    if g.has(f"{p}attn_q.weight"):
        return g.linear(h, f"{p}attn_q")
    narrow = g.rms_norm(g.linear(h, f"{p}attn_q_a"), f"{p}attn_q_a_norm", _EPS)
    return g.linear(narrow, f"{p}attn_q_b")
