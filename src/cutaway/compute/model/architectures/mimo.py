"""MiMo-V2: a mixture of experts whose values are narrower than its keys.

``files/huggingface/families/mimo.py`` reads its folders.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cutaway.compute.model.architectures.parts import attention, embedding, feed_forward, head
from cutaway.compute.model.config import Architecture, ModelConfig
from cutaway.compute.model.graph import Graph, Tensor
from cutaway.compute.model.metadata import MetadataReader
from cutaway.compute.model.mixture import Mixture
from cutaway.compute.model.ops.attention import Heads
from cutaway.errors import FormatError

_KV_HEADS = "attention.head_count_kv"


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


def _layer_kv_heads(read: MetadataReader, layers: int) -> tuple[int, ...]:
    """Read the heads of each layer; files also count those of the blocks that draft."""
    value, heads = read.value(_KV_HEADS), read.size("attention.head_count")
    counts = value.tolist() if isinstance(value, np.ndarray) else [value] * layers
    if len(counts) < layers or any(type(n) is not int or n < 1 or heads % n for n in counts):
        raise FormatError(
            f"metadata key {read.prefix}.{_KV_HEADS} must say for each of {layers} layers how many "
            f"heads {heads} query heads share evenly"
        )
    return tuple(counts[:layers])


def _heads(read: MetadataReader, windows: Sequence[int]) -> Heads:
    kv_heads = max(_layer_kv_heads(read, len(windows)))
    return Heads(read.size("attention.head_count"), kv_heads, read.size("attention.key_length"))


def _read_mimo(read: MetadataReader, c: ModelConfig) -> MiMo:
    return c.as_kind(
        MiMo, layer_kv_heads=_layer_kv_heads(read, c.layers),
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
