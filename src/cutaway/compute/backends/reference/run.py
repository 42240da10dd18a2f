"""What a run has in addition to the ops' inputs, in NumPy: batch, KV blocks, recurrent states.

Knows where the keys and values of a position lie, where each sequence of a batch begins, and which
states are stored. Does not know what an op computes. In layers with a window, a block has a place
from when a row is first stored in it until it is freed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cutaway.compute.backends.base import Batch, Bytes
from cutaway.compute.backends.layout import (
    DRAFT_STATES,
    KV_BLOCK,
    KVLayout,
    as_stored,
    keys_and_values,
    kv_groups,
    state_group,
    state_layout,
)
from cutaway.compute.model import Graph
from cutaway.compute.model.op import Array, TextRows
from cutaway.compute.model.ops.attention import Attend

# -- keys and values -------------------------------------------------------------------------------


Integers = NDArray[np.integer[Any]]


class _Layer(NamedTuple):
    """Keys and values of one layer, (blocks, KV_BLOCK, kv_heads, numbers of a head) each.

    stored: the keys and the values, or only the keys if a value is a part of its key
    """

    keys: Array
    values: Array
    stored: tuple[Array, ...]
    has_window: bool

    @classmethod
    def from_op(cls, op: Attend, count: int) -> "_Layer":
        # np.empty takes address space only; pages come when a block is first written.
        shape = (count, KV_BLOCK, op.heads.kv, op.heads.dim)
        keys, has_window = np.empty(shape, np.float32), op.mask.window > 0
        if op.values_from is not None:
            return cls(keys, keys[..., op.values_from :], (keys,), has_window)
        values = np.empty((*shape[:-1], op.value_dim), np.float32)
        return cls(keys, values, (keys, values), has_window)


class KVBlocks:
    """The keys and values of all layers, by the ids of KV blocks."""

    def __init__(self, graph: Graph, count: int, kv: str) -> None:
        """count: how many blocks there are; kv: what ``check_kv`` returned."""
        self._formats = keys_and_values(kv)
        layers = self._layers = {op.layer: _Layer.from_op(op, count) for op in graph.stores}
        self._whole = [x for layer in layers.values() if not layer.has_window for x in layer.stored]
        self._windowed = [x for layer in layers.values() if layer.has_window for x in layer.stored]
        for op in graph.attends:
            if op.reads is not None:
                layers[op.layer] = layers[op.reads]
        self._places = np.full(count, -1, np.int32)  # each block's place in _windowed; -1: none
        self._free = [*reversed(range(count))]

    def take(self, blocks: Iterable[int]) -> None:
        """Give each of these blocks a place in the layers with a window, if it has none."""
        for block in blocks:
            if self._places[block] < 0:
                self._places[block] = self._free.pop()

    def write(self, layer: int, blocks: Integers, at: Integers, *keys_values: Array) -> None:
        """Store keys and values of rows: a row's at place ``at`` of its block; both are (M,).

        keys_values: keys, and values unless these are parts of keys: (M, kv_heads · n) each
        """
        layer_kv = self._layers[layer]
        places = self._places[blocks] if layer_kv.has_window else blocks
        for stored, format, numbers in zip(
            layer_kv.stored, self._formats, keys_values, strict=False
        ):
            shape = (len(numbers), *stored.shape[2:])
            stored[places, at] = as_stored(format, numbers.reshape(shape))

    def read(self, table: Integers, layer: int, positions: Integers) -> tuple[Array, Array]:
        """Return keys and values (T, kv_heads, head_dim) at positions (T,) of one block table.

        ValueError if a block was freed.
        """
        stored = self._layers[layer]
        blocks = (self._places[table] if stored.has_window else table)[positions // KV_BLOCK]
        if (blocks < 0).any():
            raise ValueError("a row sees a KV block that was freed")
        at = positions % KV_BLOCK
        return stored.keys[blocks, at], stored.values[blocks, at]

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """See ``Backend.copy_blocks``."""
        sources, targets = zip(*pairs, strict=True)
        ids, count = {*sources, *targets}, len(self._places)
        if min(ids) < 0 or max(ids) >= count or len({*targets} - {*sources}) < len(pairs):
            raise ValueError(f"KV blocks cannot be copied by these pairs: {pairs}")
        for blocks in self._whole:
            blocks[[*targets]] = blocks[[*sources]]
        self.copy_windows(pairs)

    def copy_windows(self, pairs: Sequence[tuple[int, int]]) -> None:
        """See ``Backend``."""
        last = len(self._places) - 1
        if not all(0 <= source <= last and -1 <= target <= last for source, target in pairs):
            raise ValueError(f"KV blocks cannot be copied by these pairs: {pairs}")
        for source, target in pairs:
            if target < 0 or self._places[source] < 0:
                self._free_block(target if target >= 0 else source)
                continue
            self.take([target])
            for blocks in self._windowed:
                blocks[self._places[target]] = blocks[self._places[source]]

    def memory(self, block: int, *, windows: bool) -> list[Bytes]:
        """Return a block's memory, in pieces; windows: give the block a place if it has none."""
        if not 0 <= block < len(self._places):
            raise ValueError(f"{block} names no KV block")
        if windows:
            self.take([block])
        place = int(self._places[block])
        pieces = [blocks[block] for blocks in self._whole]
        pieces += [blocks[place] for blocks in self._windowed if place >= 0]
        return [piece.reshape(-1).view(np.uint8) for piece in pieces]

    def _free_block(self, block: int) -> None:
        if self._places[block] >= 0:
            self._free.append(int(self._places[block]))
            self._places[block] = -1


