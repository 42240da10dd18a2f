"""What the reference backend keeps, in float32: keys and values in KV blocks, states in slots.

Knows where the numbers of a position are, where each sequence of a batch begins and which states
are stored; not how they change. In layers with a window a block has a place only from when a row is
first stored in it until it is freed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cutaway.compute.backends.base import Batch, Bytes, Ints
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
from cutaway.compute.model import Graph, Op

# -- keys and values -------------------------------------------------------------------------------


Array = NDArray[np.float32]
Integers = NDArray[np.integer[Any]]


class _Layer(NamedTuple):
    """Keys and values of one layer, (blocks, KV_BLOCK, kv_heads, head_dim) each.

    stored: of both, or of keys alone, of which values are numbers
    """

    keys: Array
    values: Array
    stored: tuple[Array, ...]
    has_window: bool

    @classmethod
    def of(cls, op: Op, count: int) -> "_Layer":
        # np.empty takes address space only; pages come when a block is first written.
        shape = (count, KV_BLOCK, op.attrs["kv_heads"], op.attrs["head_dim"])
        keys, has_window = np.empty(shape, np.float32), op.attrs["window"] > 0
        if (first := op.attrs.get("values_from")) is not None:
            return cls(keys, keys[..., first:], (keys,), has_window)
        values = np.empty(shape, np.float32)
        return cls(keys, values, (keys, values), has_window)


class KVBlocks:
    """The keys and values of all layers, by the ids of KV blocks."""

    def __init__(self, graph: Graph, count: int, kv: str) -> None:
        """count: how many blocks there are; kv: as ``check_kv`` gave it, codes round numbers."""
        self._formats = keys_and_values(kv)
        layers = self._layers = {op.attrs["layer"]: _Layer.of(op, count) for op in graph.stores}
        self._whole = [x for one in layers.values() if not one.has_window for x in one.stored]
        self._windowed = [x for one in layers.values() if one.has_window for x in one.stored]
        for op in graph.ops:
            if op.kind == "attend" and "reads" in op.attrs:
                layers[op.attrs["layer"]] = layers[op.attrs["reads"]]
        self._places = np.full(count, -1, np.int32)  # of a block in _windowed; -1: it has none
        self._free = [*reversed(range(count))]

    def take(self, blocks: Iterable[int]) -> None:
        """Give blocks that lack one a place in the layers with a window."""
        for block in blocks:
            if self._places[block] < 0:
                self._places[block] = self._free.pop()

    def write(self, layer: int, blocks: Integers, at: Integers, *keys_values: Array) -> None:
        """Store keys, and values, (M, kv_heads · head_dim): in blocks (M,), at (M,) in each."""
        one = self._layers[layer]
        places = self._places[blocks] if one.has_window else blocks
        for stored, format, numbers in zip(one.stored, self._formats, keys_values, strict=False):
            shape = (len(numbers), *stored.shape[2:])
            stored[places, at] = as_stored(format, numbers.reshape(shape))

    def read(self, layer: int, table: Integers, positions: Integers) -> tuple[Array, Array]:
        """Keys and values (T, kv_heads, head_dim) of positions (T,) of one block table.

        ValueError where a block was freed.
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
        """See ``Backend.block_memory``."""
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
    """All layers in float32."""
    groups = kv_groups(graph, "F32", lambda heads, dim, count: count * heads * dim * 4)
    return KVLayout(KV_BLOCK, groups, state_group(graph))


def blocks_of(batch: Batch) -> NDArray[np.int32]:
    """The KV block that each row is stored in, (M,)."""
    return batch.block_tables[batch.sequences, batch.positions // KV_BLOCK]


# -- recurrent states ------------------------------------------------------------------------------


class StateSlots:
    """The states of all layers, by slot: each an array, in which every op has its part."""

    def __init__(self, graph: Graph, kv_blocks: int) -> None:
        """kv_blocks: how many there are, each with a slot."""
        self._count, self._slots = kv_blocks + DRAFT_STATES, dict[int, Array]()
        places, self._size = state_layout(graph)
        self._parts: dict[tuple[str, int], tuple[slice, tuple[int, ...]]] = {
            _key(op): (places[op.out.name], op.attrs["state"])
            for op in graph.ops
            if op.out.name in places
        }

    def begin(self, op: Op, batch: Batch) -> Iterator[tuple[slice, Array]]:
        """Each sequence's rows, and the op's state before them, to be changed at will.

        ValueError where it goes on from a state that is not there.
        """
        place, shape = self._parts[_key(op)]
        for rows in sequence_rows(batch):
            position = int(batch.positions[rows.start]) - 1
            if position < 0:
                yield rows, np.zeros(shape, np.float32)
                continue
            table = batch.block_tables[batch.sequences[rows.start]]
            slot = int(table[position // KV_BLOCK])
            if slot not in self._slots:
                raise ValueError("a sequence goes on from a state that was freed")
            yield rows, self._slots[slot][place].reshape(shape).copy()

    def store(self, op: Op, slot: int, state: Array) -> None:
        """Store the op's state."""
        place, _ = self._parts[_key(op)]
        self._take(slot)[place] = state.reshape(-1)

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
        """See ``Backend.state_memory``."""
        if not 0 <= slot < self._count:
            raise ValueError(f"{slot} names no state")
        if not self._size or (slot not in self._slots and not new):
            return None
        return self._take(slot).view(np.uint8)

    def _take(self, slot: int) -> Array:
        if not 0 <= slot < self._count:
            raise ValueError(f"{slot} names no state")
        return self._slots.setdefault(slot, np.zeros(self._size, np.float32))


def wanted_states(batch: Batch, rows: slice) -> dict[int, int]:
    """Of a sequence's rows, counted from its first: those whose states are stored, and where."""
    all_rows = _stored_states(batch).tolist()
    return {row - rows.start: slot for row, slot in all_rows if rows.start <= row < rows.stop}


def sequence_rows(batch: Batch) -> Iterator[slice]:
    """The rows of each sequence, which are neighbours."""
    begins = np.flatnonzero(np.diff(batch.sequences, prepend=-1)).tolist()
    for first, last in pairwise([*begins, len(batch.sequences)]):
        yield slice(first, last)


def _stored_states(batch: Batch) -> Ints:
    """``Batch.states``, and what it stands for where it is None: (K, 2)."""
    if batch.states is not None:
        return batch.states
    last = np.array([rows.stop - 1 for rows in sequence_rows(batch)], np.int32)
    blocks = batch.block_tables[batch.sequences[last], batch.positions[last] // KV_BLOCK]
    return np.stack([last, blocks], axis=1)


def _key(op: Op) -> tuple[str, int]:
    return op.kind, op.attrs["layer"]


# -- what ops read beside their inputs -------------------------------------------------------------


class Run(NamedTuple):
    """What ops read beside their inputs.

    weights  by tensor name, matrices as (out, in)
    batch    M rows
    kv       keys and values of earlier batches, and of this one as soon as they are computed
    states   recurrent states, likewise
    note     takes the name and the numbers of a tensor that is no op's result: attention's weights,
             what the last matrices of experts read
    """

    weights: Mapping[str, Array]
    batch: Batch
    kv: KVBlocks
    states: StateSlots
    note: Callable[[str, Array], None]

    def weight(self, op: Op, role: str = "weight") -> Array:
        """The tensor that an op has in a role."""
        return self.weights[op.weights[role]]
