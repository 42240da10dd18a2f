"""The reference backend: it runs the graph op by op, in NumPy and float32.

Weights are decoded to float32. The backend is the oracle: it computes what the faster backends
approximate. It is slow and takes much memory (4 bytes a weight) on purpose.
"""

from collections.abc import Container, Mapping, Sequence
from copy import copy
from types import MappingProxyType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from cutaway.base.arithmetic import plainly
from cutaway.compute.backends.base import (
    Batch,
    Bytes,
    Edit,
    HostSampling,
    Logits,
    put,
    reorder_columns,
)  # fmt: skip
from cutaway.compute.backends.layout import KV_BLOCK
from cutaway.compute.backends.reference.run import BatchRun, KVBlocks, StateSlots, kv_layout
from cutaway.compute.model import Graph, Op
from cutaway.compute.model.ops.linear import Adaptable
from cutaway.compute.model.ops.rows import GivenRows
from cutaway.files.weights import ModelFile

__all__ = ["ReferenceBackend", "kv_layout"]

Array = NDArray[np.float32]


class ReferenceBackend(HostSampling):
    """Interprets a graph's ops from top to bottom."""

    name = "reference"
    tier, threads = "numpy", 0  # NumPy's BLAS has its own threads

    def __init__(
        self, graph: Graph, weights: Mapping[str, Array], kv_blocks: int, kv: str = "f16"
    ) -> None:
        """weights: float32 arrays by tensor name; a matrix is (out, in).

        kv: a format with codes rounds keys and values as in other backends; "f16" rounds nothing
        """
        self.graph, self.weights, self.kv_blocks = graph, weights, kv_blocks
        self.kv, self._format = kv_layout(graph), kv
        self._stored, self._states = KVBlocks(graph, kv_blocks, kv), StateSlots(graph, kv_blocks)
        self._note_names: frozenset[str] = frozenset()  # names of tensors to note
        self._notes: dict[str, Array] = {}
        self._edits: Sequence[Edit] = ()

    def with_adapter(self, graph: Graph, file: ModelFile) -> Self:
        """See ``Backend``."""
        backend = copy(self)
        backend.graph, backend.weights = graph, self._weights_of(graph, file)
        return backend

    def with_weights(self, file: ModelFile, names: Container[str]) -> Self:
        """See ``Backend``."""
        backend = copy(self)
        of_names = {name: file.dequantize_scaled(name) for name in self.weights if name in names}
        backend.weights = {**self.weights, **of_names}
        return backend

    def with_graph(self, graph: Graph, file: ModelFile) -> Self:
        """See ``Backend``."""
        weights = self._weights_of(graph, file)
        return type(self)(graph, weights, self.kv_blocks, self._format)

    def _weights_of(self, graph: Graph, file: ModelFile) -> dict[str, Array]:
        """Return the weights, with those that the graph reads besides."""
        names = {name for op in graph.ops for name in op.weights.values()}
        for op in graph.ops:
            if isinstance(op, Adaptable):
                names |= {name for lora in op.loras for name in (lora.a, lora.b)}
        names -= self.weights.keys()
        return {**self.weights, **{name: file.dequantize_scaled(name) for name in names}}

    def run(self, batch: Batch) -> Logits:
        """Return the logits of the wanted rows, (L, vocab)."""
        return self._run(self.graph.ops, batch)

    def finish(self, x: Array) -> Array:
        """See ``Backend``."""
        after = self.graph.pooled_graph()
        return x if after is None else self._run_on(x, after)

    def hidden(self, batch: Batch) -> Array:
        """See ``Backend``."""
        return self._run(self.graph.body().ops, batch)

    def run_whole(self, batch: Batch, names: tuple[str, ...] = ()) -> tuple[Logits, Array]:
        """See ``Backend``."""
        graph, read = self.graph.choosing_last()
        names = names or (read.name,)
        self._note_names, self._notes = frozenset(names), {}
        try:
            logits = self._run(graph.ops, batch)
            return logits, np.concatenate([self._notes[name] for name in names], axis=1)
        finally:
            self._note_names = frozenset()

    def run_edited(self, batch: Batch, edits: Sequence[Edit]) -> Logits:
        """See ``Inspectable``."""
        return self.tap(batch, (), edits)[0]

    def tap(
        self, batch: Batch, names: Sequence[str], edits: Sequence[Edit] = ()
    ) -> tuple[Logits, dict[str, Array]]:
        """See ``Inspectable``.

        The name of an attention's output with ".weights" stands for the weights of attention:
        (kv_heads, heads / kv_heads, rows, history).
        """
        self._note_names, self._notes, self._edits = frozenset(names), {}, edits
        try:
            run = self.run if self.graph.pooled_graph() is None else self.hidden
            return run(batch), self._notes
        finally:
            self._note_names, self._edits = frozenset(), ()

    def head(self, x: Array) -> Logits:
        """See ``Inspectable``."""
        return self._run_on(x, self.graph.head_graph())

    @plainly
    def _run_on(self, x: Array, graph: Graph) -> Array:
        """Run a graph on given rows, one row at a time."""
        given_rows, *ops = graph.ops
        none = np.empty(0, np.int32)
        empty = Batch(none, none, none, np.empty((0, 0), np.int32), none)
        return np.concatenate(
            [self._run(ops, empty, {given_rows.out.name: row[None]}) for row in x]
        )

    @plainly
    def _run(
        self, ops: Sequence[Op], batch: Batch, inputs: Mapping[str, Array] = MappingProxyType({})
    ) -> Array:
        """Return the last op's result; inputs: the tensors that no op computes, by name."""
        _check_limits(batch)
        _check_window_ends(batch)
        run = BatchRun(self.weights, batch, self._stored, self._states, self._note)
        values = dict(inputs)
        if isinstance(ops[0], GivenRows) and batch.given is not None:
            values[ops[0].out.name], ops = batch.given, ops[1:]
        last_use = {name: op for op in ops for name in op.inputs}
        for op in ops:
            result = op.compute(run, *(values[name] for name in op.inputs))
            values[op.out.name] = result
            for edit in (e for e in self._edits if e.tensor == op.out.name):
                changed = edit.change(result[edit.rows, edit.columns])
                result[edit.rows, edit.columns] = changed
            for name in op.inputs:
                if last_use[name] is op:
                    values.pop(name, None)  # if all layers' were kept, a large batch would not fit
            self._note(op.out.name, result)
        return result

    def _note(self, name: str, value: Array) -> None:
        if name in self._note_names:
            self._notes[name] = value.copy()

    # -- keys, values, states and weights ------------------------------------------------------

    def keys_values(
        self, layer: int, table: Sequence[int], first: int, last: int
    ) -> tuple[Array, Array]:
        """See ``Inspectable``; the numbers are float32."""
        read = self._stored.read(np.array(table), layer, np.arange(first, last))
        keys, values = (part.transpose(1, 0, 2) for part in read)
        return keys, values

    def weight(self, name: str, first: int = 0, last: int | None = None) -> Array:
        """See ``Inspectable``."""
        whole = self.weights[name]
        if (order := self.graph.orders.get(name)) is not None:
            return reorder_columns(whole[first:last], self.weights[order])
        return (whole.reshape(-1, whole.shape[-1]) if whole.ndim > 1 else whole)[first:last]

    def as_read(self, name: str, x: Array) -> Array:  # noqa: ARG002
        """Return the activations unchanged: see ``Inspectable``."""
        return x

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """See ``Backend``."""
        self._stored.copy(pairs)

    def copy_windows(self, pairs: list[tuple[int, int]]) -> None:
        """See ``Backend``."""
        self._stored.copy_windows(pairs)

    def copy_states(self, pairs: list[tuple[int, int]]) -> None:
        """See ``Backend``."""
        self._states.copy(pairs)

    def read_state(self, slot: int) -> Bytes | None:
        """See ``Backend``."""
        return self._states.memory(slot, new=False)

    def write_state(self, slot: int, state: Bytes) -> None:
        """See ``Backend``."""
        stored = self._states.memory(slot, new=True)
        assert stored is not None
        put([state], [stored])

    def read_block(self, block_id: int) -> list[Bytes]:
        """See ``Backend``."""
        return self._stored.memory(block_id, windows=False)

    def write_block(self, block_id: int, pieces: Sequence[Bytes]) -> None:
        """See ``Backend``."""
        windows = sum(map(len, pieces)) == self.kv.bytes_per_token * self.kv.block_tokens
        put(pieces, self._stored.memory(block_id, windows=windows))


def _check_window_ends(batch: Batch) -> None:
    """Raise ValueError if a window ends behind its row, or before its sequence's first one."""
    if batch.window_ends is None:
        return
    firsts = np.searchsorted(batch.sequences, batch.sequences)  # rows of a sequence are neighbours
    ends = batch.window_ends
    if (ends > batch.positions).any() or (ends < ends[firsts]).any():
        raise ValueError(
            "batch: a window ends behind its row, or before that of its sequence's first row"
        )


def _check_limits(batch: Batch) -> None:
    """Raise ValueError if a row's limit lies beyond the blocks of its table."""
    if batch.limits is None:
        return
    if len(batch.limits) != len(batch.positions):
        raise ValueError("batch: tokens, positions, sequences and limits differ in length")
    for s, limit in zip(batch.sequences, batch.limits, strict=True):
        blocks = batch.block_tables[s, : limit // KV_BLOCK + 1]
        if limit < 0 or len(blocks) <= limit // KV_BLOCK or (blocks < 0).any():
            raise ValueError("batch: a limit is outside its block table")
