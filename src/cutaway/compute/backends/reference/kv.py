"""Keys and values of the reference backend: float32, in KV blocks.

Knows where the numbers of a position are. In layers with a window a block has a place only from
when a row is first stored in it until it is freed.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cutaway.compute.backends.base import Batch, Bytes
from cutaway.compute.backends.kv_formats import as_stored, keys_and_values
from cutaway.compute.backends.layout import KV_BLOCK, KVLayout, kv_groups, state_group
from cutaway.compute.model import Graph, Op

Array = NDArray[np.float32]
Ints = NDArray[np.integer[Any]]


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

    def write(self, layer: int, blocks: Ints, at: Ints, *keys_values: Array) -> None:
        """Store keys, and values, (M, kv_heads · head_dim): in blocks (M,), at (M,) in each."""
        one = self._layers[layer]
        places = self._places[blocks] if one.has_window else blocks
        for stored, format, numbers in zip(one.stored, self._formats, keys_values, strict=False):
            shape = (len(numbers), *stored.shape[2:])
            stored[places, at] = as_stored(format, numbers.reshape(shape))

    def read(self, layer: int, table: Ints, positions: Ints) -> tuple[Array, Array]:
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
