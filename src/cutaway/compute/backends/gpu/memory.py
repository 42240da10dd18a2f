"""The memory of texts on a GPU: keys and values in KV blocks, recurrent states in slots.

A block has the same bytes as in the cpu backend (native/kv_format.h), so that each backend can read
prefixes that the other one saved. Knows blocks by id and slots by number, not the texts in them.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cutaway.base import _native
from cutaway.compute.backends.gpu.device import Device
from cutaway.compute.backends.layout import DRAFT_STATES
from cutaway.compute.calls import (
    AttendCall,
    AttendShape,
    Call,
    ConvCall,
    DeltaNetCall,
    Mamba,
    Mamba1,
    Wkv,
)
from cutaway.compute.model import Graph
from cutaway.errors import OutOfMemoryError

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int32]
_FIRST_PLACES = 8


class Home(NamedTuple):
    """Where one part of every record lies: a layer's keys and values, or an op's state.

    buffer  the index of the buffer that has the part
    at      the first byte of the part, counted from where a record begins in this buffer
    stride  how many bytes of a record this buffer has
    """

    buffer: int
    at: int
    stride: int


class DeviceRecords:
    """Records of equal size, numbered by place. The parts of a record may lie in several buffers.

    The buffers grow as needed, up to ``capacity`` places.
    """

    def __init__(self, device: Device, sizes: Sequence[int], capacity: int, places: int) -> None:
        """sizes: bytes of each part of a record; places: how many there is room for at first."""
        self._device, self._capacity, self._places = device, capacity, places
        self.strides: list[int] = []
        self._homes: list[tuple[int, int]] = []  # the buffer and the first byte of each part
        for size in sizes:
            if size * capacity > device.binding:
                raise OutOfMemoryError(
                    f"the GPU {device.name} has buffers of at most {device.binding} bytes, and a "
                    f"layer's share of {capacity} records would take {size * capacity}: allow "
                    "fewer tokens (kv_tokens; of a page, --context)"
                )
            if not self.strides or (self.strides[-1] + size) * capacity > device.binding:
                self.strides.append(0)
            self._homes.append((len(self.strides) - 1, self.strides[-1]))
            self.strides[-1] += size
        self.buffers = [device.storage(stride * places // 4) for stride in self.strides]

    @property
    def nbytes(self) -> int:
        """Bytes of a record in all buffers."""
        return sum(self.strides)

    def home(self, part: int) -> Home:
        """Return where a part of every record lies."""
        buffer, at = self._homes[part]
        return Home(buffer, at, self.strides[buffer])

    def reach(self, places: int) -> bool:
        """Make room for this many places; return whether the buffers were replaced."""
        if places <= self._places:
            return False
        larger = min(self._capacity, max(places, 2 * self._places))
        buffers = [self._device.storage(n * larger // 4) for n in self.strides]
        self._device.copy(
            [
                (old, 0, new, 0, stride * self._places)
                for old, new, stride in zip(self.buffers, buffers, self.strides, strict=True)
            ]
        )
        self.buffers, self._places = buffers, larger  # only now: memory may have run out
        return True

    def read(self, place: int) -> Bytes:
        """Return a copy of the record at a place."""
        pairs = zip(self.buffers, self.strides, strict=True)
        return np.concatenate([self._device.read(b, n * place, n) for b, n in pairs])

    def write(self, place: int, record: Bytes) -> None:
        """Write a record to a place."""
        at = 0
        for buffer, stride in zip(self.buffers, self.strides, strict=True):
            self._device.write(buffer, stride * place, record[at : at + stride])
            at += stride

    def moves(self, source: int, target: int) -> list[tuple[Any, int, Any, int, int]]:
        """Return the pieces with which ``Device.copy`` copies a record to another place."""
        pairs = zip(self.buffers, self.strides, strict=True)
        return [(b, n * source, b, n * target, n) for b, n in pairs]


class Sparse:
    """Records that take a place when they are first written, and lose it when they are freed.

    A new record takes the place that was freed last.
    """

    def __init__(self, device: Device, sizes: Sequence[int], capacity: int) -> None:
        """sizes: bytes of each part of a record; capacity: all records' numbers are below it."""
        self.records = DeviceRecords(device, sizes, capacity, min(capacity, _FIRST_PLACES))
        self.places = np.full(capacity, -1, np.int32)
        self._free: list[int] = []
        self._next = 0
        self._device = device

    def take(self, number: int) -> bool:
        """Give a record a place if it has none; return whether the buffers were replaced."""
        if self.places[number] >= 0:
            return False
        if self._free:
            self.places[number] = self._free.pop()
            return False
        is_new = self.records.reach(self._next + 1)
        self.places[number] = self._next
        self._next += 1
        return is_new

    def release(self, number: int) -> None:
        """Free a record's place, if it has one."""
        if self.places[number] >= 0:
            self._free.append(int(self.places[number]))
            self.places[number] = -1

    def copy(self, source: int, target: int) -> bool:
        """Copy a record to another number; if the source has no place, free the target's.

        Return whether the buffers were replaced.
        """
        if self.places[source] < 0:
            self.release(target)
            return False
        is_new = self.take(target)
        if source != target:
            moves = self.records.moves(int(self.places[source]), int(self.places[target]))
            self._device.copy(moves)
        return is_new


