"""Reads keys and values out of the bytes of KV blocks, which all backends lay out alike.

Knows where a layer's numbers lie in a block's memory (native/kv_format.h, native/kv.h), and how
activations are rounded (native/elementwise.inc).
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cutaway.compute.backends.layout import KV_BLOCK, PER_SCALE, Coded, keys_and_values
from cutaway.compute.calls import Floats
from cutaway.compute.model import Graph

Numbers = NDArray[Any]
ReadBlock = Callable[[int], list[NDArray[np.uint8]]]

_LANES = 16  # the numbers of a value are padded to a multiple of this
_CLAIM = 64  # a layer's bytes in a block are padded to a multiple of this
_QUANT = 32  # activations that share a scale
_TINY = np.float32(1e-36)  # activations all smaller than this are rounded to 0


class _Place(NamedTuple):
    """Where a layer's keys and values lie in a KV block.

    windowed     whether they are in the part for layers with a window
    at           their first byte in that part
    values_from  the number of a key at which its value begins; None: values are stored separately
    """

    windowed: bool
    at: int
    kv_heads: int
    head_dim: int
    values_from: int | None


class StoredKV:
    """The place of each layer's keys and values in a KV block, and their formats."""

    def __init__(self, graph: Graph, read_block: ReadBlock, kv: str) -> None:
        """read_block: see ``Backend``; kv: as ``check_kv`` returned it."""
        self._read_block, self._formats = read_block, keys_and_values(kv)
        self._layers: dict[int, _Place] = {}
        ends, self._has_whole = {False: 0, True: 0}, False
        for op in graph.stores:
            windowed, (_, heads, dim), first = op.mask.window > 0, op.heads, op.values_from
            self._layers[op.layer] = _Place(windowed, ends[windowed], heads, dim, first)
            parts = self._heads(dim) if first is None else self._heads(dim)[:1]
            ends[windowed] += sum(_claim(heads * head.bytes) for head in parts)
            self._has_whole |= not windowed
        for op in graph.attends:
            if op.reads is not None:
                self._layers[op.layer] = self._layers[op.reads]

    def read(
        self, layer: int, table: Sequence[int], first: int, last: int
    ) -> tuple[Numbers, Numbers]:
        """See ``Inspectable.keys_values``."""
        windowed, at, heads, dim, values_from = self._layers[layer]
        of_keys, of_values = self._heads(dim)
        begin, keys, values = first // KV_BLOCK, [], []
        for i in range(begin, -(-last // KV_BLOCK)):
            memory = self._block(table[i], windowed=windowed)[at:]
            keys.append(of_keys.read(memory, heads)[..., :dim])
            if values_from is not None:
                values.append(keys[-1][..., values_from:])
                continue
            memory = memory[_claim(heads * of_keys.bytes) :]
            values.append(of_values.read(memory, heads)[..., :dim])
        part = slice(first - begin * KV_BLOCK, last - begin * KV_BLOCK)
        return _join(keys)[:, part], _join(values)[:, part]

    def _heads(self, dim: int) -> "tuple[_Head, _Head]":
        keys, values = self._formats
        key_dim = dim if keys in ("f16", "q8_0") else _stride(dim)
        return _Head(keys, key_dim, is_key=True), _Head(values, _stride(dim), is_key=False)

    def _block(self, block_id: int, *, windowed: bool) -> NDArray[np.uint8]:
        pieces = self._read_block(block_id)
        if not windowed:
            return pieces[0]
        if len(pieces) == self._has_whole:
            raise ValueError(f"KV block {block_id} was freed")
        return pieces[-1]


class _Head:
    """The layout of one head in a KV block: codes, then fifth bits, scales and minima."""

    def __init__(self, format: str, dim: int, *, is_key: bool) -> None:
        self._format, self._dim, self._is_key = format, dim, is_key
        numbers, halves = KV_BLOCK * dim, KV_BLOCK * -(-dim // PER_SCALE) * 2
        self._sizes = {
            "f16": (2 * numbers, 0, 0, 0),
            "q8_0": (numbers, 0, halves, 0),
            "q5_1": (numbers // 2, numbers // 8, halves, halves),
            "q4_0": (numbers // 2, 0, halves, 0),
        }[format]
        self.bytes = sum(self._sizes)

    def read(self, memory: NDArray[np.uint8], heads: int) -> Numbers:
        """Decode numbers (heads, KV_BLOCK, dim) from the first bytes of a memory."""
        by_head = memory[: heads * self.bytes].reshape(heads, self.bytes)
        codes, fifth, scales, minima = np.split(by_head, np.cumsum(self._sizes)[:-1], axis=1)
        if self._format == "f16":
            return self._order_by_token(_view_as(np.float16, codes))
        steps = self._order_by_token(_view_as(np.float16, scales))
        if self._format == "q8_0":
            whole = self._order_by_token(codes.view(np.int8))
            return Coded(whole, steps, np.zeros(steps.shape, np.float32)).numbers()
        whole = self._order_by_token(self._unpack(codes, fifth))
        if self._format == "q4_0":
            return Coded(whole, steps, steps.astype(np.float32) * np.float32(-8)).numbers()
        return Coded(whole, steps, self._order_by_token(_view_as(np.float16, minima))).numbers()

    def _unpack(self, codes: NDArray[np.uint8], fifth: NDArray[np.uint8]) -> Numbers:
        """Unpack 4- or 5-bit codes, (heads, n) of a byte each, into the order of other formats."""
        heads, sixteens = len(codes), self._dim // _LANES
        if self._is_key:  # q, r, token; of the result q, h, r, token
            bytes_ = codes.reshape(heads, sixteens, 4, 2, KV_BLOCK)
            nibbles = np.stack([bytes_ & 15, bytes_ >> 4], axis=3)
            bits = fifth.reshape(heads, sixteens if fifth.size else 0, 2, KV_BLOCK)
            above = [[bits >> (2 * q + h) & 1 for h in range(2)] for q in range(4)]
            places = [2, 3, 0, 1, 4, 5]  # from q, h, heads, sixteens, r, token
        else:  # token, sixteen, byte; of the result token, sixteen, half, byte
            bytes_ = codes.reshape(heads, KV_BLOCK, sixteens, 8)
            nibbles = np.stack([bytes_ & 15, bytes_ >> 4], axis=3)
            bits = fifth.reshape(heads, KV_BLOCK, sixteens if fifth.size else 0, 2)
            above = [[bits[..., h] >> i & 1 for i in range(8)] for h in range(2)]
            places = [2, 3, 4, 0, 1]  # from half, byte, heads, token, sixteens
        if fifth.size:
            nibbles = nibbles | np.array(above).transpose(places) << 4
        return nibbles.reshape(heads, -1).astype(np.int8)

    def _order_by_token(self, numbers: Numbers) -> Numbers:
        """Return (heads, KV_BLOCK, n), from keys, stored as (heads, n, KV_BLOCK), or values."""
        if self._is_key:
            return numbers.reshape(len(numbers), -1, KV_BLOCK).swapaxes(1, 2)
        return numbers.reshape(len(numbers), KV_BLOCK, -1)


def _view_as(dtype: type[np.float16], memory: NDArray[np.uint8]) -> Numbers:
    return np.ascontiguousarray(memory).view(dtype)


def _join(blocks: list[Numbers]) -> Numbers:
    """A copy of all blocks: (heads, tokens, dim)."""
    return np.ascontiguousarray(np.concatenate(blocks, axis=1))


def _stride(dim: int) -> int:
    return -(-dim // _LANES) * _LANES


def _claim(nbytes: int) -> int:
    return -(-nbytes // _CLAIM) * _CLAIM


def round_activations(x: Floats) -> Floats:
    """Round activations as quantised matrices read them: each 32 to whole multiples of a step."""
    blocks = x.reshape(-1, _QUANT)
    peak = np.abs(blocks).max(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        inverse = np.where(peak > _TINY, np.float32(127) / peak, np.float32(0))
    steps: Floats = np.rint(blocks * inverse) * (peak / np.float32(127))
    return steps.reshape(x.shape)
