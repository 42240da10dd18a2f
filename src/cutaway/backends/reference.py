"""The reference backend: the graph in NumPy float32, op by op, like a textbook.

Knows how each op is computed, on weights decoded to float32, and keeps keys and values
in blocks. It is the oracle: it computes what the faster backends approximate. Slow and
hungry on purpose (4 bytes a weight).
Refuses to know sequences and requests.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from math import erf, pi, sqrt
from typing import Self

import numpy as np
from numpy.typing import NDArray

from cutaway.backends.base import (
    KV_BLOCK,
    Batch,
    Bytes,
    Edit,
    HostSampling,
    KVLayout,
    Logits,
    kv_groups,
)
from cutaway.backends.kv_formats import as_q8_0
from cutaway.model import Graph, Op
from cutaway.weights import ModelFile

Array = NDArray[np.float32]


class ReferenceBackend(HostSampling):
    """Interprets a graph's ops from top to bottom."""

    name = "reference"
    tier, threads = "numpy", 0  # NumPy's BLAS has its own threads

    def __init__(
        self, graph: Graph, weights: Mapping[str, Array], kv_blocks: int, kv: str = "f16"
    ) -> None:
        """weights: float32 by tensor name, matrices as (out, in).

        kv: "q8_0" rounds keys and values as that format does; "f16" leaves them as they are
        """
        self._stored = as_q8_0 if kv == "q8_0" else np.asarray
        self.graph, self.weights, self.kv_blocks = graph, weights, kv_blocks
        self._wanted: frozenset[str] = frozenset()  # names of tensors to note
        self._noted: dict[str, Array] = {}
        self._edits: Sequence[Edit] = ()
        self._last_use = {name: op for op in graph.ops for name in op.inputs}
        self._kv: dict[int, tuple[Array, Array]] = {}  # layer -> keys, values by slot
        self._whole: list[Array] = []  # of these, as blocks: those of layers that see all,
        self._windowed: list[Array] = []  # and those of layers that see a window
        self._places = np.full(kv_blocks, -1, np.int32)  # where a block's are in them; -1: nowhere
        self._free = [*reversed(range(kv_blocks))]
        for op in graph.ops:
            if op.kind == "attend":
                # np.empty takes address space only; pages come when a block is first written.
                shape = (kv_blocks, KV_BLOCK, op.attrs["kv_heads"], op.attrs["head_dim"])
                keys, values = np.empty(shape, np.float32), np.empty(shape, np.float32)
                alike = self._windowed if op.attrs["window"] else self._whole
                alike += keys, values
                slots = (kv_blocks * KV_BLOCK, *shape[2:])
                self._kv[op.attrs["layer"]] = keys.reshape(slots), values.reshape(slots)
        self.kv = kv_layout(graph)

    def adapted(self, graph: Graph, file: ModelFile) -> Self:
        """See ``Backend``."""
        made = copy(self)
        made.graph = graph
        made.weights = {**self.weights, **{name: file.dequantize(name) for name in file.tensors}}
        made._last_use = {name: op for op in graph.ops for name in op.inputs}
        return made

    def run(self, batch: Batch) -> Logits:
        """Logits of the rows asked for, (L, vocab)."""
        return self._run(self.graph.ops, batch)

    def hidden(self, batch: Batch) -> Array:
        """See ``Backend``."""
        return self._run(self.graph.body().ops, batch)

    def _run(self, ops: Sequence[Op], batch: Batch) -> Array:
        _check_limits(batch)
        for block in np.unique(batch.block_tables[batch.sequences, batch.positions // KV_BLOCK]):
            self._take(block)
        values: dict[str, Array] = {}
        for op in ops:
            result = _OPS[op.kind](self, op, batch, *(values[name] for name in op.inputs))
            values[op.out.name] = result
            for edit in (e for e in self._edits if e.tensor == op.out.name):
                changed = edit.change(result[edit.rows, edit.columns])
                result[edit.rows, edit.columns] = changed
            for name in op.inputs:
                if self._last_use[name] is op:
                    values.pop(name, None)  # with every layer held, a wide batch would not fit
            self._note(op.out.name, result)
        return result

    def run_changed(self, batch: Batch, edits: Sequence[Edit]) -> Logits:
        """See ``Backend``."""
        return self.tap(batch, (), edits)[0]

    def tap(
        self, batch: Batch, names: Sequence[str], edits: Sequence[Edit] = ()
    ) -> tuple[Logits, dict[str, Array]]:
        """See ``Backend``.

        Attention's weights too, (kv_heads, heads / kv_heads, rows, history), by the name of its
        output and ".weights".
        """
        self._wanted, self._noted, self._edits = frozenset(names), {}, edits
        try:
            return self.run(batch), self._noted
        finally:
            self._wanted, self._edits = frozenset(), ()

    def head(self, x: Array) -> Logits:
        """See ``Backend``."""
        given, *ops = self.graph.after_rows().ops
        return np.concatenate([self._head_row(ops, {given.out.name: row[None]}) for row in x])

    def _head_row(self, ops: Sequence[Op], values: dict[str, Array]) -> Array:
        nothing = np.empty(0, np.int32)
        batch = Batch(nothing, nothing, nothing, nothing, nothing)
        for op in ops:
            values[op.out.name] = _OPS[op.kind](self, op, batch, *(values[n] for n in op.inputs))
        return values[ops[-1].out.name]

    def keys_values(
        self, layer: int, table: Sequence[int], first: int, last: int
    ) -> tuple[Array, Array]:
        """See ``Backend``: float32."""
        window = next(op.attrs["window"] for op in self.graph.ops if op.attrs.get("layer") == layer)
        ids, positions = np.array(table), np.arange(first, last)
        blocks = (self._places[ids] if window else ids)[positions // KV_BLOCK]
        if (blocks < 0).any():
            raise ValueError("a KV block was let go of")
        slots = blocks * KV_BLOCK + positions % KV_BLOCK
        keys, values = (stored[slots].transpose(1, 0, 2) for stored in self._kv[layer])
        return keys, values

    def weight(self, name: str, first: int = 0, last: int | None = None) -> Array:
        """See ``Backend``."""
        whole = self.weights[name]
        return (whole.reshape(-1, whole.shape[-1]) if whole.ndim > 1 else whole)[first:last]

    def as_read(self, name: str, x: Array) -> Array:  # noqa: ARG002
        """See ``Backend``: as they are."""
        return x

    def _note(self, name: str, value: Array) -> None:
        if name in self._wanted:
            self._noted[name] = value.copy()

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """See ``Backend``."""
        sources, targets = zip(*pairs, strict=True)
        ids = {*sources, *targets}
        if min(ids) < 0 or max(ids) >= self.kv_blocks or len({*targets} - {*sources}) < len(pairs):
            raise ValueError(f"KV blocks cannot be copied by these pairs: {pairs}")
        for blocks in self._whole:
            blocks[[*targets]] = blocks[[*sources]]
        self.copy_windows(pairs)

    def copy_windows(self, pairs: list[tuple[int, int]]) -> None:
        """See ``Backend``."""
        last = self.kv_blocks - 1
        if not all(0 <= source <= last and -1 <= target <= last for source, target in pairs):
            raise ValueError(f"KV blocks cannot be copied by these pairs: {pairs}")
        for source, target in pairs:
            if target < 0 or self._places[source] < 0:
                self._let_go(target if target >= 0 else source)
                continue
            self._take(target)
            for blocks in self._windowed:
                blocks[self._places[target]] = blocks[self._places[source]]

    def _take(self, block: int) -> None:
        if self._places[block] < 0:
            self._places[block] = self._free.pop()

    def _let_go(self, block: int) -> None:
        if self._places[block] >= 0:
            self._free.append(int(self._places[block]))
            self._places[block] = -1

    def block_memory(self, block_id: int, *, windows: bool = False) -> list[Bytes]:
        """See ``Backend``."""
        if not 0 <= block_id < self.kv_blocks:
            raise ValueError(f"{block_id} names no KV block")
        if windows:
            self._take(block_id)
        place = int(self._places[block_id])
        pieces = [blocks[block_id] for blocks in self._whole]
        pieces += [blocks[place] for blocks in self._windowed if place >= 0]
        return [piece.reshape(-1).view(np.uint8) for piece in pieces]

    def _weight(self, op: Op, role: str = "weight") -> Array:
        return self.weights[op.weights[role]]

    # -- the ops, each (M, width) -> (M, width) ------------------------------------------------

    def _embed(self, op: Op, batch: Batch) -> Array:
        return self._weight(op)[batch.tokens]

    def _embed_positions(self, op: Op, batch: Batch) -> Array:
        return self._weight(op)[batch.positions]

    def _embed_first(self, op: Op, batch: Batch) -> Array:
        return self._weight(op)[np.zeros_like(batch.tokens)]

    def _rms_norm(self, op: Op, _: Batch, x: Array) -> Array:
        group = op.attrs["group"]
        groups = x.reshape(len(x), x.shape[1] // group, group)  # M may be 0
        mean_square = np.mean(groups * groups, axis=-1, keepdims=True)  # (M, groups, 1)
        normed = groups / np.sqrt(mean_square + np.float32(op.attrs["eps"]))
        weighted: Array = normed * self._weight(op)
        return weighted.reshape(x.shape)

    def _layer_norm(self, op: Op, _: Batch, x: Array) -> Array:
        centred = x - np.mean(x, axis=-1, keepdims=True)
        variance = np.mean(centred * centred, axis=-1, keepdims=True)  # (M, 1)
        normed: Array = centred / np.sqrt(variance + np.float32(op.attrs["eps"]))
        weighted: Array = normed * self._weight(op)
        return weighted + self._weight(op, "bias") if "bias" in op.weights else weighted

    def _linear(self, op: Op, _: Batch, x: Array) -> Array:
        rows = slice(*op.attrs["rows"])
        y: Array = x @ self._weight(op)[rows].T  # (M, in) (in, out) -> (M, out)
        if "bias" in op.weights:
            y = y + self._weight(op, "bias")[rows]
        if "lora_a" in op.weights:
            inner: Array = x @ self._weight(op, "lora_a").T * np.float32(op.attrs["lora_scale"])
            y = y + inner @ self._weight(op, "lora_b")[rows].T  # (M, rank) (rank, out)
        return y

    def _rope(self, op: Op, batch: Batch, x: Array) -> Array:
        rope, factors = op.attrs["rope"], op.weights.get("factors")
        own = None if factors is None else self.weights[factors].tolist()
        frequency = np.array(rope.frequencies(own))  # (n/2,)
        angle = batch.positions[:, None, None] * frequency  # (M, 1, n/2)
        cos = (rope.attention_factor * np.cos(angle)).astype(np.float32)
        sin = (rope.attention_factor * np.sin(angle)).astype(np.float32)
        out = x.reshape(len(x), -1, op.attrs["head_dim"]).copy()  # (M, heads, head_dim)
        n, half = rope.dim, rope.dim // 2
        halves, neighbours = (slice(half), slice(half, n)), (slice(0, n, 2), slice(1, n, 2))
        pair = halves if rope.rotate_half else neighbours
        first, second = (out[..., part].copy() for part in pair)  # (M, heads, n/2)
        out[..., pair[0]] = first * cos - second * sin
        out[..., pair[1]] = first * sin + second * cos
        return out.reshape(x.shape)

    def _attend(self, op: Op, batch: Batch, q: Array, k: Array, v: Array) -> Array:
        keys, values = self._kv[op.attrs["layer"]]
        window, reach = op.attrs["window"], op.attrs["reach"]
        tables = self._places[batch.block_tables] if window else batch.block_tables
        slots = tables[batch.sequences, batch.positions // KV_BLOCK] * KV_BLOCK
        slots += batch.positions % KV_BLOCK
        keys[slots] = self._stored(k.reshape(-1, *keys.shape[1:]))
        values[slots] = self._stored(v.reshape(-1, *values.shape[1:]))
        out = np.empty_like(q)
        for s, table in enumerate(tables):
            rows = batch.sequences == s
            positions, limits = batch.positions[rows], _limits(batch)[rows]
            history = np.arange(limits.max() + 1)  # (T,)
            unseen = history > limits[:, None]  # (rows, T)
            if window:
                unseen |= history <= positions[:, None] - window
            if reach:
                unseen |= abs(history - positions[:, None]) > reach
            if batch.blind is not None:
                unseen |= batch.blind[s, : len(history)] <= positions[:, None]
            if unseen.all(axis=-1).any():
                raise ValueError("batch: a limit lies before its row's window")
            first = max(0, positions.min() - window + 1) if window else 0
            if (table[first // KV_BLOCK : history[-1] // KV_BLOCK + 1] < 0).any():
                raise ValueError("batch: a row sees a KV block that was let go of")
            read = np.maximum(history, first)  # of what no row sees nothing may be stored
            where = table[read // KV_BLOCK] * KV_BLOCK + read % KV_BLOCK
            out[rows] = self._attend_one(op, q[rows], keys[where], values[where], unseen)
        return out

    def _attend_one(self, op: Op, q: Array, k: Array, v: Array, unseen: NDArray[np.bool_]) -> Array:
        """One sequence: q (R, heads·d), k and v (T, kv_heads, d), unseen (R, T)."""
        kv_heads, d = op.attrs["kv_heads"], op.attrs["head_dim"]
        groups = q.reshape(len(q), kv_heads, -1, d)  # (R, kv_heads, group, d)
        scores = np.einsum("rhgd,thd->hgrt", groups, k, optimize=True) * np.float32(
            op.attrs["scale"]
        )
        if op.attrs["softcap"]:
            scores = _softcapped(scores, op.attrs["softcap"])
        scores[..., unseen] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)  # (kv_heads, group, R, T)
        self._note(f"{op.out.name}.weights", weights)
        mixed: Array = np.einsum("hgrt,thd->rhgd", weights, v, optimize=True)
        return mixed.reshape(q.shape)

    def _silu_mul(self, _: Op, __: Batch, gate: Array, up: Array) -> Array:
        return _silu(gate) * up

    def _gelu_mul(self, op: Op, batch: Batch, gate: Array, up: Array) -> Array:
        return self._gelu(op, batch, gate) * up

    def _gelu_exact_mul(self, op: Op, batch: Batch, gate: Array, up: Array) -> Array:
        return self._gelu_exact(op, batch, gate) * up

    def _gelu(self, _: Op, __: Batch, x: Array) -> Array:
        inner = np.float32(sqrt(2 / pi)) * (x + np.float32(0.044715) * x * x * x)
        y: Array = np.float32(0.5) * x * (1 + np.tanh(inner))
        return y

    def _gelu_exact(self, _: Op, __: Batch, x: Array) -> Array:
        normal: Array = 0.5 * (1 + _erf(x * np.float32(sqrt(0.5)))).astype(np.float32)
        return x * normal

    def _experts(self, op: Op, _: Batch, x: Array, scores: Array) -> Array:
        gate, up, down = (self._weight(op, role) for role in ("gate", "up", "down"))
        share = np.exp(scores - scores.max(axis=-1, keepdims=True))
        share /= share.sum(axis=-1, keepdims=True)  # (M, experts)
        chosen = np.argsort(-scores, axis=-1, kind="stable")[:, : op.attrs["used"]]  # (M, used)
        weights = np.take_along_axis(share, chosen, axis=-1)
        if op.attrs["norm_topk_prob"]:
            weights /= weights.sum(axis=-1, keepdims=True)
        out = np.zeros_like(x)
        for row, experts in enumerate(chosen):
            for e, weight in zip(experts, weights[row], strict=True):
                inner = _silu(gate[e] @ x[row]) * (up[e] @ x[row])
                out[row] += weight * (down[e] @ inner)
        return out

    def _add(self, _: Op, __: Batch, a: Array, b: Array) -> Array:
        return a + b

    def _scale(self, op: Op, _: Batch, x: Array) -> Array:
        return x * np.float32(op.attrs["factor"])

    def _softcap(self, op: Op, _: Batch, x: Array) -> Array:
        return _softcapped(x, op.attrs["cap"])

    def _logit_rows(self, _: Op, batch: Batch, x: Array) -> Array:
        return x[batch.logit_rows]


def kv_layout(graph: Graph) -> KVLayout:
    """All layers in float32."""
    return KVLayout(KV_BLOCK, kv_groups(graph, "F32", lambda heads, dim: 2 * heads * dim * 4))


def _limits(batch: Batch) -> NDArray[np.int32]:
    """The last position that each row sees, (M,)."""
    return batch.positions if batch.limits is None else batch.limits


def _check_limits(batch: Batch) -> None:
    """ValueError where a row is to see what its block table does not name."""
    if batch.limits is None:
        return
    if len(batch.limits) != len(batch.positions):
        raise ValueError("batch: tokens, positions, sequences and limits differ in length")
    for s, limit in zip(batch.sequences, batch.limits, strict=True):
        blocks = batch.block_tables[s, : limit // KV_BLOCK + 1]
        if limit < 0 or len(blocks) <= limit // KV_BLOCK or (blocks < 0).any():
            raise ValueError("batch: a limit is outside its block table")


_erf = np.frompyfunc(erf, 1, 1)  # NumPy has none


def _silu(x: Array) -> Array:
    # For x below -88 exp overflows to infinity, and x / infinity is the right 0.
    with np.errstate(over="ignore"):
        y: Array = x / (1 + np.exp(-x))
    return y


def _softcapped(x: Array, cap: float) -> Array:
    capped: Array = np.float32(cap) * np.tanh(x / np.float32(cap))
    return capped


_OPS: Mapping[str, Callable[..., Array]] = {
    "embed": ReferenceBackend._embed,
    "embed_positions": ReferenceBackend._embed_positions,
    "embed_first": ReferenceBackend._embed_first,
    "rms_norm": ReferenceBackend._rms_norm,
    "layer_norm": ReferenceBackend._layer_norm,
    "linear": ReferenceBackend._linear,
    "rope": ReferenceBackend._rope,
    "attend": ReferenceBackend._attend,
    "silu_mul": ReferenceBackend._silu_mul,
    "gelu_mul": ReferenceBackend._gelu_mul,
    "gelu_exact_mul": ReferenceBackend._gelu_exact_mul,
    "gelu": ReferenceBackend._gelu,
    "gelu_exact": ReferenceBackend._gelu_exact,
    "experts": ReferenceBackend._experts,
    "add": ReferenceBackend._add,
    "scale": ReferenceBackend._scale,
    "softcap": ReferenceBackend._softcap,
    "logit_rows": ReferenceBackend._logit_rows,
}
