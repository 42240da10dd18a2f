"""Mixtures of experts: models wired as Llama, Qwen 3 or OLMo 2, and Phi 3.5, AFMoE, Llama 4.

``files/huggingface/families/mixtures.py`` reads their folders.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import partial

from cutaway.compute.model.architectures.llama import (
    SECOND_NORM,
    LayerWiring,
    hunyuan,
    llama,
    llama_layer,
    norms_behind,
    qwen3,
    windows_rotate,
)
from cutaway.compute.model.architectures.parts import attention, embedding, feed_forward, head
from cutaway.compute.model.config import Architecture, ModelConfig
from cutaway.compute.model.graph import Graph, Tensor
from cutaway.compute.model.metadata import MetadataReader
from cutaway.compute.model.mixture import Mixture
from cutaway.compute.model.positions import GrowingRope


def qwen2_moe(g: Graph, c: ModelConfig) -> Tensor:
    """Build Llama with experts and a shared MLP; a row's sigmoid weighs it (arXiv 2407.10671)."""
    return llama(g, c, LayerWiring(mlp=partial(feed_forward, shared_gate=True)))


def olmoe(g: Graph, c: ModelConfig) -> Tensor:
    """Build Llama with a norm of all heads' queries and one of all keys (arXiv 2409.02060)."""
    return llama(g, c, LayerWiring(norms="all"))


def flex_olmo(g: Graph, c: ModelConfig) -> Tensor:
    """Build OLMo 2 with experts in each layer (Shi et al. 2025, arXiv 2507.07024)."""
    return norms_behind(g, c, [c.rope] * c.layers, norms="all")


def glm4_moe(g: Graph, c: ModelConfig) -> Tensor:
    """Build GLM 4.5 or 4.6 (arXiv 2508.06471): Llama with experts; some sizes also norm heads."""
    return llama(g, c, _glm4_moe_wiring(g, 0))


def glm4_moe_layer(g: Graph, c: ModelConfig, x: Tensor, layer: int) -> Tensor:
    """Add a layer of GLM 4.5 or 4.6: (M, hidden) -> (M, hidden)."""
    return llama_layer(g, c, x, layer, c.rope, wiring=_glm4_moe_wiring(g, layer))


def _glm4_moe_wiring(g: Graph, layer: int) -> LayerWiring:
    norms = "head" if g.has(f"blk.{layer}.attn_q_norm.weight") else ""
    return LayerWiring(norms=norms, second_norm=SECOND_NORM)


def gpt_oss(g: Graph, c: ModelConfig) -> Tensor:
    """Llama with experts, windows and sinks (arXiv 2508.10925)."""
    return llama(g, c, LayerWiring(second_norm=SECOND_NORM, has_sinks=True))


def phimoe(g: Graph, c: ModelConfig) -> Tensor:
    """Llama with layer norms, and experts in each layer (arXiv 2404.14219)."""
    return llama(g, c, LayerWiring(norm=Graph.layer_norm))


def afmoe(g: Graph, c: ModelConfig) -> Tensor:
    """Build Trinity (Arcee 2025), which has norms before and after each part, and gated attention.

    Only layers with a window rotate.
    """
    ropes = [c.rope if window else None for window in c.windows]
    wiring = LayerWiring(norms="head", post_norm=Graph.rms_norm, gate=Graph.sigmoid_mul)
    return llama(g, c, wiring, ropes=ropes, scale=c.hidden**0.5)


def mellum(g: Graph, c: ModelConfig) -> Tensor:
    """Build Qwen 3 with experts and windows, whose layers have a rope of their own (Mellum 2)."""
    ropes = [c.rope_local if window else c.rope for window in c.windows]
    return llama(g, c, LayerWiring(norms="head"), ropes=ropes)


def exaone_moe(g: Graph, c: ModelConfig) -> Tensor:
    """Build K-EXAONE (LG 2026, arXiv 2601.01739): where layers have windows, only these rotate."""
    return llama(g, c, LayerWiring(norms="head"), ropes=windows_rotate(c))


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama4(ModelConfig):
    """The config of Llama 4.

    temperature_*: how much queries of layers without positions grow, and in how many tokens; 0:
        they do not grow; see ``GrowingRope``
    """

    temperature_growth: float
    temperature_period: int


