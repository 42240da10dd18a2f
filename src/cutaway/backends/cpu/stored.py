"""What is stored, as plain numbers: keys and values out of KV blocks, rows of packed matrices.

Knows where in a block's memory a layer's numbers lie (native/attend.cpp, native/kv.h), and how
activations are rounded (native/elementwise.inc). Refuses to know what is computed with them.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from cutaway import _native
from cutaway.backends.base import KV_BLOCK
from cutaway.backends.cpu.compile import Slice, Vector
from cutaway.model import Graph

Halfs = NDArray[np.float16]

_LANES = 16  # a value's numbers are filled up to a multiple of these
_CLAIM = 64  # bytes, to a multiple of which what a layer has in a block is filled up
_QUANT = 32  # activations that share a scale
_TINY = np.float32(1e-36)  # below which all of them are 0


class StoredKV:
    """Where each layer's keys and values are in a KV block."""

    def __init__(self, graph: Graph, plan: _native.Plan) -> None:
        self._plan = plan
        self._layers: dict[int, tuple[bool, int, int, int]] = {}  # windowed, at, kv_heads, head_dim
        ends, self._has_whole = {False: 0, True: 0}, False
        for attrs in (op.attrs for op in graph.ops if op.kind == "attend"):
            windowed, shape = attrs["window"] > 0, (attrs["kv_heads"], attrs["head_dim"])
            self._layers[attrs["layer"]] = windowed, ends[windowed], *shape
            ends[windowed] += _claim(_key_bytes(*shape)) + _claim(_value_bytes(*shape))
            self._has_whole |= not windowed

    def read(self, layer: int, table: Sequence[int], first: int, last: int) -> tuple[Halfs, Halfs]:
        """See ``Backend.keys_values``."""
        windowed, at, heads, dim = self._layers[layer]
        begin = first // KV_BLOCK
        ids = [table[i] for i in range(begin, -(-last // KV_BLOCK))]
        keys = np.empty((heads, len(ids), KV_BLOCK, dim), np.float16)
        values = np.empty_like(keys)
        for i, block_id in enumerate(ids):
            halfs = self._block(block_id, windowed=windowed).view(np.float16)
            k = halfs[at // 2 :][: heads * dim * KV_BLOCK]
            keys[:, i] = k.reshape(heads, dim, KV_BLOCK).transpose(0, 2, 1)
            v = halfs[(at + _claim(_key_bytes(heads, dim))) // 2 :]
            stride = -(-dim // _LANES) * _LANES
            values[:, i] = v[: heads * KV_BLOCK * stride].reshape(heads, KV_BLOCK, stride)[
                ..., :dim
            ]
        part = slice(first - begin * KV_BLOCK, last - begin * KV_BLOCK)
        flat = (heads, len(ids) * KV_BLOCK, dim)
        return keys.reshape(flat)[:, part], values.reshape(flat)[:, part]

    def _block(self, block_id: int, *, windowed: bool) -> NDArray[np.uint8]:
        pieces: list[NDArray[np.uint8]] = self._plan.block_memory(block_id, False)
        if not windowed:
            return pieces[0]
        if len(pieces) == self._has_whole:
            raise ValueError(f"KV block {block_id} was let go of")
        return pieces[-1]


def _key_bytes(heads: int, dim: int) -> int:
    return heads * dim * KV_BLOCK * 2


def _value_bytes(heads: int, dim: int) -> int:
    return _key_bytes(heads, -(-dim // _LANES) * _LANES)


def _claim(nbytes: int) -> int:
    return -(-nbytes // _CLAIM) * _CLAIM


class Weights:
    """Packed matrices by the rows that they hold, and vectors."""

    def __init__(
        self, matrices: Mapping[Slice, _native.Packed], vectors: Mapping[str, Vector]
    ) -> None:
        self._vectors, self._parts = vectors, dict[str, list[tuple[int, int, _native.Packed]]]()
        for (name, first, last), packed in matrices.items():
            self._parts.setdefault(name, []).append((first, last, packed))
        for parts in self._parts.values():
            parts.sort(key=lambda part: part[:2])

    def rows(self, name: str, first: int, last: int | None) -> Vector:
        """See ``Backend.weight``."""
        if name in self._vectors:
            return self._vectors[name][first:last]
        parts = self._parts[name]
        last = parts[-1][1] if last is None else last
        found = [
            packed.decode(max(first, a) - a, min(last, b) - a)
            for a, b, packed in parts
            if a < last and first < b
        ]
        return found[0] if len(found) == 1 else np.concatenate(found)

    def is_float(self, name: str) -> bool:
        """Whether a matrix reads activations as they are."""
        return bool(self._parts[name][0][2].is_float)


def rounded(x: Vector) -> Vector:
    """Activations as quantised matrices read them: every 32 are whole multiples of one step."""
    blocks = x.reshape(-1, _QUANT)
    peak = np.abs(blocks).max(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        inverse = np.where(peak > _TINY, np.float32(127) / peak, np.float32(0))
    steps: Vector = np.rint(blocks * inverse) * (peak / np.float32(127))
    return steps.reshape(x.shape)
