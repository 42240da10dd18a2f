"""Reads what the native code stores: keys and values of KV blocks, rows of packed matrices.

Knows where a layer's numbers lie in a block's memory (native/attend.cpp, native/kv.h), and how
activations are rounded (native/elementwise.inc).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway.base import _native
from cutaway.compute.backends.base import KV_BLOCK
from cutaway.compute.backends.cpu.compile import Slice, Vector
from cutaway.compute.model import Graph

Numbers = NDArray[Any]

_LANES = 16  # the numbers of a value are padded to a multiple of this
_CLAIM = 64  # a layer's bytes in a block are padded to a multiple of this
_QUANT = 32  # activations, or codes, that share a scale
_TINY = np.float32(1e-36)  # activations all smaller than this are rounded to 0


class StoredKV:
    """The place of each layer's keys and values in a KV block, and their format."""

    def __init__(self, graph: Graph, plan: _native.Plan, format: str) -> None:
        """format: "F16", or "Q8_0": codes times scales."""
        self._plan, self._codes = plan, format == "Q8_0"
        self._layers: dict[int, tuple[bool, int, int, int]] = {}  # windowed, at, kv_heads, head_dim
        ends, self._has_whole = {False: 0, True: 0}, False
        for attrs in (op.attrs for op in graph.ops if op.kind == "attend"):
            windowed, (heads, dim) = attrs["window"] > 0, (attrs["kv_heads"], attrs["head_dim"])
            self._layers[attrs["layer"]] = windowed, ends[windowed], heads, dim
            ends[windowed] += _claim(heads * self._head_bytes(dim))
            ends[windowed] += _claim(heads * self._head_bytes(_stride(dim)))
            self._has_whole |= not windowed

    def read(
        self, layer: int, table: Sequence[int], first: int, last: int
    ) -> tuple[Numbers, Numbers]:
        """See ``Inspectable.keys_values``."""
        windowed, at, heads, dim = self._layers[layer]
        of_keys, of_values = heads * self._head_bytes(dim), heads * self._head_bytes(_stride(dim))
        begin, keys, values = first // KV_BLOCK, [], []
        for i in range(begin, -(-last // KV_BLOCK)):
            memory = self._block(table[i], windowed=windowed)[at:]
            keys.append(self._keys(memory[:of_keys].reshape(heads, -1), dim))
            memory = memory[_claim(of_keys) :]
            values.append(self._values(memory[:of_values].reshape(heads, -1), dim))
        part = slice(first - begin * KV_BLOCK, last - begin * KV_BLOCK)
        return _joined(keys)[:, part], _joined(values)[:, part]

    def _head_bytes(self, dim: int) -> int:
        return KV_BLOCK * (dim + 2 * -(-dim // _QUANT) if self._codes else 2 * dim)

    def _keys(self, memory: NDArray[np.uint8], dim: int) -> Numbers:
        """(heads, KV_BLOCK, dim); in memory the tokens of a dimension are neighbours."""
        if not self._codes:
            return memory.view(np.float16).reshape(-1, dim, KV_BLOCK).swapaxes(1, 2)
        codes, scales = _halved(memory, dim * KV_BLOCK)
        steps = np.repeat(scales.reshape(len(memory), -1, KV_BLOCK), _QUANT, axis=1)[:, :dim]
        made: Numbers = (codes.reshape(-1, dim, KV_BLOCK) * steps).swapaxes(1, 2)
        return made

    def _values(self, memory: NDArray[np.uint8], dim: int) -> Numbers:
        """(heads, KV_BLOCK, dim); in memory the dimensions of a token are neighbours."""
        stride = _stride(dim)
        if not self._codes:
            return memory.view(np.float16).reshape(-1, KV_BLOCK, stride)[..., :dim]
        codes, scales = _halved(memory, stride * KV_BLOCK)
        steps = np.repeat(scales.reshape(len(memory), KV_BLOCK, -1), _QUANT, axis=2)[..., :dim]
        made: Numbers = codes.reshape(-1, KV_BLOCK, stride)[..., :dim] * steps
        return made

    def _block(self, block_id: int, *, windowed: bool) -> NDArray[np.uint8]:
        pieces: list[NDArray[np.uint8]] = self._plan.block_memory(block_id, False)
        if not windowed:
            return pieces[0]
        if len(pieces) == self._has_whole:
            raise ValueError(f"KV block {block_id} was freed")
        return pieces[-1]


def _halved(memory: NDArray[np.uint8], codes: int) -> tuple[Numbers, Numbers]:
    """Each head's codes, and the scales after them as float32."""
    scales = np.ascontiguousarray(memory[:, codes:]).view(np.float16)
    return memory[:, :codes].view(np.int8), scales.astype(np.float32)


def _joined(blocks: list[Numbers]) -> Numbers:
    """A copy of all blocks: (heads, tokens, dim)."""
    return np.ascontiguousarray(np.concatenate(blocks, axis=1))


def _stride(dim: int) -> int:
    return -(-dim // _LANES) * _LANES


def _claim(nbytes: int) -> int:
    return -(-nbytes // _CLAIM) * _CLAIM


class Weights:
    """Packed matrices and vectors, by name."""

    def __init__(
        self, matrices: Mapping[Slice, _native.Packed], vectors: Mapping[str, Vector]
    ) -> None:
        self._vectors, self._parts = vectors, dict[str, list[tuple[int, int, _native.Packed]]]()
        for (name, first, last), packed in matrices.items():
            self._parts.setdefault(name, []).append((first, last, packed))
        for parts in self._parts.values():
            parts.sort(key=lambda part: part[:2])

    def rows(self, name: str, first: int, last: int | None) -> Vector:
        """See ``Inspectable.weight``."""
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
        """Whether a matrix reads activations unrounded."""
        return bool(self._parts[name][0][2].is_float)


def rounded(x: Vector) -> Vector:
    """Activations as quantised matrices read them: every 32 are whole multiples of one step."""
    blocks = x.reshape(-1, _QUANT)
    peak = np.abs(blocks).max(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        inverse = np.where(peak > _TINY, np.float32(127) / peak, np.float32(0))
    steps: Vector = np.rint(blocks * inverse) * (peak / np.float32(127))
    return steps.reshape(x.shape)
