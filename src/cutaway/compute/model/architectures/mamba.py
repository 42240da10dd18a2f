"""Architectures with Mamba 2: in some layers, in all layers, or side by side with attention.

``files/huggingface/families/mamba.py`` reads their folders.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from cutaway.compute.model.architectures.parts import (
    attention,
    embedding,
    experts,
    feed_forward,
    head,
    plain_mlp,
)
from cutaway.compute.model.architectures.recurrent import WithStates, read_states
from cutaway.compute.model.config import Architecture, ModelConfig
from cutaway.compute.model.graph import Graph, Tensor
from cutaway.compute.model.metadata import MetadataReader
from cutaway.compute.model.mixture import Mixture


def mamba2(g: Graph, c: WithStates) -> Tensor:
    """Build a model that has only Mamba 2 in every layer (Dao & Gu 2024, arXiv 2405.21060)."""
    x = embedding(g, c)  # (M, hidden)
    for layer, p in enumerate(g.layers(c.layers)):
        h = g.rms_norm(x, f"{p}attn_norm", c.norm_eps)
        x = g.add(x, _mamba(g, c, h, layer))  # (M, hidden)
    return head(g, c, g.rms_norm(g.logit_rows(x), "output_norm", c.norm_eps))


@dataclass(frozen=True, slots=True, kw_only=True)
class GraniteHybrid(WithStates):
    """The config of Granite hybrids; is_rotated: whether attention has rotary positions."""

    is_rotated: bool


def _read_granite(read: MetadataReader, c: ModelConfig) -> GraniteHybrid:
    is_rotated = read.flag("rope.scaling.finetuned", True)
    return read_states(read, c).as_kind(GraniteHybrid, is_rotated=is_rotated)


def granite_hybrid(g: Graph, c: GraniteHybrid) -> Tensor:
    """Build Granite 4 h (IBM 2025) or Bamba: Mamba 2 or attention, then an MLP or experts."""
    x = embedding(g, c)  # (M, hidden)
    for layer, p in enumerate(g.layers(c.layers)):
        h = g.rms_norm(x, f"{p}attn_norm", c.norm_eps)
        if c.recurrent[layer]:
            mixed = _mamba(g, c, h, layer)
        else:
            mixed = attention(g, c, h, layer, c.rope if c.is_rotated else None)
        x = g.add(x, g.scale(mixed, c.residual_scale))
        h = g.rms_norm(x, f"{p}ffn_norm", c.norm_eps)
        for m in feed_forward(g, c, h, layer):
            x = g.add(x, g.scale(m, c.residual_scale))  # (M, hidden)
    return head(g, c, g.rms_norm(g.logit_rows(x), "output_norm", c.norm_eps))


def falcon_h1(g: Graph, c: WithStates) -> Tensor:
    """Build layers with Mamba 2 and attention side by side (Zuo et al. 2025, arXiv 2507.22448)."""
    x, normed = embedding(g, c), g.has("blk.0.ssm_norm.weight")  # (M, hidden)
    ending = "weight" if g.has("blk.0.ffn_norm.weight") else ""  # llama.cpp writes no ending
    for layer, p in enumerate(g.layers(c.layers)):
        h = g.rms_norm(x, f"{p}attn_norm", c.norm_eps)
        x = g.add(x, _mamba(g, c, h, layer, normed=normed))
        x = g.add(x, attention(g, c, h, layer, c.rope))
        h = g.rms_norm(x, f"{p}ffn_norm", c.norm_eps, ending=ending)
        for m in feed_forward(g, c, h, layer):
            x = g.add(x, m)  # (M, hidden)
    return head(g, c, g.rms_norm(g.logit_rows(x), "output_norm", c.norm_eps))


def nemotron_h(g: Graph, c: WithStates) -> Tensor:
    """Build Nemotron H (NVIDIA 2025, arXiv 2504.03624), in which each layer has only one part.

    The part is Mamba 2, attention without positions, an MLP with relu², or experts with relu².
    """
    x = embedding(g, c)  # (M, hidden)
    for layer, p in enumerate(g.layers(c.layers)):
        h = g.rms_norm(x, f"{p}attn_norm", c.norm_eps)
        if c.recurrent[layer]:
            parts = [_mamba(g, c, h, layer)]
        elif g.has(f"{p}attn_q.weight"):
            parts = [attention(g, c, h, layer, None)]
        elif g.has(f"{p}ffn_gate_inp.weight"):
            parts = [experts(g, c, h, p), plain_mlp(g, h, p, g.relu2, of="_shexp")]
        else:
            parts = [plain_mlp(g, h, p, g.relu2)]
        for part in parts:
            x = g.add(x, part)  # (M, hidden)
    return head(g, c, g.rms_norm(g.logit_rows(x), "output_norm", c.norm_eps))


def _mamba(g: Graph, c: WithStates, h: Tensor, layer: int, *, normed: bool = True) -> Tensor:
    """Add a convolution of values, keys and queries, then the heads, a gate, perhaps a norm."""
    p, heads = f"blk.{layer}.", c.state_heads
    inner = heads.heads * heads.values
    mixed = inner + 2 * heads.k_heads * heads.keys
    ends = (0, inner, inner + mixed, inner + mixed + heads.heads)
    z, x, dt = (g.linear(h, f"{p}ssm_in", (ends[i], ends[i + 1])) for i in range(3))
    x = g.silu(g.conv(x, f"{p}ssm_conv1d", layer=layer))
    y = g.silu_mul(z, g.mamba2(x, dt, p, layer=layer, **heads._asdict()))  # (M, heads·values)
    if normed:
        y = g.rms_norm(y, f"{p}ssm_norm", c.norm_eps, group=inner // heads.k_heads)
    return g.linear(y, f"{p}ssm_out")


_MAMBA = Architecture(mamba2, has_states=True, extend=read_states)

ROWS: Mapping[str, Architecture] = {
    "mamba2": _MAMBA,
    "granitehybrid": Architecture(
        granite_hybrid, interleaved_rope=True, has_states=True, extend=_read_granite
    ),
    "falcon-h1": replace(_MAMBA, build=falcon_h1),
    "nemotron_h": replace(_MAMBA, build=nemotron_h),  # and Nemotron Nano 2
    "nemotron_h_moe": replace(  # Nemotron 3 Nano
        _MAMBA, build=nemotron_h, mixture=Mixture(used=1, gating="sigmoid", activation="relu2")
    ),
}
