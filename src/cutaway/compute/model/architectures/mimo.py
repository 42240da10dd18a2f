"""MiMo-V2: a mixture of experts whose values are narrower than its keys.

``files/huggingface/families/mimo.py`` reads its folders.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cutaway.compute.model.architectures.parts import attention, embedding, feed_forward, head
from cutaway.compute.model.config import Architecture, ModelConfig
from cutaway.compute.model.graph import Graph, Tensor
from cutaway.compute.model.layers import HEADS, KV_HEADS, heads_by_layer
from cutaway.compute.model.metadata import MetadataReader
from cutaway.compute.model.mixture import Mixture
from cutaway.compute.model.ops.attention import Heads


@dataclass(frozen=True, slots=True, kw_only=True)
class MiMo(ModelConfig):
    """The config of MiMo-V2.

    layer_kv_heads  how many heads of keys and values each layer has; ``kv_heads`` are the most
    value_dim       how many numbers a head's value has
    value_scale     the factor of what attention adds
    """

    layer_kv_heads: tuple[int, ...]
    value_dim: int
    value_scale: float


def _heads(read: MetadataReader, windows: Sequence[int]) -> Heads:
    kv_heads = max(heads_by_layer(read, KV_HEADS, len(windows)))
    return Heads(read.size(HEADS), kv_heads, read.size("attention.key_length"))


def _read_mimo(read: MetadataReader, c: ModelConfig) -> MiMo:
    return c.as_kind(
        MiMo, layer_kv_heads=heads_by_layer(read, KV_HEADS, c.layers),
        value_dim=read.size("attention.value_length", c.head_dim),
        value_scale=read.or_zero("attention.value_scale") or 1.0,
    )  # fmt: skip


def mimo2(g: Graph, c: MiMo) -> Tensor:
    """Build MiMo-V2 (Xiaomi 2026, arXiv 2601.02780): Llama with experts in most layers.

    Layers with a window have sinks, a rope of their own, and more heads of keys and values.
    """
    x = embedding(g, c)  # (M, hidden)
    for layer, p in enumerate(g.layers(c.layers)):
        window = c.windows[layer]
        rope = c.rope_local if window else c.rope
        alike = replace(c, kv_heads=c.layer_kv_heads[layer])
        h = g.rms_norm(x, f"{p}attn_norm", c.norm_eps)
        has_sinks = window > 0 or g.has(f"{p}attn_sinks.weight")
        a = attention(g, alike, h, layer, rope, has_sinks=has_sinks, value_dim=c.value_dim)
        x = g.add(x, g.scale(a, c.value_scale))
        h = g.rms_norm(x, f"{p}ffn_norm", c.norm_eps)
        for term in feed_forward(g, c, h, layer):
            x = g.add(x, term)
    return head(g, c, g.rms_norm(g.logit_rows(x), "output_norm", c.norm_eps))


ROWS: Mapping[str, Architecture] = {
    "mimo2": Architecture(
        mimo2, heads=_heads, extend=_read_mimo, mixture=Mixture(used=1, gating="sigmoid"),
        defaults={"rope.freq_base_swa": 0},
    ),
}  # fmt: skip
