"""Runs a program's dispatches over a batch: lays out tensors, writes a step's lists, submits.

A step writes only its lists; it reuses buffers and bind groups. Knows the order in which a step's
lists are written; ``program.py`` knows the dispatches.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cutaway.base import _native
from cutaway.compute.backends.base import Batch, Logits
from cutaway.compute.backends.gpu import shaders
from cutaway.compute.backends.gpu.batches import Segment, check_batch, list_tiles, segments_of
from cutaway.compute.backends.gpu.device import OP_WORDS, Device
from cutaway.compute.backends.gpu.launches import StepSize, launches
from cutaway.compute.backends.gpu.program import NONE, SPLIT_ROWS, At, Program
from cutaway.compute.backends.layout import KV_BLOCK
from cutaway.compute.calls import Floats

CHUNK = 256  # how many tokens' softmax is taken at once
STEP_FIELDS = shaders.fields("common", "Batch")

Ints = NDArray[np.int32]


class Room(NamedTuple):
    """How many rows, logit rows, chunks of attention, and words of lists memory has room for."""

    rows: int = 0
    logits: int = 0
    chunks: int = 0
    lists: int = 0


class DeviceRunner:
    """A program with its memory on the device."""

    def __init__(
        self, device: Device, program: Program, tables: Sequence[_native.StoredTable]
    ) -> None:
        """tables: the file's stored tables, by number; a step looks up rows in them."""
        self._device, self.program, self._stored_tables = device, program, tables
        self._angles = [
            _native.Angles([*r.frequencies], *r[1:]) for r, _ in program.rotations.values()
        ]
        self._tables = device.storage(max(program.tables.size, 1))
        self._ops = device.uniform(OP_WORDS * max(len(program.dispatches), 1))
        self.step = device.uniform(64)
        self._room = Room()
        self._starts: list[int] = []
        self._groups: dict[tuple[int, int], Any] = {}
        self._version = -1
        self._size: StepSize | None = None
        self._ahead: Any = None  # commands of the next step, used if its size is the same
        self._unread = device.storage(64)

    # -- memory --------------------------------------------------------------------------------

    def _reserve(self, room: Room) -> None:
        """Make room for at least this much, rounded up to powers of 2, and lay out the tensors."""
        if all(a <= b for a, b in zip(room, self._room, strict=True)):
            return
        larger = Room(*(max(_power(a), b) for a, b in zip(room, self._room, strict=True)))
        rows, logits, chunks, lists = larger
        kinds = {"rows": rows, "logits": logits, "partials": SPLIT_ROWS * chunks}
        ends = {
            False: 64,
            True: 0,
        }  # the first of floats belongs to the step, not to a tensor: see note_hurt
        self._room, self._starts = Room(), []  # none until all is done: memory may run out
        self._groups.clear()
        self._size = None
        for tensor in self.program.tensors:
            words = tensor.width // 2 if tensor.quantised else tensor.width
            self._starts.append(ends[tensor.quantised])
            ends[tensor.quantised] += -(-words * kinds[tensor.rows] // 64) * 64
        self.floats = self._device.storage(ends[False])
        self._quants = self._device.storage(ends[True])
        self.lists = self._device.storage(lists)
        self._write_ops()
        self._room = larger

    def _write_ops(self) -> None:
        words = np.zeros((len(self.program.dispatches), OP_WORDS), np.uint32)
        for row, dispatch in zip(words, self.program.dispatches, strict=True):
            names = shaders.fields(dispatch.kernel.name, "Op")
            row[: len(names)] = [self._resolve(dispatch.numbers[name]) for name in names]
        self._device.write(self._ops, 0, words)
        tables = self.program.tables.copy()
        for at, numbers in self.program.parts:
            tables[at : at + len(numbers)] = [self._resolve(number) for number in numbers]
        self._device.write(self._tables, 0, tables)

    def _resolve(self, number: int | At) -> int:
        return number if isinstance(number, int) else self._start(number)

    def find_output(self) -> tuple[int, int]:
        """Return the first byte of the logits in ``floats``, and how many bytes a row of them has.

        Both are only known after a run.
        """
        return 4 * self._start(At(*self.program.output)), 4 * self._width(self.program.output)

    def _start(self, at: At) -> int:
        """Return the word at which a column of a tensor begins."""
        return self._starts[at.tensor] + at.column

    def group(self, weights: int, memory: int) -> Any:
        """Return the bind group for dispatches with these two buffers, named by their indices."""
        if (weights, memory) not in self._groups:
            matrices, records = self.program.weights.buffers, self.program.memory.buffers
            self._groups[weights, memory] = self._device.bind(
                [
                    self.step, self._ops, self.lists, self.floats, self._quants, self._tables,
                    matrices[weights] if matrices else self._unread,
                    records[memory] if records else self._unread,
                ]
            )  # fmt: skip
        return self._groups[weights, memory]

    # -- a step --------------------------------------------------------------------------------

    def run(self, batch: Batch, first: int = 0, last: int | None = None) -> Logits:
        """Run a step, or its ops first … last - 1; return its logits, (L, width of the output).

        The commands of the next step are encoded while the device computes this one. first and last
        are only for programs without fused ops, in which each op of the plan has a number.
        """
        if not len(batch.tokens):
            return np.empty((0, self._width(self.program.output)), np.float32)
        size = self._write_step(batch)
        with self._device.explain_errors():
            self._submit(size, first, last)
        return self.read_output(len(batch.logit_rows))

    def _submit(self, size: StepSize, first: int, last: int | None) -> None:
        queue, is_same, ahead = self._device.queue, size == self._size, self._ahead
        self._size = self._ahead = None  # commands can be submitted only once
        if first or last is not None:
            ends = [0, *self.program.ends]
            queue.submit([self._encode(size, ends[first], None if last is None else ends[last])])
            return
        queue.submit([ahead if is_same and ahead else self._encode(size)])
        self._size, self._ahead = size, self._encode(size) if is_same else None

    def _width(self, view: tuple[int, int]) -> int:
        return self.program.tensors[view[0]].width

    def read_output(self, rows: int) -> Logits:
        """Return the logits of the last run for its first ``rows`` logit rows."""
        return self.read(self.program.output, rows, self._width(self.program.output))

    def _write_step(self, batch: Batch) -> StepSize:
        """Check a batch, and write all that its dispatches read from the host."""
        rows, logits = len(batch.tokens), len(batch.logit_rows)
        limits = batch.positions if batch.limits is None else batch.limits
        chunks = int(limits.max()) // CHUNK + 1
        check_batch(batch, limits, self.program.bounds)
        segments = segments_of(batch)
        lists = self._lists_of(batch, limits, segments)
        starts = np.cumsum([0, *(len(part) for part in lists.values())])
        self._reserve(Room(rows, max(logits, 1), chunks, int(starts[-1])))
        at = dict(zip(lists, map(int, starts), strict=False))
        if batch.hidden_from is None:
            at["hidden_from"] = NONE
        runs = tuple(segment.rows for segment in segments)
        size = StepSize(rows, logits, chunks, runs, len(lists["stored"]) // 2)
        step = at | {
            "zero": 0, "rows": rows, "logits": logits, "table_width": batch.block_tables.shape[1],
            "chunks": chunks, "sequences": len(segments), "stored_count": size.stored,
        }  # fmt: skip
        self._device.write(self.step, 0, np.array([step[name] for name in STEP_FIELDS], np.uint32))
        self._device.write(self.lists, 0, np.concatenate([*lists.values()]))
        self._look_up(batch)
        if self._version != self.program.memory.version:
            self._groups.clear()
            self._version, self._size = self.program.memory.version, None
        return size

    def run_on(self, numbers: Floats) -> Logits:
        """Run the program on rows of its input, (rows, width), instead of tokens."""
        rows = np.arange(len(numbers), dtype=np.int32)
        zeros = np.zeros(len(numbers), np.int32)
        batch = Batch(
            zeros, zeros, rows, np.zeros((len(numbers), 1), np.int32), rows, given=numbers
        )
        return self.run(batch)

    def read(self, view: tuple[int, int], rows: int, width: int) -> Floats:
        """Return a tensor's first rows, in ``width`` columns from the view's column on."""
        stride = self.program.tensors[view[0]].width
        numbers = self._device.read(self.floats, 4 * self._starts[view[0]], 4 * rows * stride)
        return numbers.view(np.float32).reshape(rows, stride)[:, view[1] : view[1] + width]

    def write(self, view: tuple[int, int], numbers: Floats) -> None:
        """Write a tensor's first rows, from the view's column on."""
        width = self._width(view)
        if numbers.shape[1] == width:
            self._device.write(self.floats, 4 * self._start(At(*view)), numbers)
            return
        for i, row in enumerate(numbers):
            self._device.write(self.floats, 4 * (self._start(At(*view)) + i * width), row)

    def _look_up(self, batch: Batch) -> None:
        """Write the rows that a step looks up in tables of the file, and its given rows."""
        for tensor, (table, cols) in self.program.file_tables.items():
            rows = _native.stored_rows(self._stored_tables[table], batch.tokens, cols)
            self.write((tensor, 0), rows)
        if self.program.input is not None:
            assert batch.given is not None
            self.write(self.program.input, batch.given)

    def _lists_of(self, batch: Batch, limits: Ints, segments: list[Segment]) -> dict[str, Ints]:
        rows, memory = len(batch.tokens), self.program.memory
        zeros = np.zeros(rows, np.int32)
        counts = [segment.rows for segment in segments]
        stored, before = self._states_of(batch, segments)
        windows = np.empty(0, np.int32)
        if memory.windows.records.strides:
            windows = memory.window_tables(batch.block_tables, self._spans(batch, limits, segments))
        hidden = np.empty(0, np.float32) if batch.hidden_from is None else batch.hidden_from
        places = [(s.first, s.rows, place) for s, place in zip(segments, before, strict=True)]
        return {
            "tokens": batch.tokens,
            "positions": batch.positions,
            "types": zeros if batch.types is None else batch.types,
            "sequence": batch.sequences,
            "limits": limits,
            "window_ends": batch.positions if batch.window_ends is None else batch.window_ends,
            "logit_rows": batch.logit_rows,
            "tables": batch.block_tables.ravel(),
            "window_tables": windows.ravel(),
            "segment": np.repeat(np.arange(len(segments), dtype=np.int32), counts),
            "segments": np.array(places, np.int32).ravel(),
            "stored": np.array(stored, np.int32).ravel(),
            "hidden_from": hidden.ravel().view(np.int32),
            "angles": self._angles_at(batch.positions),
            "tiles": list_tiles(segments, self.program.tiles),
        }  # fmt: skip

    def _angles_at(self, positions: Ints) -> Ints:
        """Return cosines and sines; each rotation has a row of them for each row of the batch."""
        parts = [angles.at(positions).ravel() for angles in self._angles]
        return np.concatenate([*parts, np.empty(0, np.float32)]).view(np.int32)

    def _states_of(
        self, batch: Batch, segments: list[Segment]
    ) -> tuple[list[tuple[int, int]], list[int]]:
        """Return pairs (row, the place for the state after it), and each segment's place to read.

        A segment continues from the state in its place; the place is -1 where a sequence begins.
        ValueError if the state there was freed.
        """
        memory = self.program.memory
        if not memory.has_states:
            return [], [-1] * len(segments)

        def find_slot(row: int, position: int) -> int:
            return int(batch.block_tables[batch.sequences[row], position // KV_BLOCK])

        before = list[int]()
        for segment in segments:
            position = int(batch.positions[segment.first]) - 1
            if position < 0:
                before.append(-1)
                continue
            before.append(int(memory.states.places[find_slot(segment.first, position)]))
            if before[-1] < 0:
                raise ValueError("batch: a sequence goes on from a state that was freed")
        ends = [segment.first + segment.rows - 1 for segment in segments]
        pairs = (
            [(row, find_slot(row, int(batch.positions[row]))) for row in ends]
            if batch.states is None
            else [(int(row), int(slot)) for row, slot in batch.states]
        )
        memory.take_states([slot for _, slot in pairs])
        return [(row, int(memory.states.places[slot])) for row, slot in pairs], before

    def _spans(
        self, batch: Batch, limits: Ints, segments: list[Segment]
    ) -> list[tuple[int, int, int, int]]:
        """See ``DeviceMemory.window_tables``."""
        spans, window = [], self.program.memory.window
        for first, rows, sequence in segments:
            begin, end = int(batch.positions[first]), int(batch.positions[first + rows - 1])
            window_end = begin if batch.window_ends is None else int(batch.window_ends[first])
            last = max(int(limits[first : first + rows].max()), end) // KV_BLOCK
            seen = max(0, window_end - window + 1) // KV_BLOCK
            spans.append((sequence, seen, last, begin // KV_BLOCK))
        return spans

    def _encode(self, size: StepSize, first: int = 0, last: int | None = None) -> Any:
        """Return the commands of a step of this size, or only of dispatches first … last - 1."""
        encoder = self._device.device.create_command_encoder()
        compute = encoder.begin_compute_pass()
        bound: Any = None
        for op, dispatch, grid in launches(self.program, size, first, last):
            pipeline = self._device.pipeline(dispatch.kernel)
            if pipeline is not bound:
                compute.set_pipeline(pipeline)
                bound = pipeline
            group = self.group(dispatch.weights, dispatch.memory)
            compute.set_bind_group(0, group, [4 * OP_WORDS * op])
            compute.dispatch_workgroups(*grid)
        compute.end()
        return encoder.finish()


def _power(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()
