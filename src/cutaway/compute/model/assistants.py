"""Assistants: small models that draft from what a model has stored, as Gemma 4's do.

Source: transformers, ``Gemma4AssistantForCausalLM``. An assistant stores nothing: its layers have
queries alone, which read the keys and values of the model's last layer that sees all, or of its
last with a window. Its input is the last token's embedding in the model beside the last row that
the model's head read, both projected to the assistant's width. After a draft token, its own result,
projected back, takes that row's place; the position stays that of the text's last token.

Files of small models also have centroids, which choose the tokens whose logits are computed. They
save work and change no chosen token's logit; here all logits are computed.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from cutaway.compute.model.anatomy import Anatomy
from cutaway.compute.model.architectures.parts import gated_mlp
from cutaway.compute.model.graph import Graph, Tensor
from cutaway.compute.model.metadata import MetadataReader
from cutaway.compute.model.ops.attention import Attend
from cutaway.compute.model.ops.rows import LookUp
from cutaway.compute.model.positions import Rope, rope_of
from cutaway.errors import FormatError

PREFIX = "assistant."
"""How the names of an assistant's own tensors begin; GGUF's name in Gemma 4 follows."""


class Assistant(NamedTuple):
    """A model that drafts, and the tensor of its graph that it reads back.

    graph   a row reads its token, and what the model's head read for the token before
    output  the tensor that takes the place of the latter after a draft token
    """

    graph: Graph
    output: str


def build_assistant(
    metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], target: Graph
) -> Assistant:
    """Build an assistant whose tensors have these shapes, for the model whose graph is ``target``.

    FormatError if it does not fit the model, or lacks a tensor.
    """
    read = MetadataReader(metadata, "assistant")
    lookup = next(op for op in target.ops if isinstance(op, LookUp))
    embedding, head = lookup.weights["weight"], Anatomy(target).head
    graph = Graph({embedding: target.shapes[embedding], **shapes})
    graph.allow_unused(embedding)
    maker = _Maker(graph, read, target)
    x = maker.inputs(embedding.removesuffix(".weight"), lookup.out.width)
    for layer, p in enumerate(graph.layers(read.size("block_count"))):
        x = maker.layer(x, layer, f"{PREFIX}{p}")
    x = graph.rms_norm(x, f"{PREFIX}output_norm", maker.eps)
    output = graph.linear(x, f"{PREFIX}post_projection")
    logits = graph.linear(graph.logit_rows(x), f"{PREFIX}token_embd")
    graph.check_all_used()
    if output.width != lookup.out.width or logits.width != head.out.width:
        raise FormatError(
            f"it guesses {logits.width} tokens from rows of {output.width} numbers, and the model "
            f"has {head.out.width} and {lookup.out.width}: it is another's"
        )
    return Assistant(graph, output.name)


class _Maker:
    """Wires the graph of one assistant."""

    def __init__(self, graph: Graph, read: MetadataReader, target: Graph) -> None:
        self._g, self._read, self._heads = graph, read, read.size("attention.head_count")
        self.eps = read.number("attention.layer_norm_rms_epsilon")
        self._windows = read.value("attention.sliding_window_pattern")
        self._stored = {bool(op.mask.window): op for op in target.stores}  # the last of each kind
        width = read.size("attention.key_length")
        self._rope = rope_of(read, width, interleaved=False)
        base, narrow = read.number("rope.freq_base_swa"), read.size("attention.key_length_swa")
        self._local = Rope(dim=narrow, base=base, rotate_half=True)

    def inputs(self, embedding: str, width: int) -> Tensor:
        """Project a token's embedding and the row that was given to the assistant's width."""
        g = self._g
        before = g.given_rows(width)
        token = g.scale(g.embed(embedding), width**0.5)
        if (takes := g.matrix(f"{PREFIX}pre_projection")[1]) != 2 * width:
            raise FormatError(
                f"it reads rows of {takes // 2} numbers, and the model's have {width}: it is "
                "another's"
            )
        return g.linear(g.join(token, before, 1), f"{PREFIX}pre_projection")

    def layer(self, x: Tensor, layer: int, p: str) -> Tensor:
        """Add a layer of Gemma 4 without keys and values of its own."""
        g, eps = self._g, self.eps
        a = self._attention(g.rms_norm(x, f"{p}attn_norm", eps), layer, p)
        x = g.add(x, g.rms_norm(a, f"{p}post_attention_norm", eps))
        m = gated_mlp(g, g.rms_norm(x, f"{p}ffn_norm", eps), p, g.gelu_mul)
        x = g.add(x, g.rms_norm(m, f"{p}post_ffw_norm", eps))
        return g.scale_by(x, f"{p}layer_output_scale")

    def _attention(self, h: Tensor, layer: int, p: str) -> Tensor:
        g, stored = self._g, self._stored_for(layer)
        rope = self._local if self._windows[layer] else self._rope
        factors = f"{PREFIX}rope_freqs"
        is_divided = not self._windows[layer] and g.has(f"{factors}.weight")
        q = g.linear(h, f"{p}attn_q")
        q = g.rms_norm(q, f"{p}attn_q_norm", self.eps, group=stored.heads.dim)
        q = g.rope(q, rope, head_dim=stored.heads.dim, factors=factors if is_divided else None)
        a = g.attend_stored(q, stored, heads=self._heads, scale=1.0)
        return g.linear(a, f"{p}attn_output")

    def _stored_for(self, layer: int) -> Attend:
        """Return the attention of the model whose keys and values a layer reads."""
        is_local = bool(self._windows[layer])
        stored = self._stored.get(is_local)
        width = self._read.size(f"attention.key_length{'_swa' if is_local else ''}")
        if stored is None or stored.heads.dim != width or stored.values_from is not None:
            raise FormatError(
                f"its layer {layer} reads keys of {width} numbers, and no such layer of the model "
                "stores them: it is another's"
            )
        return stored