def kv_layout(graph: Graph) -> KVLayout:
    """Return the layout of keys and values in float32."""
    groups = kv_groups(graph, "F32", lambda heads, keys, values: heads * (keys + values) * 4)
    return KVLayout(KV_BLOCK, groups, state_group(graph))


# -- recurrent states ------------------------------------------------------------------------------


class StateSlots:
    """The states of all layers, by slot; a slot's state is one array with a part for each op."""

    def __init__(self, graph: Graph, kv_blocks: int) -> None:
        """kv_blocks: how many KV blocks there are, since each has a slot."""
        self._count, self._slots = kv_blocks + DRAFT_STATES, dict[int, Array]()
        self._places, self._size = state_layout(graph)

    def read(self, name: str, slot: int) -> Array:
        """Return a copy of an op's state in a slot. ValueError if the slot has no state."""
        if slot not in self._slots:
            raise ValueError("a sequence goes on from a state that was freed")
        return self._slots[slot][self._places[name]].copy()

    def store(self, name: str, slot: int, state: Array) -> None:
        """Store an op's state; name: the name of the op's result."""
        self._take(slot)[self._places[name]] = state.reshape(-1)

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """See ``Backend.copy_states``."""
        if not all(0 <= a < self._count and -1 <= b < self._count for a, b in pairs):
            raise ValueError(f"states cannot be copied by these pairs: {pairs}")
        for source, target in pairs:
            if target < 0 or source not in self._slots:
                self._slots.pop(target if target >= 0 else source, None)
            else:
                self._take(target)[:] = self._slots[source]

    def memory(self, slot: int, *, new: bool) -> Bytes | None:
        """Return the memory of a slot's state, or None; new: create it if there is none."""
        if not 0 <= slot < self._count:
            raise ValueError(f"{slot} names no state")
        if not self._size or (slot not in self._slots and not new):
            return None
        return self._take(slot).view(np.uint8)

    def _take(self, slot: int) -> Array:
        if not 0 <= slot < self._count:
            raise ValueError(f"{slot} names no state")
        return self._slots.setdefault(slot, np.zeros(self._size, np.float32))


# -- a batch ---------------------------------------------------------------------------------------


