"""Mixtures of experts: models wired as Llama or Qwen 3, and Phi 3.5, AFMoE, Llama 4, DeepSeek.

``files/huggingface/families/mixtures.py`` reads their folders.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from math import log
from typing import NamedTuple

from cutaway.compute.model.architectures.llama import (
    SECOND_NORM,
    hunyuan,
    llama,
    llama_layer,
    qwen3,
    sandwich,
)
from cutaway.compute.model.architectures.parts import attention, embedding, feed_forward, head
from cutaway.compute.model.config import Architecture, ModelConfig
from cutaway.compute.model.graph import Graph, Tensor
from cutaway.compute.model.metadata import MetadataReader
from cutaway.compute.model.mixture import Mixture
from cutaway.compute.model.ops.attention import Heads
from cutaway.compute.model.positions import GrowingRope, Rope
from cutaway.errors import FormatError


def qwen2_moe(g: Graph, c: ModelConfig) -> Tensor:
    """Build Llama with experts and a shared MLP; a row's sigmoid weighs it (arXiv 2407.10671)."""
    return llama(g, c, mlp=partial(feed_forward, shared_gate=True))


def olmoe(g: Graph, c: ModelConfig) -> Tensor:
    """Build Llama with a norm of all heads' queries and one of all keys (arXiv 2409.02060)."""
    return llama(g, c, norms="all")


def glm4_moe(g: Graph, c: ModelConfig) -> Tensor:
    """Build GLM 4.5 or 4.6 (arXiv 2508.06471): Llama with experts; some sizes also norm heads."""
    norms = "head" if g.has("blk.0.attn_q_norm.weight") else ""
    return llama(g, c, norms=norms, second_norm=SECOND_NORM)


def glm4_moe_layer(g: Graph, c: ModelConfig, x: Tensor, layer: int) -> Tensor:
    """Add a layer of GLM 4.5 or 4.6: (M, hidden) -> (M, hidden)."""
    norms = "head" if g.has(f"blk.{layer}.attn_q_norm.weight") else ""
    return llama_layer(g, c, x, layer, c.rope, norms=norms, second_norm=SECOND_NORM)


def gpt_oss(g: Graph, c: ModelConfig) -> Tensor:
    """Llama with experts, windows and sinks (arXiv 2508.10925)."""
    return llama(g, c, second_norm=SECOND_NORM, has_sinks=True)


def phimoe(g: Graph, c: ModelConfig) -> Tensor:
    """Llama with layer norms, and experts in each layer (arXiv 2404.14219)."""
    return llama(g, c, norm=Graph.layer_norm)


def afmoe(g: Graph, c: ModelConfig) -> Tensor:
    """Build Trinity (Arcee 2025), which has norms before and after each part, and gated attention.

    Only layers with a window rotate.
    """
    x = g.scale(embedding(g, c), c.hidden**0.5)  # (M, hidden)
    ropes = [c.rope if window else None for window in c.windows]
    return sandwich(g, c, x, ropes, norms="head", has_gate=True)


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


# -- DeepSeek V2 and V3: a latent in place of keys and values (arXiv 2405.04434, 2412.19437) -------


class Latent(NamedTuple):
    """The sizes of a latent attention.

    rank     how many numbers a token's latent has; keys and values are computed from the latent
    rotated  how many numbers of a key are rotated; all heads share these numbers
    keys     how many numbers of a head's key are not rotated
    values   how many numbers a head's value has
    """

    rank: int
    rotated: int
    keys: int
    values: int


