"""Recurrent states of the reference backend: float32, in slots.

Knows where each sequence of a batch begins and which states are stored; not how they change.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from cutaway.compute.backends.base import Batch, Bytes, Ints
from cutaway.compute.backends.layout import DRAFT_STATES, KV_BLOCK
from cutaway.compute.model import Graph, Op
from cutaway.compute.model.state_layout import state_layout

Array = NDArray[np.float32]


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
