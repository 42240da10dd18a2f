"""Computes a step again on the CPU if the device flushed denormals and this may have changed bits.

Kernels report this (``note_hurt`` in common.wgsl); such a step is called hurt. Knows which KV
blocks and states a step reads and writes, and copies them to the CPU and back.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cutaway.base import _native
from cutaway.compute import calls
from cutaway.compute.backends.base import Batch, Logits, put
from cutaway.compute.backends.gpu.batches import blocks_of, segments_of, slots_before
from cutaway.compute.backends.gpu.device import Device
from cutaway.compute.backends.gpu.launches import StepSize
from cutaway.compute.backends.gpu.program import Program
from cutaway.compute.backends.gpu.run import DeviceRunner
from cutaway.compute.backends.layout import KV_BLOCK
from cutaway.compute.calls import Call, Floats
from cutaway.errors import CutawayError

Bytes = NDArray[np.uint8]
States = dict[int, Bytes]
"""Slot -> the state from which a sequence of a step continues."""


class FlushingRunner(DeviceRunner):
    """A program on a device that flushes denormals, and the same plan on the CPU.

    The CPU's plan gets its matrices when the first step is hurt; the device's are read back then.
    """

    def __init__(
        self, device: Device, program: Program, tables: Sequence[_native.StoredTable],
        plan: Sequence[Call], cpu: _native.Plan,
    ) -> None:  # fmt: skip
        """plan: the calls of the program; cpu: a plan without calls, to which they are added."""
        super().__init__(device, program, tables)
        self._plan, self._cpu = plan, cpu
        self._is_ready = self._is_on_cpu = False
        self._states: States = {}

    def run(self, batch: Batch, first: int = 0, last: int | None = None) -> Logits:
        """See ``DeviceRunner``. CutawayError if a part of a step, run between edits, is hurt."""
        logits = super().run(batch, first, last)
        if not len(batch.tokens) or not self._is_hurt():
            return logits
        if first or last is not None:
            raise CutawayError(
                f"the GPU {self._device.name} takes numbers below 1e-38 for 0, and this step has "
                "such numbers: edit it with another backend"
            )
        return self._run_again(batch, self._states)

    def _write_step(self, batch: Batch) -> StepSize:
        size = super()._write_step(batch)
        self._states, self._is_on_cpu = self._states_before(batch), False
        self._device.write(self.floats, 0, np.zeros(1, np.float32))
        return size

    def read(self, view: tuple[int, int], rows: int, width: int) -> Floats:
        """See ``DeviceRunner``."""
        if self._is_on_cpu:
            return self._cpu.read(view, rows, width).copy()
        return super().read(view, rows, width)

    def _is_hurt(self) -> bool:
        return bool(self._device.read(self.floats, 0, 4).any())

    # -- on the CPU ----------------------------------------------------------------------------

    def _run_again(self, batch: Batch, states: States) -> Logits:
        if not self._is_ready:
            matrices = self.program.weights.read_all()
            self._cpu.add(calls.plain(self._plan), [*matrices.values()], [*self._stored_tables])
            self._is_ready = True
        plan, memory = self._cpu, self.program.memory
        blocks, targets = self._blocks(batch)
        slots = self._slots_after(batch)
        for block in blocks:
            numbers = np.concatenate([*memory.read_block(block)])
            has_window = memory.whole.nbytes < len(numbers)
            put([numbers], plan.block_memory(block, has_window))
        for slot, state in states.items():
            stored = plan.state_memory(slot, True)
            assert stored is not None
            stored[:] = state
        logits = plan.run(batch).copy()
        for block in targets:
            memory.write_block(block, np.concatenate([*plan.block_memory(block, False)]))
        for slot in slots:
            state_after = plan.state_memory(slot, False)
            assert state_after is not None
            memory.write_state(slot, state_after)
        plan.copy_windows(*_release_pairs([*blocks]))
        plan.copy_states(*_release_pairs([*{*slots, *states}]))
        self._is_on_cpu = True
        return logits

    def _blocks(self, batch: Batch) -> tuple[set[int], set[int]]:
        """Return the KV blocks that a step reads or writes, and those that it writes."""
        if not any(isinstance(call, calls.AttendCall) for call in self._plan):
            return set(), set()
        targets = batch.block_tables[batch.sequences, batch.positions // KV_BLOCK]
        return blocks_of(batch), {*map(int, targets)}

    def _states_before(self, batch: Batch) -> States:
        """Copy the states from which a step continues: it may store other states in their slots."""
        memory = self.program.memory
        slots = {*slots_before(batch)} if memory.has_states else set()
        states = {slot: memory.read_state(slot) for slot in slots}
        return {slot: state for slot, state in states.items() if state is not None}

    def _slots_after(self, batch: Batch) -> list[int]:
        if not self.program.memory.has_states:
            return []
        if batch.states is not None:
            return [int(slot) for _, slot in batch.states]
        ends = [segment.first + segment.rows - 1 for segment in segments_of(batch)]
        tables, positions = batch.block_tables, batch.positions
        return [int(tables[batch.sequences[row], positions[row] // KV_BLOCK]) for row in ends]


def _release_pairs(numbers: Sequence[int]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return sources and targets with which a copy frees the blocks or slots of these numbers."""
    return np.array(numbers, np.int32), np.full(len(numbers), -1, np.int32)
