"""Attention in whole texts: from which tokens each token reads, for embedding models and rerankers.

The definition (``reference``) computes the weights from the run's queries, keys and values. Its
outputs are checked against those of the run.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway.api.llm import LLM
from cutaway.compute.backends import STEP_ROWS, inspectable
from cutaway.compute.backends.reference.run import attention_of
from cutaway.compute.model import Op
from cutaway.compute.model.ops.attention import Attend
from cutaway.engine import Embed, Request
from cutaway.engine.loop.pinned import WholeText
from cutaway.errors import InputError
from cutaway.features.inside.layers import check_outputs
from cutaway.methods.nearness import near
from cutaway.methods.rows import whole_text

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class TextAttention:
    """Attention in a text, or in two that are read together.

    token_ids  the tokens of the text as the model reads it
    weights    (layers, heads, reading token, token read); a row adds up to 1. A weight is 0 in a
               layer that does not attend, and for heads that a layer lacks
    """

    token_ids: tuple[int, ...]
    weights: Floats

    @property
    def mean(self) -> Floats:
        """The mean weights of all heads that attend: (tokens, tokens)."""
        attending = int((self.weights.sum(axis=(2, 3)) > 0).sum())
        mean: Floats = self.weights.sum(axis=(0, 1)) / np.float32(max(attending, 1))
        return mean


def text_attention(
    llm: LLM, first: str, second: str, *, prompt: str | None = None, adapter: str = ""
) -> tuple[TextAttention, ...]:
    """Attention in the two texts that ``LLM.near`` compares, or in one text that joins both.

    A weight is not an effect: a token with much attention may not matter. Raises InputError for a
    reranker that answers yes or no (``inside`` shows its steps), and for more than 512 tokens.
    """
    llm = llm.with_adapter(adapter)
    nearness = near(llm, first, second, words=False, prompt=prompt)
    return tuple(_read_request(llm, request) for request in nearness.requests)


def _read_request(llm: LLM, request: Request) -> TextAttention:
    ids = request.prompt_token_ids
    if not isinstance(request.decoder, Embed):
        raise InputError(
            "attention in whole texts is for models that make vectors or scores; of one that "
            "writes, 'cutaway trace inside' shows each step"
        )
    if len(ids) > STEP_ROWS:
        raise InputError(
            f"the text has {len(ids)} tokens; attention between all of them is told of "
            f"{STEP_ROWS} at most"
        )
    ops = llm.graph.attends
    names = {name for op in ops for name in (*op.inputs, op.out.name)}
    text = whole_text(llm, request, [*names], [op.layer for op in llm.graph.stores])
    heads = max((op.heads.queries for op in ops), default=0)
    layers = max((op.layer + 1 for op in ops), default=0)
    weights = np.zeros((max(layers, llm.config.layers), heads, len(ids), len(ids)), np.float32)
    read = {**text.tensors, **_stored_inputs(text, llm.graph.stores)}
    for op, output, weight in attention_of(llm.graph, _weights(llm, ops), text.batch, read):
        out = text.tensors[op.out.name]
        check_outputs(op.layer, output, out, np.abs(out).max(initial=0))
        weights[op.layer, : len(weight), :, : weight.shape[-1]] = weight
    return TextAttention(tuple(ids), weights)


def _weights(llm: LLM, ops: Iterable[Op]) -> dict[str, Floats]:
    """Return by name the weight tensors that attention needs: sinks and distances."""
    inside, roles = inspectable(llm.backend), ("sinks", "distance")
    names = {op.weights[role] for op in ops for role in roles if role in op.weights}
    return {name: inside.weight(name) for name in names}


def _stored_inputs(text: WholeText, ops: Iterable[Attend]) -> dict[str, Floats]:
    """Return stored keys and values under the tensor names of the ops that stored them."""
    inputs = {}
    for op in ops:
        layer = op.layer
        inputs[op.inputs[1]] = _rows(text.keys[layer])
        if op.values_from is None:
            inputs[op.inputs[2]] = _rows(text.values[layer])
    return inputs


def _rows(stored: NDArray[Any]) -> Floats:
    """Reshape keys or values from (kv_heads, tokens, head_dim) to (tokens, kv_heads · head_dim)."""
    return stored.transpose(1, 0, 2).reshape(stored.shape[1], -1).astype(np.float32)