class BatchRun:
    """See ``Run``.

    weights  arrays by tensor name; a matrix is (out, in)
    kv       keys and values of earlier batches, and of this batch as soon as they are computed
    states   recurrent states after earlier batches, and in this batch as soon as they are computed
    note     is called with the name and the numbers of each tensor that is no op's result: weights
             of attention, and inputs of experts' down matrices
    """

    def __init__(
        self, weights: Mapping[str, Array], batch: Batch, kv: KVBlocks, states: StateSlots,
        note: Callable[[str, Array], None],
    ) -> None:  # fmt: skip
        """Keep the arguments, and give the batch's blocks places in ``kv``."""
        self._weights, self._batch, self._kv, self._states = weights, batch, kv, states
        self.note, self.tokens, self.positions = note, batch.tokens, batch.positions
        self.types = np.zeros_like(batch.tokens) if batch.types is None else batch.types
        self.logit_rows = batch.logit_rows
        self._blocks = batch.block_tables[batch.sequences, batch.positions // KV_BLOCK]
        kv.take(np.unique(self._blocks))

    def weight(self, name: str) -> Array:
        """See ``Run``."""
        return self._weights[name]

    def store(self, layer: int, *keys_values: Array) -> None:
        """See ``Run``."""
        self._kv.write(layer, self._blocks, self.positions % KV_BLOCK, *keys_values)

    def texts(self) -> Iterator[TextRows]:
        """See ``Run``."""
        batch, positions = self._batch, self.positions
        limits = positions if batch.limits is None else batch.limits
        ends = positions if batch.window_ends is None else batch.window_ends
        for s, table in enumerate(batch.block_tables):
            rows = batch.sequences == s
            hidden = None if batch.hidden_from is None else batch.hidden_from[s]
            read = partial(self._kv.read, table)
            yield TextRows(rows, positions[rows], limits[rows], ends[rows], hidden, read)

    def states(self, name: str, shape: tuple[int, ...]) -> Iterator[tuple[slice, Array]]:
        """See ``Run``. ValueError if a sequence continues from a state that was freed."""
        for rows in _sequence_rows(self._batch):
            position = int(self.positions[rows.start]) - 1
            if position < 0:
                yield rows, np.zeros(shape, np.float32)
                continue
            table = self._batch.block_tables[self._batch.sequences[rows.start]]
            state = self._states.read(name, int(table[position // KV_BLOCK]))
            yield rows, state.reshape(shape)

    def keep(self, name: str, row: int, state: Array) -> None:
        """See ``Run``."""
        if row in self._stored_states:
            self._states.store(name, self._stored_states[row], state)

    @cached_property
    def _stored_states(self) -> dict[int, int]:
        """Row -> the slot for the state after it; by default, only for each sequence's last row."""
        if self._batch.states is not None:
            return dict(self._batch.states.tolist())
        last = [rows.stop - 1 for rows in _sequence_rows(self._batch)]
        return {row: int(self._blocks[row]) for row in last}


def _sequence_rows(batch: Batch) -> Iterator[slice]:
    """Yield the rows of each sequence; the rows of one are neighbours."""
    begins = np.flatnonzero(np.diff(batch.sequences, prepend=-1)).tolist()
    for first, last in pairwise([*begins, len(batch.sequences)]):
        yield slice(first, last)


# -- attention within one text ---------------------------------------------------------------------


class Attended(NamedTuple):
    """An attention's output (tokens, width), and its weights (heads, tokens, n)."""

    op: Attend
    output: Array
    weights: Array


def attention_of(
    graph: Graph, weights: Mapping[str, Array], batch: Batch, tensors: Mapping[str, Array]
) -> Iterator[Attended]:
    """Compute each attention of a graph, in the graph's order.

    weights: the weights that these ops read, by name
    batch: has all rows of one text; nothing is stored in its blocks
    tensors: the inputs of these ops by name, (tokens, width) each
    """
    blocks, notes = -(-len(batch.tokens) // KV_BLOCK), dict[str, Array]()
    batch = batch._replace(block_tables=np.arange(blocks, dtype=np.int32)[None])
    stored, states = KVBlocks(graph, blocks, "f16"), StateSlots(graph, blocks)
    run = BatchRun(weights, batch, stored, states, notes.__setitem__)
    for op in graph.attends:
        output = op.compute(run, *(tensors[name] for name in op.inputs))
        shares = notes.pop(f"{op.out.name}.weights")
        yield Attended(op, output, shares.reshape(op.heads.queries, len(output), -1))
