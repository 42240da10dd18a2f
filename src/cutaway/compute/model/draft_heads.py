"""Heads that draft: a block after the model's own blocks, and EAGLE-3's layer.

*Multi-token prediction* (Gloeckle et al. 2024, arXiv 2404.19737), as in DeepSeek-V3 (arXiv
2412.19437, section 2.2): one more layer reads the input of the model's head at one position, and
the embedding of the token that came next. GGUF calls these blocks nextn.

*EAGLE-3* (Li et al. 2025, arXiv 2503.01840): one layer drafts from the model's residual stream at
three depths. A row reads a token, and ``fc`` of the model's streams at the token before. If the
model has not run the token before, because it is a draft, the row reads the result that the head's
own layer had there.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway.compute.model.anatomy import Anatomy
from cutaway.compute.model.architectures.parts import embedding, gated_mlp, head
from cutaway.compute.model.config import ModelConfig
from cutaway.compute.model.graph import Graph, Tensor
from cutaway.compute.model.metadata import MetadataReader
from cutaway.compute.model.ops.attention import Heads
from cutaway.compute.model.positions import rope_of
from cutaway.errors import FormatError

# -- multi-token prediction ------------------------------------------------------------------------


Layer = Callable[[Graph, ModelConfig, Tensor, int], Tensor]
"""One layer of an architecture, by its number: (M, hidden) -> (M, hidden)."""


def draft_head(g: Graph, c: ModelConfig, layer: Layer) -> Tensor:
    """Build the first of the blocks after the model's own. Returns the logits, (L, vocab).

    An input row is the stream after the last norm, as in vLLM and llama.cpp: what the model's head
    read for the token before, or what this head read if the token before is its own draft.
    """
    c = replace(c, windows=(*c.windows, 0), recurrent=(*c.recurrent, False))
    p = next(g.layers(1, first=c.layers))
    n, norm = f"{p}nextn.", "output_norm"
    hidden = g.given_rows(c.hidden)  # (M, hidden), for the tokens before
    weight = f"{n}embed_tokens"
    x = embedding(g, c, weight if g.has(f"{weight}.weight") else "token_embd")
    x, hidden = g.rms_norm(x, f"{n}enorm", c.norm_eps), g.rms_norm(hidden, f"{n}hnorm", c.norm_eps)
    x = layer(g, c, g.linear(g.join(x, hidden, 1), f"{n}eh_proj"), c.layers)

    if g.has(f"{n}shared_head_norm.weight"):
        norm = f"{n}shared_head_norm"
    weight = f"{n}shared_head_head"
    x = g.rms_norm(g.logit_rows(x), norm, c.norm_eps)
    return head(g, c, x, weight if g.has(f"{weight}.weight") else "")


# -- EAGLE-3 ---------------------------------------------------------------------------------------


_P = "eagle."


@dataclass(frozen=True)
class Eagle:
    """A head that drafts, and its inputs.

    graph       the head's ops; a row's input has the model's streams side by side, then the head's
                own result; one of the two is missing, and has zeros
    streams     the names of the model's tensors that the head reads
    output      the tensor of ``graph`` that the head reads back for its own drafts
    hidden      the width of ``output``
    target_ids  for each token id of the head, the model's id; None: both have the same vocabulary
    """

    graph: Graph
    streams: tuple[str, ...]
    output: str
    hidden: int
    target_ids: NDArray[np.int64] | None


def build_eagle(
    metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], target: Graph
) -> Eagle:
    """Build a head whose tensors have these shapes, for the model whose graph is ``target``.

    FormatError if the head does not fit the model, or lacks a tensor.
    """
    read = MetadataReader(metadata, "eagle3")
    embedding = "token_embd.weight"
    graph = Graph({embedding: target.shapes[embedding], **shapes})
    graph.allow_unused(embedding)
    stream = Anatomy(target).stream
    depths = _depths(read, len(stream) - 1)
    width = {op.out.name: op.out.width for op in target.ops}[stream[0]]
    output = _wire(graph, read, len(depths) * width)
    graph.check_all_used()
    ids = read_vocabulary(read, graph.ops[-1].out.width, target)
    return Eagle(graph, tuple(stream[i] for i in depths), output.name, output.width, ids)


def read_vocabulary(read: MetadataReader, drafted: int, target: Graph) -> NDArray[np.int64] | None:
    """Return the model's ids of the ``drafted`` tokens; None if they are all of the model's.

    FormatError if they are not the model's.
    """
    ids, tokens = read.value("target_ids"), target.ops[-1].out.width
    if (ids is None and drafted != tokens) or (ids is not None and len(ids) != drafted):
        raise FormatError(
            f"the head guesses {drafted} tokens, and its d2t names "
            f"{'none' if ids is None else len(ids)} of the model's {tokens}"
        )
    if ids is not None and not (ids.min() >= 0 and ids.max() < tokens):
        raise FormatError(
            f"the head guesses tokens that the model, which has {tokens}, lacks: it is another's"
        )
    if ids is not None and len(np.unique(ids)) < len(ids):
        raise FormatError(
            "two of the head's tokens are the same token of the model (d2t): download it again"
        )
    return ids  # type: ignore[no-any-return]


def _depths(read: MetadataReader, layers: int) -> list[int]:
    """Return how many layers come before each stream that the head reads."""
    numbers = read.value("target_layers")
    if numbers is None:
        return [min(2, layers), layers // 2, max(layers - 3, 0)]
    if max(numbers) > layers:
        raise FormatError(
            f"the head reads the stream behind {max(numbers)} layers, and the model has {layers}: "
            "it is another's"
        )
    return [*numbers]


def _wire(g: Graph, read: MetadataReader, streams: int) -> Tensor:
    """Add the head's ops; streams: how many numbers of a row are the model's streams."""
    n, eps = read.size("embedding_length"), read.number("attention.layer_norm_rms_epsilon")
    if (takes := g.matrix(f"{_P}fc")[1]) != streams:
        raise FormatError(
            f"the head reads {takes} numbers of each token, and the model gives {streams}: it is "
            "another's"
        )
    if g.has(f"{_P}fc.bias"):
        raise FormatError("the head's fc has a bias, which is not supported")
    inputs = g.given_rows(streams + n)
    model_part = g.pick(inputs, inputs.width, 0, streams)
    head_part = g.pick(inputs, inputs.width, streams, inputs.width)
    hidden = g.add(g.linear(model_part, f"{_P}fc"), head_part)  # (M, n)
    weight = f"{_P}token_embd" if g.has(f"{_P}token_embd.weight") else "token_embd"
    x = _layer(g, read, g.embed(weight), hidden, eps)
    normed = g.rms_norm(g.logit_rows(x), f"{_P}output_norm", eps)
    g.linear(normed, f"{_P}output")
    return x


def _layer(g: Graph, read: MetadataReader, token: Tensor, hidden: Tensor, eps: float) -> Tensor:
    """Add a layer of Llama whose attention reads the token's embedding and the hidden state."""
    heads, kv_heads = read.size("attention.head_count"), read.size("attention.head_count_kv")
    head_dim = read.size("attention.key_length")
    normed = g.rms_norm(hidden, f"{_P}hidden_norm", eps)
    h = g.join(g.rms_norm(token, f"{_P}attn_norm", eps), normed, 1)  # (M, 2·n)
    q, k, v = (g.linear(h, f"{_P}attn_{role}") for role in "qkv")
    rope = rope_of(read, head_dim, interleaved=False)
    factors = f"{_P}rope_freqs" if g.has(f"{_P}rope_freqs.weight") else None
    q, k = (g.rope(part, rope, head_dim=head_dim, factors=factors) for part in (q, k))
    of = Heads(heads, kv_heads, head_dim)
    a = g.attend(q, k, v, layer=0, heads=of, scale=head_dim**-0.5)
    x = g.add(normed if read.flag("norm_before_residual", False) else hidden,
              g.linear(a, f"{_P}attn_output"))  # fmt: skip
    return g.add(x, gated_mlp(g, g.rms_norm(x, f"{_P}ffn_norm", eps), _P, g.silu_mul))
