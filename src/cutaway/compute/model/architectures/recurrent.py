"""Architectures in which layers have a recurrent state: LFM2 and 3, Qwen 3.5, OLMo Hybrid.

``files/huggingface/families/recurrent.py`` reads their folders.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from cutaway.compute.model.architectures.llama import layer_of_norms_behind
from cutaway.compute.model.architectures.parts import (
    attention,
    embedding,
    feed_forward,
    head,
)
from cutaway.compute.model.config import Architecture, ModelConfig
from cutaway.compute.model.graph import Graph, Tensor
from cutaway.compute.model.layers import recurrent_layers
from cutaway.compute.model.metadata import MetadataReader
from cutaway.compute.model.mixture import Mixture
from cutaway.compute.model.ops.attention import Heads
from cutaway.errors import FormatError

# -- the heads of layers with a state -------------------------------------------------------------


class StateHeads(NamedTuple):
    """The heads of a recurrent layer: how many key and value heads there are, and their widths."""

    k_heads: int
    heads: int
    keys: int
    values: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WithStates(ModelConfig):
    """A model with layers that are gated delta nets or Mamba 2, and their heads."""

    state_heads: StateHeads


def read_states(read: MetadataReader, c: ModelConfig) -> WithStates:
    """Read the heads of layers with a state."""
    return c.as_kind(WithStates, state_heads=_state_heads(read))


def _state_heads(read: MetadataReader) -> StateHeads:
    """Read the sizes; FormatError if the sizes do not fit one another."""
    k_heads, heads = read.size("ssm.group_count"), read.size("ssm.time_step_rank")
    if (inner := read.size("ssm.inner_size")) % heads or heads % k_heads:
        raise FormatError(f"{inner} values are no {heads} heads that share {k_heads} of keys")
    return StateHeads(k_heads, heads, read.size("ssm.state_size"), inner // heads)


ConvMethod = Callable[..., Tensor]
"""``Graph.conv`` or ``Graph.centred_conv``."""


# -- LFM2 and 3: a short convolution between two gates in most layers, attention in the others -----


@dataclass(frozen=True, slots=True, kw_only=True)
class Lfm2(ModelConfig):
    """The config of LFM2.

    convolves: by layer, whether it has a short convolution; has_head: whether tokens are predicted
    """

    convolves: tuple[bool, ...]
    has_head: bool


def _read_lfm2(read: MetadataReader, c: ModelConfig) -> Lfm2:
    convolves = recurrent_layers(read, c.layers, has_states=True)
    return c.as_kind(
        Lfm2, convolves=convolves, has_head=c.is_causal or read.flag("masked_head", False)
    )


def lfm2(g: Graph, c: Lfm2) -> Tensor:
    """Build LFM2 (Liquid AI 2025, arXiv 2511.23404). GGUF names the last norm token_embd_norm.

    LFM3 (2026) also has windows with a rope of their own and, in most sizes, norms after both parts
    of a layer and a gate for each head. In LFM2.5's encoders (2026) tokens see to both sides; some
    have no head.
    """
    x = _lfm2_layers(g, c, Graph.conv if c.is_causal else Graph.centred_conv)
    logits = head(g, c, g.rms_norm(g.logit_rows(x), "token_embd_norm", c.norm_eps))
    return logits if c.has_head else g.cut_head()


def _lfm2_layers(g: Graph, c: Lfm2, conv: ConvMethod) -> Tensor:
    """Add all layers; conv: the kind of their short convolutions."""
    has_post_norms = g.has("blk.0.post_attention_norm.weight")
    has_gate = any(g.has(f"blk.{i}.attn_gate.weight") for i in range(c.layers))
    gate = Graph.sigmoid_mul if has_gate else None

    def post_norm(y: Tensor, weight: str) -> Tensor:
        return g.rms_norm(y, weight, c.norm_eps) if has_post_norms else y

    x = embedding(g, c)  # (M, hidden)
    for layer, p in enumerate(g.layers(c.layers)):
        h = g.rms_norm(x, f"{p}attn_norm", c.norm_eps)
        if c.convolves[layer]:
            a = _short_conv(g, h, layer, conv)
        else:
            rope = c.rope_local if c.windows[layer] else c.rope
            a = attention(g, c, h, layer, rope, norms="head", gate=gate)
        x = g.add(x, post_norm(a, f"{p}post_attention_norm"))
        h = g.rms_norm(x, f"{p}ffn_norm", c.norm_eps)
        for m in feed_forward(g, c, h, layer):
            x = g.add(x, post_norm(m, f"{p}post_ffw_norm"))  # (M, hidden)
    return x


def _short_conv(g: Graph, h: Tensor, layer: int, conv: ConvMethod) -> Tensor:
    """Add out(C · conv(B · x)); one matrix computes B, C and x: (M, hidden) -> (M, hidden)."""
    p, n = f"blk.{layer}.shortconv.", h.width
    b, c, x = (g.linear(h, f"{p}in_proj", (i * n, (i + 1) * n)) for i in range(3))
    return g.linear(g.mul(c, conv(g, g.mul(b, x), f"{p}conv", layer=layer)), f"{p}out_proj")


# -- Qwen 3.5, Qwen3-Next: delta nets in three of four layers, gated attention in the others -------


def qwen35(g: Graph, c: WithStates, *, grouped: bool = False) -> Tensor:
    """Build Qwen3-Next or Qwen 3.5 (2025, 2026); for delta nets see Yang et al., arXiv 2412.06464.

    grouped: whether value heads that share a key head are neighbours in the files
    """
    x = embedding(g, c)  # (M, hidden)
    for layer, _ in enumerate(g.layers(c.layers)):
        x = qwen35_layer(g, c, x, layer, grouped=grouped)
    return head(g, c, g.rms_norm(g.logit_rows(x), "output_norm", c.norm_eps))


def qwen35_layer(
    g: Graph, c: WithStates, x: Tensor, layer: int, *, grouped: bool = False
) -> Tensor:
    """Add a layer of Qwen3-Next or Qwen 3.5: (M, hidden) -> (M, hidden)."""
    p = f"blk.{layer}."
    h = g.rms_norm(x, f"{p}attn_norm", c.norm_eps)
    if c.recurrent[layer]:
        x = g.add(x, _delta_net(g, c, h, layer, grouped=grouped))
    else:
        x = g.add(x, _gated_attention(g, c, h, layer))
    h = g.rms_norm(x, f"{p}post_attention_norm", c.norm_eps)
    for m in feed_forward(g, c, h, layer, shared_gate=True):
        x = g.add(x, m)
    return x


def _gated_attention(g: Graph, c: WithStates, h: Tensor, layer: int) -> Tensor:
    """Add attention with a gate: a sigmoid multiplies its output; one matrix has gate and query."""
    p = f"blk.{layer}."
    query_gate = g.linear(h, f"{p}attn_q")  # (M, heads·2·head_dim)
    n = c.head_dim
    q, gate = g.pick(query_gate, 2 * n, 0, n), g.pick(query_gate, 2 * n, n, 2 * n)
    k, v = g.linear(h, f"{p}attn_k"), g.linear(h, f"{p}attn_v")
    q = g.rms_norm(q, f"{p}attn_q_norm", c.norm_eps, group=c.head_dim)
    k = g.rms_norm(k, f"{p}attn_k_norm", c.norm_eps, group=c.head_dim)
    q, k = (g.rope(part, c.rope, head_dim=c.head_dim) for part in (q, k))
    a = g.attend(
        q, k, v, layer=layer, heads=Heads(c.heads, c.kv_heads, c.head_dim), scale=c.attention_scale
    )  # fmt: skip
    return g.linear(g.sigmoid_mul(gate, a), f"{p}attn_output")


def _delta_net(g: Graph, c: WithStates, h: Tensor, layer: int, *, grouped: bool) -> Tensor:
    """Add a short convolution of q, k and v, the net, a gated norm of each head: (M, hidden)."""
    p, heads = f"blk.{layer}.", c.state_heads
    x = g.silu(g.conv(g.linear(h, f"{p}attn_qkv"), f"{p}ssm_conv1d", layer=layer))
    if g.has(f"{p}ssm_ba.weight"):  # b and a side by side, for the heads of each key head
        beta_alpha, width = g.linear(h, f"{p}ssm_ba"), heads.heads // heads.k_heads
        b, a = (
            g.pick(beta_alpha, 2 * width, 0, width),
            g.pick(beta_alpha, 2 * width, width, 2 * width),
        )
    else:
        a, b = g.linear(h, f"{p}ssm_alpha"), g.linear(h, f"{p}ssm_beta")
    y = g.delta_net(x, a, b, p, layer=layer, **heads._asdict(), grouped=grouped)
    y = g.rms_norm(y, f"{p}ssm_norm", c.norm_eps, group=heads.values)
    return g.linear(g.silu_mul(g.linear(h, f"{p}attn_gate"), y), f"{p}ssm_out")


# -- OLMo Hybrid: delta nets after a norm in three of four layers, OLMo 2's layer in the others ----


@dataclass(frozen=True, slots=True, kw_only=True)
class OlmoHybrid(WithStates):
    """The config of OLMo Hybrid.

    learn_factor: see `DeltaNet`; rotates: whether layers that attend have positions
    """

    learn_factor: float
    rotates: bool


def _read_olmo_hybrid(read: MetadataReader, c: ModelConfig) -> OlmoHybrid:
    return c.as_kind(
        OlmoHybrid, state_heads=_state_heads(read), learn_factor=read.number("ssm.beta_scale", 1.0),
        rotates=read.flag("rope.rotates", True),
    )  # fmt: skip


_GATED_NORM_EPS = 1e-5  # whatever the epsilon of the config


def olmo_hybrid(g: Graph, c: OlmoHybrid) -> Tensor:
    """Build OLMo Hybrid (Ai2 2026). Returns the logits, (L, vocab)."""
    x = embedding(g, c)  # (M, hidden)
    for layer, p in enumerate(g.layers(c.layers)):
        if not c.recurrent[layer]:
            rope = c.rope if c.rotates else None
            x = layer_of_norms_behind(g, c, x, layer, rope, norms="all")
            continue
        h = g.rms_norm(x, f"{p}attn_norm", c.norm_eps)
        q, k, v = (g.linear(h, f"{p}attn_{name}") for name in "qkv")
        x_qkv = g.silu(g.conv(g.join(g.join(q, k, 1), v, 1), f"{p}ssm_conv1d", layer=layer))
        a, b = g.linear(h, f"{p}ssm_alpha"), g.linear(h, f"{p}ssm_beta")
        y = g.delta_net(
            x_qkv, a, b, p, layer=layer, **c.state_heads._asdict(), learn_factor=c.learn_factor
        )
        y = g.rms_norm(y, f"{p}ssm_norm", _GATED_NORM_EPS, group=c.state_heads.values)
        x = g.add(x, g.linear(g.silu_mul(g.linear(h, f"{p}attn_gate"), y), f"{p}ssm_out"))
        h = g.rms_norm(x, f"{p}post_attention_norm", c.norm_eps)
        for m in feed_forward(g, c, h, layer):
            x = g.add(x, m)
    return head(g, c, g.rms_norm(g.logit_rows(x), "output_norm", c.norm_eps))


_LFM2 = Architecture(lfm2, has_states=True, centres=True, extend=_read_lfm2)
_QWEN35 = Architecture(
    qwen35, has_states=True, extend=read_states, layer=qwen35_layer,
    defaults={"full_attention_interval": 4},
)  # fmt: skip

ROWS: Mapping[str, Architecture] = {
    "lfm2": _LFM2,  # and 2.5
    "lfm3": replace(_LFM2, centres=False),
    "lfm2moe": replace(_LFM2, centres=False, mixture=Mixture(used=1, gating="sigmoid")),
    "olmo-hybrid": Architecture(
        olmo_hybrid, has_states=True, extend=_read_olmo_hybrid,
        defaults={"full_attention_interval": 4},
    ),
    "qwen35": _QWEN35,  # and 3.6
    "qwen35moe": _QWEN35,
    "qwen3next": replace(_QWEN35, build=partial(qwen35, grouped=True)),
}  # fmt: skip
