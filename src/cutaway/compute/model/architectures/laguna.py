"""Laguna: a mixture of experts whose layers differ in their heads, which have gates.

``files/huggingface/families/laguna.py`` reads its folders.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cutaway.compute.model.architectures.llama import LayerWiring, llama_layer
from cutaway.compute.model.architectures.parts import embedding, head
from cutaway.compute.model.config import Architecture, ModelConfig
from cutaway.compute.model.graph import Graph, Tensor
from cutaway.compute.model.layers import HEADS, KV_HEADS, head_dim, heads_by_layer
from cutaway.compute.model.metadata import MetadataReader
from cutaway.compute.model.mixture import Mixture
from cutaway.compute.model.ops.attention import Heads


@dataclass(frozen=True, slots=True, kw_only=True)
class Laguna(ModelConfig):
    """The config of Laguna, whose ``heads`` are the most; layer_heads: by layer."""

    layer_heads: tuple[int, ...]


def _most_heads(read: MetadataReader, windows: Sequence[int]) -> Heads:
    heads, kv_heads = max(heads_by_layer(read, HEADS, len(windows))), read.size(KV_HEADS)
    return Heads(heads, kv_heads, head_dim(read, max(read.size("embedding_length") // heads, 1)))


def _read_laguna(read: MetadataReader, c: ModelConfig) -> Laguna:
    return c.as_kind(Laguna, layer_heads=heads_by_layer(read, HEADS, c.layers))


def laguna(g: Graph, c: Laguna) -> Tensor:
    """Build Laguna (Poolside 2026): Mellum 2 whose heads have gates."""
    wiring = LayerWiring(norms="head", gate=Graph.softplus_mul)
    x = embedding(g, c)  # (M, hidden)
    for layer, _ in enumerate(g.layers(c.layers)):
        rope = c.rope_local if c.windows[layer] else c.rope
        alike = replace(c, heads=c.layer_heads[layer])
        x = llama_layer(g, alike, x, layer, rope, wiring=wiring)
    return head(g, c, g.rms_norm(g.logit_rows(x), "output_norm", c.norm_eps))


ROWS: Mapping[str, Architecture] = {
    "laguna": Architecture(
        laguna, heads=_most_heads, extend=_read_laguna, mixture=Mixture(used=1, gating="sigmoid"),
        defaults={"attention.sliding_window_pattern": 4, "rope.freq_base_swa": 0},
    ),
}  # fmt: skip
