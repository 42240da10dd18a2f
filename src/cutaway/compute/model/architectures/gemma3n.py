"""Gemma 3n: several streams, of which a layer reads one and predicts the others.

Its attention, and its layers' embeddings, are Gemma 4's. ``files/huggingface/families/gemma.py``
reads its folders.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import inf

import numpy as np

from cutaway.compute.model.architectures.gemma import (
    Gemma4,
    attention,
    embed,
    embed_layers,
    read_gemma4,
    read_heads,
)
from cutaway.compute.model.architectures.parts import head
from cutaway.compute.model.config import Architecture, ModelConfig
from cutaway.compute.model.graph import Graph, Tensor
from cutaway.compute.model.metadata import MetadataReader
from cutaway.errors import FormatError


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma3n(Gemma4):
    """The config of Gemma 3n.

    streams   how many streams there are, each as wide as what a layer reads (AltUp)
    active    the number of the stream that layers read
    sparsity  for each layer, how many deviations above the mean its MLP's gate must be to pass
    """

    streams: int
    active: int
    sparsity: tuple[float, ...]


_SPARSITY = 1.6448535  # 95 % of normally distributed numbers are less deviations above the mean
_SPARSE_LAYERS = 10


def _read_gemma3n(read: MetadataReader, c: ModelConfig) -> Gemma3n:
    usual = np.array([_SPARSITY if i < _SPARSE_LAYERS else -inf for i in range(c.layers)])
    sparsity = read.value("activation_sparsity_scale", usual)
    if not isinstance(sparsity, np.ndarray) or sparsity.shape != (c.layers,):
        raise FormatError(
            f"metadata key {read.prefix}.activation_sparsity_scale must be a number for each of "
            f"{c.layers} layers"
        )
    streams, active = read.size("altup.num_inputs", 4), read.size_or_zero("altup.active_idx")
    if not active < streams > 1:
        raise FormatError(
            f"{read.prefix}.altup.active_idx is {active} of {streams} streams (altup.num_inputs); "
            "only 2 streams or more are supported, and one of them is read"
        )
    facts = read_gemma4(read, c)
    return facts.as_kind(Gemma3n, streams=streams, active=active, sparsity=tuple(sparsity.tolist()))


_TINY = 1e-30  # an epsilon that changes no number


def gemma3n(g: Graph, c: Gemma3n) -> Tensor:
    """Build Gemma 3n (2025): E2B and E4B. Returns the logits, (L, vocab).

    AltUp (arXiv 2301.13310) and Laurel (arXiv 2411.07501) are around Gemma 4's attention.
    """
    x = embed(g, c)  # (M, hidden)
    g.matrix("per_layer_token_embd")  # FormatError without it
    beside, streams = embed_layers(g, c, x), [x, *_other_streams(g, c, x)]
    n = beside.width // c.layers
    for layer, p in enumerate(g.layers(c.layers)):
        streams = _predict(g, c, streams, p)
        x = _gemma3n_layer(g, c, streams[c.active], layer)
        streams = _correct(g, c, streams, x, p)
        read = _multiply(g, streams[c.active], f"{p}altup_correct_scale")
        part = g.pick(beside, beside.width, layer * n, (layer + 1) * n)
        part = g.linear(g.gelu_mul(g.linear(read, f"{p}inp_gate"), part), f"{p}proj")
        part = g.rms_norm(part, f"{p}post_norm", c.norm_eps)
        streams = [streams[0], *(g.add(stream, part) for stream in streams[1:])]
    x = g.scale(_sum_streams(g, c, streams), 1 / c.streams)
    return head(g, c, g.rms_norm(g.logit_rows(x), "output_norm", c.norm_eps))


def _gemma3n_layer(g: Graph, c: Gemma3n, x: Tensor, layer: int) -> Tensor:
    """Add attention, Laurel's narrow pair of matrices beside it, and an MLP: (M, n) -> (M, n)."""
    p = f"blk.{layer}."
    h = g.rms_norm(x, f"{p}attn_norm", c.norm_eps)
    a = g.rms_norm(
        attention(g, c, h, layer, needs_values=True), f"{p}post_attention_norm", c.norm_eps
    )
    narrow = g.linear(g.linear(h, f"{p}laurel_l"), f"{p}laurel_r")
    beside = g.add(h, g.rms_norm(narrow, f"{p}laurel_post_norm", c.norm_eps))
    x = g.scale(g.add(g.add(x, a), beside), 2**-0.5)
    h = g.rms_norm(x, f"{p}ffn_norm", c.norm_eps)
    gate = _cut_gate(g, g.linear(h, f"{p}ffn_gate"), c.sparsity[layer])
    m = g.linear(g.gelu_mul(gate, g.linear(h, f"{p}ffn_up")), f"{p}ffn_down")
    return g.add(x, g.rms_norm(m, f"{p}post_ffw_norm", c.norm_eps))


