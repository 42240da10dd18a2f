"""DeepSeek V2, V3, and MiniCPM 3: a latent in place of keys and values (arXiv 2405.04434,
2412.19437).

Kimi Linear has this attention in every fourth layer.

``files/huggingface/families/deepseek.py`` reads their folders.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import log, sqrt
from typing import NamedTuple

from cutaway.compute.model.architectures.parts import (
    embedding,
    feed_forward,
    head,
    rope_factors,
)
from cutaway.compute.model.architectures.recurrent import StateHeads
from cutaway.compute.model.config import Architecture, ModelConfig
from cutaway.compute.model.graph import Graph, Tensor
from cutaway.compute.model.metadata import MetadataReader
from cutaway.compute.model.mixture import Mixture
from cutaway.compute.model.ops.attention import Heads
from cutaway.compute.model.positions import Rope
from cutaway.errors import FormatError


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
    usual = None
    if read.prefix == "minicpm3":  # llama.cpp's converter leaves the key out
        usual = read.size("embedding_length") // read.size("attention.head_count") or None
    value = read.size(f"attention.value_length{of_heads}", None if of_heads else usual)
    return Latent(rank, rotated, key - rotated, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSeek(ModelConfig):
    """The config of DeepSeek.

    latent: the sizes of what is stored in place of keys and values; rotates: whether keys and
    queries have positions
    """

    latent: Latent
    rotates: bool


def _heads(read: MetadataReader, _windows: Sequence[int]) -> Heads:
    latent = _latent(read)
    return Heads(read.size("attention.head_count"), 1, latent.rank + latent.rotated)


def _read_deepseek(read: MetadataReader, c: ModelConfig, *, rotates: bool = True) -> DeepSeek:
    """Read what only DeepSeek has. With yarn, scores are scaled instead of the rotated numbers."""
    latent, factor = _latent(read), read.number("rope.scaling.attn_factor", 1.0)
    rope, queries = (replace(r, attention_factor=factor) for r in (c.rope, c.rope_queries))
    scale = (latent.keys + latent.rotated) ** -0.5 * _sharpness(read, rope) ** 2
    return c.as_kind(
        DeepSeek, latent=latent, rotates=rotates, rope=rope, rope_queries=queries,
        attention_scale=read.or_zero("attention.scale") or scale,
    )  # fmt: skip


def _read_minicpm3(read: MetadataReader, c: ModelConfig) -> DeepSeek:
    """Read the scales, too; llama.cpp's files have none, and it takes those of the 4B."""
    return replace(
        _read_deepseek(read, c),
        embedding_scale=read.number("embedding_scale", 12.0),
        residual_scale=read.number("residual_scale", 1.4 / sqrt(c.layers)),
        logit_scale=read.number("logit_scale", c.hidden / 256),
    )


def _sharpness(read: MetadataReader, rope: Rope) -> float:
    """Return the factor whose square multiplies scores; files have the weight of a logarithm."""
    weight = read.or_zero("rope.scaling.yarn_log_multiplier")
    return 1 + weight * log(rope.yarn.factor) if rope.yarn and rope.yarn.factor > 1 else 1.0


_EPS = 1e-6  # the epsilon of norms within attention; other norms have the epsilon of the config


def deepseek2(g: Graph, c: DeepSeek) -> Tensor:
    """Build Llama with latent attention, and experts after some layers. Returns the logits.

    A layer with a state has Kimi delta attention instead.
    """
    x = embedding(g, c)  # (M, hidden)
    for layer, _ in enumerate(g.layers(c.layers)):
        x = deepseek2_layer(g, c, x, layer)
    return head(g, c, g.rms_norm(g.logit_rows(x), "output_norm", c.norm_eps))


def deepseek2_layer(g: Graph, c: DeepSeek, x: Tensor, layer: int) -> Tensor:
    """Add a layer of DeepSeek: (M, hidden) -> (M, hidden)."""
    p = f"blk.{layer}."
    h = g.rms_norm(x, f"{p}attn_norm", c.norm_eps)
    mixer = _delta_attention if c.recurrent[layer] else _latent_attention
    x = g.add(x, g.scale(mixer(g, c, h, layer), c.residual_scale))
    h = g.rms_norm(x, f"{p}ffn_norm", c.norm_eps)
    for m in feed_forward(g, c, h, layer):
        x = g.add(x, g.scale(m, c.residual_scale))
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

    if c.rotates:
        factors = rope_factors(g, c)
        q, k = (g.rope(heads, c.rope, head_dim=c.head_dim, factors=factors) for heads in (q, k))
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


def _delta_attention(g: Graph, c: DeepSeek, h: Tensor, layer: int) -> Tensor:
    """Add Kimi delta attention: (M, hidden) -> (M, hidden).

    Moonshot AI 2025, arXiv 2510.26692: a gated delta net in which each key forgets by itself. Its
    two gates are made by narrow matrices, and the second is a sigmoid.
    """
    p = f"blk.{layer}."
    (heads, _), (width, _) = g.matrix(f"{p}ssm_beta"), g.matrix(f"{p}ssm_f_a")
    forget, gate = (
        g.linear(g.linear(h, f"{p}ssm_{name}_a"), f"{p}ssm_{name}_b") for name in ("f", "g")
    )
    y = g.delta_net(
        _convolve(g, h, layer), forget, g.linear(h, f"{p}ssm_beta"), p, layer=layer,
        **StateHeads(heads, heads, width, width)._asdict(),
    )  # fmt: skip
    y = g.rms_norm(y, f"{p}ssm_norm", c.norm_eps, group=width)
    return g.linear(g.sigmoid_mul(gate, y), f"{p}attn_output")


def _convolve(g: Graph, h: Tensor, layer: int) -> Tensor:
    """Compute q, k and v, each with a matrix and a short convolution, and put them side by side."""
    p = f"blk.{layer}."
    q, k, v = (
        g.conv(g.linear(h, f"{p}attn_{name}"), f"{p}ssm_conv1d_{name}", layer=layer)
        for name in "qkv"
    )
    return g.silu(g.join(g.join(q, k, 1), v, 1))


_DEEPSEEK = Architecture(
    deepseek2, interleaved_rope=True, layer=deepseek2_layer, heads=_heads,
    extend=_read_deepseek, mixture=Mixture(used=1, normed=False, best_of_group=1),
)  # fmt: skip

ROWS: Mapping[str, Architecture] = {
    "deepseek2": _DEEPSEEK,  # V2, V3, R1, Kimi K2, GLM 4.7 Flash
    "kimi-linear": replace(
        _DEEPSEEK, has_states=True, extend=partial(_read_deepseek, rotates=False),
        mixture=Mixture(used=1, gating="sigmoid"),
    ),
    "minicpm3": replace(  # Hu et al. 2024, arXiv 2404.06395: with scales
        _DEEPSEEK, interleaved_rope=False, extend=_read_minicpm3
    ),
}  # fmt: skip
