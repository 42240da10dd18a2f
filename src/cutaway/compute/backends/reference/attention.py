"""Attention by its definition, in NumPy float32: of the rows of a batch, or of a text alone."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cutaway.compute.backends.base import Batch
from cutaway.compute.backends.layout import KV_BLOCK
from cutaway.compute.backends.reference.run import Array, KVBlocks, Run, StateSlots, blocks_of
from cutaway.compute.model import Graph, Op


def attend(op: Op, run: Run, q: Array, *kv: Array) -> Array:
    """Each row's mean of the values that it sees, weighted by softmax(q · k · scale).

    kv: keys and values; keys alone where values are numbers of them; none where those that
    another layer stored are read; behind them what queries and keys say of distances, if they do
    """
    batch, layer = run.batch, op.attrs["layer"]
    kv, said = (kv[:2], kv[2:]) if "relative" in op.attrs else (kv, ())
    if kv:
        run.kv.write(layer, blocks_of(batch), batch.positions % KV_BLOCK, *kv)
    out = np.empty((len(q), op.out.width), np.float32)
    for s, table in enumerate(batch.block_tables):
        rows = batch.sequences == s
        unseen = _unseen(op, batch, s, rows)
        first = int(np.argmin(unseen.all(axis=0)))
        read = np.maximum(np.arange(unseen.shape[1]), first)  # before that nothing may be stored
        keys, values = run.kv.read(layer, table, read)  # (T, kv_heads, head_dim)
        sinks = run.weight(op, "sinks") if "sinks" in op.weights else None
        bias = _distance_bias(op, run, batch.positions[rows], unseen.shape[1])
        if said:
            bias = _relative_bias(op, batch.positions[rows], *(x[rows] for x in said))
        weights = _weights(op, q[rows], keys, unseen, sinks=sinks, bias=bias)
        run.note(f"{op.out.name}.weights", weights)
        mixed = np.einsum("hgrt,thd->rhgd", weights, values, optimize=True)
        out[rows] = mixed.reshape(len(mixed), -1)
    return out


def _distance_bias(op: Op, run: Run, positions: NDArray[np.int32], history: int) -> Array | None:
    """What is added to scores, (kv_heads, group, R, T); None for nothing."""
    if "distance" not in op.attrs:
        return None
    distances = np.arange(history) - positions[:, None]  # (R, T)
    reach, heads = int(abs(distances).max()), op.attrs["heads"]
    weight = run.weight(op, "distance") if "distance" in op.weights else None
    table = op.attrs["distance"].table(reach, heads, weight)
    bias: Array = table[:, distances + reach]
    return bias.reshape(op.attrs["kv_heads"], -1, *distances.shape)


def _relative_bias(op: Op, positions: NDArray[np.int32], of_query: Array, of_key: Array) -> Array:
    """The same where queries and keys say it, of all rows of a text: (heads, 1, R, R)."""
    heads, count = op.attrs["heads"], len(positions)
    if (positions != np.arange(count)).any():
        raise ValueError("batch: this model reads a text in one step, from its first token on")
    rows = op.attrs["relative"].rows(count)[count + positions[:, None] - positions]  # (R, R)
    first, second = (x.reshape(count, heads, -1).swapaxes(0, 1) for x in (of_query, of_key))
    each = np.take_along_axis(first, rows[None], -1)
    each = each + np.take_along_axis(second, rows.T[None], -1).swapaxes(1, 2)
    scaled: Array = each[:, None] * np.float32(op.attrs["scale"])
    return scaled


def _weights(
    op: Op, q: Array, k: Array, unseen: NDArray[np.bool_],
    *, sinks: Array | None, bias: Array | None,
) -> Array:  # fmt: skip
    """Softmax of q (R, heads · d) times k (T, kv_heads, d): (kv_heads, group, R, T).

    sinks (heads,): one more score of each head, whose weight is left out
    bias: what is added to the scores
    """
    kv_heads, d = op.attrs["kv_heads"], op.attrs["head_dim"]
    groups = q.reshape(len(q), kv_heads, -1, d)  # (R, kv_heads, group, d)
    scores = np.einsum("rhgd,thd->hgrt", groups, k, optimize=True) * np.float32(op.attrs["scale"])
    if op.attrs["softcap"]:
        scores = softcapped(scores, op.attrs["softcap"])
    if bias is not None:
        scores = scores + bias
    scores[..., unseen] = -np.inf
    if sinks is not None:
        beside = np.broadcast_to(sinks.reshape(*scores.shape[:2], 1, 1), (*scores.shape[:3], 1))
        scores = np.concatenate([scores, beside], axis=-1)
    weights: Array = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights if sinks is None else weights[..., :-1]


def _unseen(op: Op, batch: Batch, s: int, rows: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which positions the rows of sequence s do not see, (R, T)."""
    window, reach, chunked = (op.attrs[name] for name in ("window", "reach", "chunked"))
    positions = batch.positions[rows]
    limits = positions if batch.limits is None else batch.limits[rows]
    history = np.arange(limits.max() + 1)  # (T,)
    unseen = history > limits[:, None]
    if chunked:
        unseen |= history < positions[:, None] // window * window
    elif window:
        unseen |= history <= positions[:, None] - window
    if reach:
        unseen |= abs(history - positions[:, None]) > reach
    if batch.hidden_from is not None:
        unseen |= batch.hidden_from[s, : len(history)] <= positions[:, None]
    if unseen.all(axis=-1).any():
        raise ValueError("batch: a limit lies before its row's window")
    return unseen


def softcapped(x: Array, cap: float) -> Array:
    """cap · tanh(x / cap), of scores as of logits."""
    capped: Array = np.float32(cap) * np.tanh(x / np.float32(cap))
    return capped


class Attended(NamedTuple):
    """What an op makes of its inputs: output (tokens, width), and weights (heads, tokens, n)."""

    op: Op
    output: Array
    weights: Array


def attention_of(
    graph: Graph, weights: Mapping[str, Array], batch: Batch, tensors: Mapping[str, Array]
) -> Iterator[Attended]:
    """Each op of a graph that attends, in their order.

    weights: by name, those that these ops read
    batch: all rows of one text; nothing is stored in its blocks
    tensors: the ops' inputs by name, (tokens, width)
    """
    blocks, noted = -(-len(batch.tokens) // KV_BLOCK), dict[str, Array]()
    batch = batch._replace(block_tables=np.arange(blocks, dtype=np.int32)[None])
    stored = KVBlocks(graph, blocks, "f16")
    stored.take(range(blocks))
    run = Run(weights, batch, stored, StateSlots(graph, blocks), noted.__setitem__)
    for op in (op for op in graph.ops if op.kind == "attend"):
        output = attend(op, run, *(tensors[name] for name in op.inputs))
        shares = noted.pop(f"{op.out.name}.weights")
        yield Attended(op, output, shares.reshape(op.attrs["heads"], len(output), -1))