def _cut_gate(g: Graph, gate: Tensor, deviations: float) -> Tensor:
    """Subtract mean + deviations · deviation, and leave no number below 0: (M, n) -> (M, n)."""
    if deviations == -inf:
        return gate
    above = g.relu_above(g.layer_norm(gate, "", _TINY), deviations)
    return g.mul(g.magnitude(gate, is_centred=True), above)


def _multiply(g: Graph, x: Tensor, weight: str) -> Tensor:
    """Multiply each number by a weight: (M, n) -> (M, n)."""
    return g.mul(g.magnitude(x), g.rms_norm(x, weight, _TINY))


def _other_streams(g: Graph, c: Gemma3n, x: Tensor) -> list[Tensor]:
    """Compute the streams after the first by a matrix each, as large as the first: (M, n) each."""
    y = g.heads_linear(_side_by_side(g, [x] * (c.streams - 1)), "altup_proj")
    y = g.mul(g.magnitude(x), g.rms_norm(y, "", _TINY, group=c.hidden))
    return [g.pick(y, y.width, i, i + c.hidden) for i in range(0, y.width, c.hidden)]


def _sum_streams(g: Graph, c: Gemma3n, streams: Sequence[Tensor]) -> Tensor:
    """Multiply streams by a matrix each, make them as large as the first, and add them to it."""
    first, *rest = streams
    y = g.heads_linear(_side_by_side(g, rest), "altup_unembd_proj")
    y = g.mul(g.magnitude(first), g.rms_norm(y, "", _TINY, group=c.hidden))
    picks = (g.pick(y, y.width, i, i + c.hidden) for i in range(0, y.width, c.hidden))
    return reduce(g.add, picks, first)


def _side_by_side(g: Graph, parts: Sequence[Tensor]) -> Tensor:
    return reduce(lambda a, b: g.join(a, b, 1), parts)


def _route(g: Graph, c: Gemma3n, x: Tensor, p: str) -> Tensor:
    """Weigh the streams by what one of them holds: (M, n) -> (M, streams)."""
    h = g.scale(g.rms_norm(x, f"{p}altup_router_norm", c.norm_eps), 1 / c.hidden)
    return g.softcap(g.linear(h, f"{p}altup_router"), 1.0)  # a cap of 1 is tanh


def _predict(g: Graph, c: Gemma3n, streams: Sequence[Tensor], p: str) -> list[Tensor]:
    """Add to each stream all streams, with weights that follow from the active one."""
    route, n = _route(g, c, streams[c.active], p), c.streams
    predicted = []
    for i, stream in enumerate(streams):
        weights = [
            g.linear(route, f"{p}altup_predict_coef", (j, j + 1)) for j in range(i * n, i * n + n)
        ]
        predicted.append(reduce(g.add, map(g.mul, weights, streams), stream))
    return predicted


def _correct(g: Graph, c: Gemma3n, streams: Sequence[Tensor], x: Tensor, p: str) -> list[Tensor]:
    """Add to each stream what a layer changed in the active one, with weights that follow from it.

    streams: as predicted; x: what the layer made of the active one
    """
    route, change = _route(g, c, x, p), g.add(x, g.scale(streams[c.active], -1))
    corrected = []
    for i, stream in enumerate(streams):
        weight = g.linear(route, f"{p}altup_correct_coef", (i, i + 1))
        corrected.append(g.add(g.add(stream, change), g.mul(weight, change)))
    return corrected


ROWS: Mapping[str, Architecture] = {
    "gemma3n": Architecture(
        gemma3n, heads=read_heads, extend=_read_gemma3n,
        defaults={"attention.sliding_window_pattern": 5},
    ),
}  # fmt: skip
