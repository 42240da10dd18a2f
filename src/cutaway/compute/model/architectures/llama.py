"""Llama and those that are wired like it, or differ in where their norms stand."""

from collections.abc import Callable
from functools import partial

from cutaway.compute.model.architectures.parts import (
    attention,
    embedding,
    feed_forward,
    gated_mlp,
    head,
    plain_mlp,
)
from cutaway.compute.model.config import ModelConfig
from cutaway.compute.model.graph import Graph, Tensor
from cutaway.compute.model.positions import Rope
from cutaway.errors import FormatError

_SECOND_NORM = "post_attention_norm"  # as some files call the one before the MLP
Mlp = Callable[[Graph, ModelConfig, Tensor, int], list[Tensor]]
"""What the MLP of a layer, or its experts, add to the stream, of its normed input."""


def llama(
    g: Graph, c: ModelConfig,
    *, norms: str = "", nope_interval: int = 0, second_norm: str = "ffn_norm",
    mlp: Mlp = feed_forward, has_sinks: bool = False,
) -> Tensor:  # fmt: skip
    """Pre-norm decoder with rotary positions, grouped heads and a gated MLP or experts.

    Touvron et al. 2023, arXiv 2302.13971; with experts Jiang et al. 2024, arXiv 2401.04088.
    norms: see ``attention``; nope_interval: every so-many-th layer has no positions (NoPE);
    second_norm: what files call the norm before the MLP; mlp: gated, or experts;
    has_sinks: whether each head has a score beside those of the tokens.
    Returns the logits, (L, vocab).
    """
    x = embedding(g, c)  # (M, hidden)
    for layer, _ in enumerate(g.layers(c.layers)):
        is_rotated = not nope_interval or (layer + 1) % nope_interval
        x = _layer(
            g, c, x, layer, c.rope if is_rotated else None,
            norms=norms, second_norm=second_norm, mlp=mlp, has_sinks=has_sinks,
        )  # fmt: skip
    return head(g, c, g.rms_norm(g.logit_rows(x), "output_norm", c.norm_eps))


def _layer(
    g: Graph, c: ModelConfig, x: Tensor, layer: int, rope: Rope | None,
    *, norms: str, second_norm: str, mlp: Mlp, has_sinks: bool,
) -> Tensor:  # fmt: skip
    """(M, hidden) -> (M, hidden)."""
    p = f"blk.{layer}."
    h = g.rms_norm(x, f"{p}attn_norm", c.norm_eps)
    a = attention(g, c, h, layer, rope, norms=norms, has_sinks=has_sinks)
    x = g.add(x, g.scale(a, c.residual_scale))

    h = g.rms_norm(x, f"{p}{second_norm}", c.norm_eps)
    for m in mlp(g, c, h, layer):
        x = g.add(x, g.scale(m, c.residual_scale))
    return x


def qwen3(g: Graph, c: ModelConfig) -> Tensor:
    """Llama with a norm of each head's query and key (Yang et al. 2025, arXiv 2505.09388)."""
    return llama(g, c, norms="head")


def qwen2_moe(g: Graph, c: ModelConfig) -> Tensor:
    """Llama with experts, and one that each row has a share of (arXiv 2407.10671)."""
    return llama(g, c, mlp=partial(feed_forward, shared_gate=True))


def olmoe(g: Graph, c: ModelConfig) -> Tensor:
    """Llama with one norm of all queries and one of all keys (OLMoE, arXiv 2409.02060)."""
    return llama(g, c, norms="all")


def glm4_moe(g: Graph, c: ModelConfig) -> Tensor:
    """GLM 4.5 and 4.6 (arXiv 2508.06471); not all sizes norm heads, nor is GGUF's second norm
    called as elsewhere."""
    norms = "head" if g.has("blk.0.attn_q_norm.weight") else ""
    return llama(g, c, norms=norms, second_norm=_SECOND_NORM)


def glm4_moe_layer(g: Graph, c: ModelConfig, x: Tensor, layer: int) -> Tensor:
    """One of them."""
    norms = "head" if g.has(f"blk.{layer}.attn_q_norm.weight") else ""
    return _layer(
        g, c, x, layer, c.rope, norms=norms, second_norm=_SECOND_NORM, mlp=feed_forward,
        has_sinks=False,
    )  # fmt: skip


def gpt_oss(g: Graph, c: ModelConfig) -> Tensor:
    """Llama with experts, windows and sinks (arXiv 2508.10925)."""
    return llama(g, c, second_norm=_SECOND_NORM, has_sinks=True)


def smollm3(g: Graph, c: ModelConfig) -> Tensor:
    """Llama without positions in every fourth layer (Yang et al. 2025, arXiv 2501.18795)."""
    return llama(g, c, nope_interval=4)


def arcee(g: Graph, c: ModelConfig) -> Tensor:
    """Llama with a plain MLP (Arcee 2025, AFM 4.5B)."""
    return llama(g, c, mlp=lambda g, _, h, layer: [plain_mlp(g, h, f"blk.{layer}.", g.relu2)])


def apertus(g: Graph, c: ModelConfig) -> Tensor:
    """Qwen 3's attention, and a plain MLP with xIELU (Apertus 2025, arXiv 2509.14233)."""

    if not c.xielu:
        raise FormatError("the model file lacks the metadata key xielu.alpha_p")

    def mlp(g: Graph, c: ModelConfig, h: Tensor, layer: int) -> list[Tensor]:
        return [plain_mlp(g, h, f"blk.{layer}.", lambda x: c.xielu[layer].of(g, x))]

    return llama(g, c, norms="head", mlp=mlp)


def hunyuan(g: Graph, c: ModelConfig) -> Tensor:
    """Llama with a norm of each head's query and key, after they are rotated (Hunyuan, dense)."""
    return llama(g, c, norms="rotated head")


def seed_oss(g: Graph, c: ModelConfig) -> Tensor:
    """Llama, with biases; GGUF calls the norm before the MLP after what comes before it."""
    return llama(g, c, second_norm=_SECOND_NORM)


def eurobert(g: Graph, c: ModelConfig) -> Tensor:
    """Llama whose tokens see the whole text (Boizard et al. 2025, arXiv 2503.05500); without the
    head that predicts masked tokens, the rows that it would read."""
    logits = llama(g, c)
    return logits if g.has("output.weight") else g.cut_head()


def minicpm(g: Graph, c: ModelConfig) -> Tensor:
    """Llama with scales (Hu et al. 2024, arXiv 2404.06395), which early files do not hold."""
    if c.embedding_scale == 1:
        raise FormatError("minicpm.embedding_scale is missing: convert the model again")
    return llama(g, c)


# -- OLMo 2 and 3, EXAONE 4: norms after attention and MLP only ------------------------------------


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


# -- GLM 4: norms before and after attention and MLP, rope on a part of each head ------------------


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


# -- Cohere's Command: attention and MLP side by side, after one norm without a bias ---------------


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