class Layer(NamedTuple):
    """The bytes of a layer's keys and of its values in a KV block."""

    layer: int
    keys: int
    values: int
    windowed: bool


def stored_layer(shape: AttendShape, kv: str) -> Layer:
    """Return the bytes that an attention stores in a KV block; kv: what ``check_kv`` returned."""
    keys = _native.kv_block_bytes(shape.kv_heads, shape.head_dim, 0, kv)
    separate = 0 if shape.is_latent else shape.value_width
    total = _native.kv_block_bytes(shape.kv_heads, shape.head_dim, separate, kv)
    return Layer(shape.layer, keys, total - keys, shape.window > 0)


class DeviceMemory:
    """The KV blocks and states of a model, shared by backends that share its memory.

    version  grows whenever buffers are replaced, so that runners bind the new buffers
    """

    def __init__(
        self,
        device: Device,
        layers: Sequence[Layer],
        states: Sequence[int],
        blocks: int,
        slots: int,
    ) -> None:
        """states: how many floats each op with a state keeps; blocks, slots: how many there are."""
        self.device, self.version = device, 0
        self._layers = {layer.layer: layer for layer in layers}
        whole = [layer for layer in layers if not layer.windowed]
        windowed = [layer for layer in layers if layer.windowed]
        self._parts = {layer.layer: i for of in (whole, windowed) for i, layer in enumerate(of)}
        sizes = [[layer.keys + layer.values for layer in of] for of in (whole, windowed)]
        self.whole = DeviceRecords(device, sizes[0], blocks, blocks)
        self.windows = Sparse(device, sizes[1], blocks)
        self.states = Sparse(device, [4 * _lanes(n) for n in states], slots)
        self.has_states, self.window = bool(states), 0

    @property
    def buffers(self) -> list[Any]:
        """All buffers, in the order of the indices of ``find_layer`` and ``find_state``."""
        return [*self.whole.buffers, *self.windows.records.buffers, *self.states.records.buffers]

    def find_layer(self, layer: int) -> tuple[Home, int]:
        """Return where a layer's keys begin, and how many bytes later its values do."""
        stored = self._layers[layer]
        records = self.windows.records if stored.windowed else self.whole
        home = records.home(self._parts[layer])
        before = len(self.whole.buffers) if stored.windowed else 0
        return home._replace(buffer=home.buffer + before), stored.keys

    def find_state(self, op: int) -> Home:
        """Return where an op's state lies; op: its index among the ops that keep one."""
        before = len(self.whole.buffers) + len(self.windows.records.buffers)
        home = self.states.records.home(op)
        return home._replace(buffer=home.buffer + before)

    # -- a step --------------------------------------------------------------------------------

    def take_states(self, slots: Sequence[int]) -> None:
        """Give a place to each slot in which a step stores a state."""
        self.version += sum(self.states.take(slot) for slot in slots)

    def window_tables(self, tables: Ints, spans: Sequence[tuple[int, int, int, int]]) -> Ints:
        """Return the places that blocks have in layers with a window, in the shape of ``tables``.

        Blocks that no row sees have the place 0. spans: for each run of rows, its sequence, the
        first block that it sees, the last block that it sees or stores, and the first that it
        stores. ValueError if a block that a row sees was freed.
        """
        places = np.zeros_like(tables)
        for sequence, _, last, stored in spans:
            for column in range(stored, last + 1):
                self.version += self.windows.take(int(tables[sequence, column]))
        for sequence, first, last, _ in spans:
            seen = self.windows.places[tables[sequence, first : last + 1]]
            if seen.size and seen.min() < 0:
                raise ValueError("batch: a row sees a KV block that was freed")
            places[sequence, first : last + 1] = seen
        return places

    # -- blocks and states, between steps ------------------------------------------------------

    def read_block(self, block: int) -> list[Bytes]:
        """Return a KV block's bytes: first those of layers without a window, then the others."""
        _check_number(block, len(self.windows.places), "KV block")
        pieces = [self.whole.read(block)] if self.whole.strides else []
        place = int(self.windows.places[block])
        if self.windows.records.strides and place >= 0:
            pieces.append(self.windows.records.read(place))
        return pieces

    def write_block(self, block: int, numbers: Bytes) -> None:
        """Overwrite a KV block; if there are bytes for layers with a window, take a place there."""
        whole = self.whole.nbytes
        if whole:
            self.whole.write(block, numbers[:whole])
        if len(numbers) > whole:
            self.version += self.windows.take(block)
            self.windows.records.write(int(self.windows.places[block]), numbers[whole:])

    def read_state(self, slot: int) -> Bytes | None:
        """Return the bytes of a slot's state; None if the slot has no state."""
        _check_number(slot, len(self.states.places), "slot")
        place = int(self.states.places[slot])
        return None if place < 0 else self.states.records.read(place)

    def write_state(self, slot: int, state: Bytes) -> None:
        """Overwrite a slot's state, or create it."""
        _check_number(slot, len(self.states.places), "slot")
        self.version += self.states.take(slot)
        self.states.records.write(int(self.states.places[slot]), state)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """See ``Backend``."""
        _check_pairs(pairs, len(self.windows.places), "copy_blocks: an id names no KV block")
        sources, targets = ([pair[i] for pair in pairs] for i in (0, 1))
        if {*sources} & {*targets} or len({*targets}) < len(targets) or -1 in targets:
            raise ValueError("copy_blocks: a target is also a source, or named twice")
        moves = [move for source, target in pairs for move in self.whole.moves(source, target)]
        self.device.copy(moves)
        self.copy_windows(pairs)

    def copy_windows(self, pairs: Sequence[tuple[int, int]]) -> None:
        """See ``Backend``."""
        _check_pairs(pairs, len(self.windows.places), "copy_windows: an id names no KV block")
        if self.windows.records.strides:
            self._copy(self.windows, pairs)

    def copy_states(self, pairs: Sequence[tuple[int, int]]) -> None:
        """See ``Backend``."""
        _check_pairs(pairs, len(self.states.places), "copy_states: a number names no slot")
        if self.has_states:
            self._copy(self.states, pairs)

    def _copy(self, sparse: Sparse, pairs: Sequence[tuple[int, int]]) -> None:
        for source, target in pairs:
            if target < 0:
                sparse.release(source)
            elif target != source:
                self.version += sparse.copy(source, target)


