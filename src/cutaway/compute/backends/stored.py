"""Reads keys and values out of KV blocks, which the cpu and gpu backends lay out alike.

Knows where a layer's numbers begin in a block; native/kv_format.h knows how they lie there.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cutaway.base import _native
from cutaway.compute.backends.layout import KV_BLOCK
from cutaway.compute.calls import Floats
from cutaway.compute.model import Graph

Bytes = NDArray[np.uint8]
ReadBlock = Callable[[int], list[Bytes]]


class _Place(NamedTuple):
    """Where a layer's keys and values lie in a KV block.

    windowed     whether they are in the block's part for layers with a window
    keys         where in this part the layer's keys begin, in bytes; values: where its values do
    values_from  the index in a key at which its value begins; None: values are stored separately
    """

    windowed: bool
    keys: int
    values: int
    kv_heads: int
    key_dim: int
    value_dim: int
    values_from: int | None


class StoredKV:
    """The place of each layer's keys and values in a KV block."""

    def __init__(self, graph: Graph, read_block: ReadBlock, kv: str) -> None:
        """read_block: the method of ``Backend``; kv: what ``check_kv`` returned."""
        self._read_block, self._kv = read_block, kv
        self._layers: dict[int, _Place] = {}
        ends, self._has_whole = {False: 0, True: 0}, False
        for op in graph.stores:
            windowed, (_, heads, dim), first = op.mask.window > 0, op.heads, op.values_from
            keys = ends[windowed]
            values = keys + _native.kv_block_bytes(heads, dim, 0, kv)
            separate = op.value_dim if first is None else 0
            self._layers[op.layer] = _Place(windowed, keys, values, heads, dim, op.value_dim, first)
            ends[windowed] += _native.kv_block_bytes(heads, dim, separate, kv)
            self._has_whole |= not windowed
        for op in graph.attends:
            if op.reads is not None:
                self._layers[op.layer] = self._layers[op.reads]

    def read(
        self, layer: int, table: Sequence[int], first: int, last: int
    ) -> tuple[Floats, Floats]:
        """See ``Inspectable.keys_values``."""
        place = self._layers[layer]
        begin, end = first // KV_BLOCK, -(-last // KV_BLOCK)
        blocks = [self._block(table[i], windowed=place.windowed) for i in range(begin, end)]
        part = slice(first - begin * KV_BLOCK, last - begin * KV_BLOCK)
        keys = self._read(blocks, place, values=False)[:, part]
        if place.values_from is not None:
            return keys, np.ascontiguousarray(keys[..., place.values_from :])
        return keys, self._read(blocks, place, values=True)[:, part]

    def _read(self, blocks: Sequence[Bytes], place: _Place, *, values: bool) -> Floats:
        """Return the keys or values of whole blocks, (kv_heads, tokens, numbers of a head)."""
        at, shape = place.values if values else place.keys, (place.kv_heads, KV_BLOCK, -1)
        sizes = place.kv_heads, place.value_dim if values else place.key_dim
        read = [_native.read_kv(block[at:], self._kv, values, *sizes) for block in blocks]
        return np.concatenate([numbers.reshape(shape) for numbers in read], axis=1)

    def _block(self, block_id: int, *, windowed: bool) -> Bytes:
        pieces = self._read_block(block_id)
        if not windowed:
            return pieces[0]
        if len(pieces) == self._has_whole:
            raise ValueError(f"KV block {block_id} was freed")
        return pieces[-1]
