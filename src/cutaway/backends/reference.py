"""The reference backend: the graph in NumPy float32, op by op, like a textbook.

Knows how each op is computed, on weights decoded to float32, and keeps keys and values
in blocks. It is the oracle: it computes what the faster backends approximate. Slow and
hungry on purpose (4 bytes a weight).
Refuses to know sequences, requests and sampling.
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from cutaway.backends.base import KV_BLOCK, Batch, Logits, Watch
from cutaway.model import Graph, Op
from cutaway.model.rope import frequencies

Array = NDArray[np.float32]


class ReferenceBackend:
    """Interprets a graph's ops from top to bottom."""

    name = "reference"
    kv_block = KV_BLOCK
    pool = None  # NumPy's BLAS has its own threads
    tier, threads = "numpy", 0

    def __init__(self, graph: Graph, weights: Mapping[str, Array], kv_blocks: int) -> None:
        """weights: float32 by tensor name, matrices as (out, in)."""
        self.graph, self.weights, self.kv_blocks = graph, weights, kv_blocks
        self.watch: Watch | None = None
        self._last_use = {name: op for op in graph.ops for name in op.inputs}
        self._kv: dict[int, tuple[Array, Array]] = {}  # layer -> keys, values by slot
        for op in graph.ops:
            if op.kind == "attend":
                # np.empty takes address space only; pages come when a block is first written.
                shape = (kv_blocks * KV_BLOCK, op.attrs["kv_heads"], op.attrs["head_dim"])
                self._kv[op.attrs["layer"]] = (
                    np.empty(shape, np.float32),
                    np.empty(shape, np.float32),
                )

        parts = [part for both in self._kv.values() for part in both]
        self.kv_bytes = sum(part[0].nbytes for part in parts)

    def run(self, batch: Batch) -> Logits:
        """Logits of the rows asked for, (L, vocab)."""
        values: dict[str, Array] = {}
        for op in self.graph.ops:
            result = _OPS[op.kind](self, op, batch, *(values[name] for name in op.inputs))
            values[op.out.name] = result
            for name in op.inputs:
                if self._last_use[name] is op:
                    values.pop(name, None)  # a wide batch would not fit with every layer kept
            if self.watch:
                self.watch(op.out.name, result)
        return result

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """See ``Backend``."""
        sources, targets = zip(*pairs, strict=True)
        ids = {*sources, *targets}
        if min(ids) < 0 or max(ids) >= self.kv_blocks or len({*targets} - {*sources}) < len(pairs):
            raise ValueError(f"KV blocks cannot be copied by these pairs: {pairs}")
        for keys_and_values in self._kv.values():
            for slots in keys_and_values:
                blocks = slots.reshape(self.kv_blocks, KV_BLOCK, *slots.shape[1:])
                blocks[[*targets]] = blocks[[*sources]]

    def _weight(self, op: Op, role: str = "weight") -> Array:
        return self.weights[op.weights[role]]

    # -- the ops, each (M, width) -> (M, width) ------------------------------------------------

    def _embed(self, op: Op, batch: Batch) -> Array:
        return self._weight(op)[batch.tokens]

    def _rms_norm(self, op: Op, _: Batch, x: Array) -> Array:
        mean_square = np.mean(x * x, axis=-1, keepdims=True)  # (M, 1)
        normed: Array = x / np.sqrt(mean_square + np.float32(op.attrs["eps"]))
        return normed * self._weight(op)

    def _linear(self, op: Op, _: Batch, x: Array) -> Array:
        y = x @ self._weight(op).T  # (M, in) (in, out) -> (M, out)
        return y + self._weight(op, "bias") if "bias" in op.weights else y

    def _rope(self, op: Op, batch: Batch, x: Array) -> Array:
        n, factors = op.attrs["rope_dim"], op.weights.get("factors")
        own = None if factors is None else self.weights[factors].tolist()
        frequency = np.array(frequencies(op.attrs, own))  # (n/2,)
        angle = batch.positions[:, None, None] * frequency  # (M, 1, n/2)
        cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
        out = x.reshape(len(x), -1, op.attrs["head_dim"]).copy()  # (M, heads, head_dim)
        even, odd = out[..., 0:n:2].copy(), out[..., 1:n:2].copy()
        out[..., 0:n:2] = even * cos - odd * sin
        out[..., 1:n:2] = even * sin + odd * cos
        return out.reshape(x.shape)

    def _attend(self, op: Op, batch: Batch, q: Array, k: Array, v: Array) -> Array:
        keys, values = self._kv[op.attrs["layer"]]
        slots = batch.block_tables[batch.sequences, batch.positions // KV_BLOCK] * KV_BLOCK
        slots += batch.positions % KV_BLOCK
        keys[slots] = k.reshape(-1, *keys.shape[1:])
        values[slots] = v.reshape(-1, *values.shape[1:])
        out = np.empty_like(q)
        for s, table in enumerate(batch.block_tables):
            rows = batch.sequences == s
            positions = batch.positions[rows]
            history = np.arange(positions.max() + 1)  # (T,)
            where = table[history // KV_BLOCK] * KV_BLOCK + history % KV_BLOCK
            unseen = history > positions[:, None]  # (rows, T): the causal mask
            out[rows] = self._attend_one(op, q[rows], keys[where], values[where], unseen)
        return out

    def _attend_one(self, op: Op, q: Array, k: Array, v: Array, unseen: NDArray[np.bool_]) -> Array:
        """One sequence: q (R, heads·d), k and v (T, kv_heads, d), unseen (R, T)."""
        kv_heads, d = op.attrs["kv_heads"], op.attrs["head_dim"]
        groups = q.reshape(len(q), kv_heads, -1, d)  # (R, kv_heads, group, d)
        scores = np.einsum("rhgd,thd->hgrt", groups, k, optimize=True) / np.float32(np.sqrt(d))
        scores[..., unseen] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)  # (kv_heads, group, R, T)
        if self.watch:
            self.watch(f"{op.out.name}.weights", weights)
        mixed: Array = np.einsum("hgrt,thd->rhgd", weights, v, optimize=True)
        return mixed.reshape(q.shape)

    def _silu_mul(self, _: Op, __: Batch, gate: Array, up: Array) -> Array:
        # For gate below -88 exp overflows to infinity, and gate / infinity is the right 0.
        with np.errstate(over="ignore"):
            silu: Array = gate / (1 + np.exp(-gate))
        return silu * up

    def _add(self, _: Op, __: Batch, a: Array, b: Array) -> Array:
        return a + b

    def _logit_rows(self, _: Op, batch: Batch, x: Array) -> Array:
        return x[batch.logit_rows]


_OPS: Mapping[str, Callable[..., Array]] = {
    "embed": ReferenceBackend._embed,
    "rms_norm": ReferenceBackend._rms_norm,
    "linear": ReferenceBackend._linear,
    "rope": ReferenceBackend._rope,
    "attend": ReferenceBackend._attend,
    "silu_mul": ReferenceBackend._silu_mul,
    "add": ReferenceBackend._add,
    "logit_rows": ReferenceBackend._logit_rows,
}