def make_memory(
    device: Device,
    plan: Sequence[Call],
    kv: str,
    blocks: int,
    graph: Graph,
    *,
    slots: int | None = None,
) -> DeviceMemory:
    """Return memory for the layers and states of a model's plan.

    slots: how many states there may be; None: as many as a batch of texts needs
    """
    layers = [
        stored_layer(call.shape, kv)
        for call in plan
        if isinstance(call, AttendCall) and call.shape.reads < 0
    ]
    states = [_state_floats(c) for c in plan if isinstance(c, _StateCall)]
    memory = DeviceMemory(device, layers, states, blocks, slots or blocks + DRAFT_STATES)
    memory.window = max((op.mask.window for op in graph.stores), default=0)
    return memory


_StateCall = ConvCall | DeltaNetCall | Mamba | Mamba1 | Wkv


def _state_floats(call: _StateCall) -> int:
    if isinstance(call, ConvCall):
        return (call.weights.taps - 1) * call.weights.width
    if isinstance(call, Mamba1):
        return call.keys * call.columns
    if isinstance(call, Wkv):
        return call.heads * call.size * call.size
    _, heads, keys, values = call.shape[:4]
    return heads * keys * values


def _check_number(number: int, count: int, kind: str) -> None:
    if not 0 <= number < count:
        raise ValueError(f"{number} names no {kind}")


def _check_pairs(pairs: Sequence[tuple[int, int]], count: int, sentence: str) -> None:
    if not all(0 <= source < count and -1 <= target < count for source, target in pairs):
        raise ValueError(sentence)


def _lanes(floats: int) -> int:
    return -(-floats // 16) * 16