def _latent(read: MetadataReader) -> Latent:
    """Read the sizes; files from before 2025 have other metadata keys for the sizes of heads."""
    of_heads = "_mla" if read.value("attention.key_length_mla") is not None else ""
    key = read.size(f"attention.key_length{of_heads}")
    rank, rotated = read.size("attention.kv_lora_rank"), read.size("rope.dimension_count")
    if rotated >= key:
        raise FormatError(f"{rotated} numbers of a key of {key} are rotated, which leaves none")
    return Latent(rank, rotated, key - rotated, read.size(f"attention.value_length{of_heads}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSeek(ModelConfig):
    """The config of DeepSeek; latent: the sizes of what is stored in place of keys and values."""

    latent: Latent


def _heads(read: MetadataReader, _windows: Sequence[int]) -> Heads:
    latent = _latent(read)
    return Heads(read.size("attention.head_count"), 1, latent.rank + latent.rotated)


def _read_deepseek(read: MetadataReader, c: ModelConfig) -> DeepSeek:
    """Read what only DeepSeek has. With yarn, scores are scaled instead of the rotated numbers."""
    latent, factor = _latent(read), read.number("rope.scaling.attn_factor", 1.0)
    rope, queries = (replace(r, attention_factor=factor) for r in (c.rope, c.rope_queries))
    scale = (latent.keys + latent.rotated) ** -0.5 * _sharpness(read, rope) ** 2
    return c.as_kind(
        DeepSeek, latent=latent, rope=rope, rope_queries=queries,
        attention_scale=read.or_zero("attention.scale") or scale,
    )  # fmt: skip


def _sharpness(read: MetadataReader, rope: Rope) -> float:
    """Return the factor whose square multiplies scores; files have the weight of a logarithm."""
    weight = read.or_zero("rope.scaling.yarn_log_multiplier")
    return 1 + weight * log(rope.yarn.factor) if rope.yarn and rope.yarn.factor > 1 else 1.0


_EPS = 1e-6  # the epsilon of norms within attention; other norms have the epsilon of the config


def deepseek2(g: Graph, c: DeepSeek) -> Tensor:
    """Build Llama with latent attention, and experts after some layers. Returns the logits."""
    x = embedding(g, c)  # (M, hidden)
    for layer, _ in enumerate(g.layers(c.layers)):
        x = deepseek2_layer(g, c, x, layer)
    return head(g, c, g.rms_norm(g.logit_rows(x), "output_norm", c.norm_eps))


def deepseek2_layer(g: Graph, c: DeepSeek, x: Tensor, layer: int) -> Tensor:
    """Add a layer of DeepSeek: (M, hidden) -> (M, hidden)."""
    p = f"blk.{layer}."
    h = g.rms_norm(x, f"{p}attn_norm", c.norm_eps)
    x = g.add(x, _latent_attention(g, c, h, layer))
    h = g.rms_norm(x, f"{p}ffn_norm", c.norm_eps)
    for m in feed_forward(g, c, h, layer):
        x = g.add(x, m)
    return x


def _latent_attention(g: Graph, c: DeepSeek, h: Tensor, layer: int) -> Tensor:
    """Attention to latents: (M, hidden) -> (M, hidden).

    A head's key is K·latent, joined to the rotated numbers that all heads share; its value is
    V·latent. Since q · K·latent = Kᵀq · latent, K is applied to the query, and V after attention.
    So all heads share one key, and the latent in this key is the value, in prompts and in decoding.
    """
    p, (rank, rotated, keys, _) = f"blk.{layer}.", c.latent
    q = _queries(g, h, p)  # (M, heads·(keys + rotated))
    absorbed = g.heads_linear(g.pick(q, keys + rotated, 0, keys), f"{p}attn_k_b")
    q = g.join(g.pick(q, keys + rotated, keys, keys + rotated), absorbed, c.heads)

    latent = g.linear(h, f"{p}attn_kv_a_mqa", (0, rank))
    shared = g.linear(h, f"{p}attn_kv_a_mqa", (rank, rank + rotated))
    k = g.join(shared, g.rms_norm(latent, f"{p}attn_kv_a_norm", _EPS), 1)  # (M, rotated + rank)

    q, k = (g.rope(heads, c.rope, head_dim=c.head_dim) for heads in (q, k))
    a = g.attend_latent(
        q, k, layer=layer, heads=c.heads, first=rotated, scale=c.attention_scale
    )  # (M, heads·rank)
    return g.linear(g.heads_linear(a, f"{p}attn_v_b"), f"{p}attn_output")


def _queries(g: Graph, h: Tensor, p: str) -> Tensor:
    """Compute queries with one matrix, or with two and a norm between them."""
    if g.has(f"{p}attn_q.weight"):
        return g.linear(h, f"{p}attn_q")
    narrow = g.rms_norm(g.linear(h, f"{p}attn_q_a"), f"{p}attn_q_a_norm", _EPS)
    return g.linear(narrow, f"{p}attn_q_b")


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
    "deepseek2": Architecture(  # V2, V3, R1, Kimi K2, GLM 4.7 Flash
        deepseek2, interleaved_rope=True, layer=deepseek2_layer, heads=_heads,
        extend=_read_deepseek, mixture=Mixture(used=1, normed=False, best_of_group=1),
    ),
}  # fmt: skip