def _read_llama4(read: MetadataReader, c: ModelConfig) -> Llama4:
    growth = read.or_zero("attention.temperature_scale", 0.1)
    period = read.size_or_zero("attention.temperature_length") if growth else 0
    return c.as_kind(Llama4, temperature_growth=growth, temperature_period=period)


def llama4(g: Graph, c: Llama4) -> Tensor:
    """Build Llama 4 (Meta 2025). Most layers see a chunk of the text, and rotate.

    The other layers see the whole text and have no positions; their queries grow (arXiv
    2501.19399).
    """
    norms = "" if c.experts == 128 else "rotated head, unweighted"  # Maverick has no such norms
    query_growth = _query_growth(c)
    x = embedding(g, c)  # (M, hidden)
    for layer, p in enumerate(g.layers(c.layers)):
        h = g.rms_norm(x, f"{p}attn_norm", c.norm_eps)
        if c.windows[layer] or not any(c.windows):
            a = attention(g, c, h, layer, c.rope, norms=norms, chunked=True)
        else:
            a = attention(g, c, h, layer, None, growth=query_growth)
        x = g.add(x, a)
        h = g.rms_norm(x, f"{p}ffn_norm", c.norm_eps)
        for m in feed_forward(g, c, h, layer):
            x = g.add(x, m)

    return head(g, c, g.rms_norm(g.logit_rows(x), "output_norm", c.norm_eps))


def _query_growth(c: Llama4) -> GrowingRope | None:
    """Return the rope that only multiplies queries by their growth; None if they do not grow."""
    if not c.temperature_period:
        return None
    plain = {field.name: getattr(c.rope, field.name) for field in fields(c.rope)}
    plain |= {"dim": c.head_dim, "yarn": None, "attention_factor": 1.0}
    growth, period = c.temperature_growth, c.temperature_period
    return GrowingRope(**plain, growth=growth, period=period, offset=1, turns=False)


# -- rows ------------------------------------------------------------------------------------------


_UNNORMED = Mixture(used=1, normed=False)
_SIGMOID = Mixture(used=1, gating="sigmoid", normed=False)
_PATTERN = "attention.sliding_window_pattern"

ROWS: Mapping[str, Architecture] = {
    "qwen3moe": Architecture(qwen3),
    # There are experts that all rows share where the file has such experts.
    "qwen2moe": Architecture(qwen2_moe, mixture=_UNNORMED),
    "olmoe": Architecture(olmoe, mixture=_UNNORMED),
    "granitemoe": Architecture(llama, interleaved_rope=True),  # as granite
    "ernie4_5-moe": Architecture(  # its experts are chosen with a bias, but not by sigmoid
        llama, interleaved_rope=True, defaults={"expert_gating_func": 1}
    ),
    "glm4moe": Architecture(glm4_moe, mixture=_SIGMOID, layer=glm4_moe_layer),
    "dots1": Architecture(qwen3, mixture=_SIGMOID),
    "hunyuan-moe": Architecture(hunyuan),
    "gpt-oss": Architecture(
        gpt_oss,
        defaults={
            "attention.sliding_window": 128, _PATTERN: 2, "rope.scaling.yarn_truncates": False,
        },
        mixture=Mixture(used=1, activation="clamped_swiglu", limit=7.0),
    ),
    "minimax-m2": Architecture(olmoe, mixture=replace(_SIGMOID, normed=True)),
    "mellum": Architecture(mellum, defaults={_PATTERN: 4, "rope.freq_base_swa": 0}),
    "exaone-moe": Architecture(exaone_moe, defaults={_PATTERN: 4}, mixture=_SIGMOID),
    "flex-olmo": Architecture(flex_olmo, mixture=_UNNORMED),
    "phimoe": Architecture(
        phimoe, mixture=Mixture(used=1, gating="sparsemixer", normed=False, tolerance=0.02)
    ),
    "afmoe": Architecture(afmoe, defaults={_PATTERN: 4}, mixture=_SIGMOID),
    "llama4": Architecture(
        llama4, interleaved_rope=True, extend=_read_llama4,
        defaults={
            "attention.sliding_window": 8192, _PATTERN: 4, "attention.temperature_length": 8192,
        },
        mixture=Mixture(used=1, gating="sigmoid", normed=False, weighs_input=True),
    ),
}  # fmt: skip
