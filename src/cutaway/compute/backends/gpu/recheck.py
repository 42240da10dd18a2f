"""Computes one step in N again on the CPU while a GPU writes texts: CUTAWAY_GPU_RECHECK=N.

Knows which KV blocks and states a step reads; ``check.py`` names the tensor that differs.
"""

import os
from typing import Protocol

from cutaway.compute.backends.base import Backend, Batch, Bytes, Logits
from cutaway.compute.backends.gpu.batches import blocks_of, slots_before
from cutaway.compute.backends.gpu.check import DeviceBackend, first_difference
from cutaway.compute.model import Graph
from cutaway.errors import CutawayError, InputError
from cutaway.files.weights import ModelFile

_NAME = "CUTAWAY_GPU_RECHECK"


class GpuSteps(DeviceBackend, Protocol):
    """A backend of a GPU, as a recheck needs it."""

    def run_once(self, batch: Batch) -> Logits:
        """Run a step on the GPU alone."""
        ...


def recheck_interval() -> int:
    """Return N of CUTAWAY_GPU_RECHECK: one step in N is computed again; 0 if it is unset."""
    text = os.environ.get(_NAME, "")
    if text and not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise InputError(f"{_NAME} must be a whole number from 1 on, not {text[:40]!r}")
    return int(text or 0)


class Recheck:
    """The same model on the CPU, with memory for the same KV blocks."""

    def __init__(self, gpu: GpuSteps, cpu: Backend, graph: Graph, interval: int) -> None:
        self._gpu, self._cpu, self._graph = gpu, cpu, graph
        self._interval, self._steps = interval, 0

    def with_adapter(self, gpu: GpuSteps, graph: Graph, file: ModelFile) -> "Recheck":
        """Return what computes steps of ``gpu``, this model with an adapter, again."""
        return Recheck(gpu, self._cpu.with_adapter(graph, file), graph, self._interval)

    def run(self, batch: Batch) -> Logits:
        """Run a step. CutawayError if it is computed again and a bit differs."""
        self._steps += 1
        if self._steps % self._interval or not len(batch.tokens):
            return self._gpu.run_once(batch)
        blocks = {int(block): self._gpu.read_block(int(block)) for block in blocks_of(batch)}
        states = {slot: self._gpu.read_state(slot) for slot in slots_before(batch)}
        self._write(self._cpu, states)
        for block, pieces in blocks.items():
            self._cpu.write_block(block, pieces)
        logits = self._gpu.run_once(batch).copy()
        if self._cpu.run(batch).tobytes() != logits.tobytes():
            for backend in (self._cpu, self._gpu):
                self._write(backend, states)  # the step may have overwritten them
            tensor = first_difference(self._cpu, self._gpu, self._graph, batch)
            raise CutawayError(
                f"the GPU {self._gpu.device.name} computed a step with other bits than the CPU in "
                f"{tensor} of this model: take another backend, and report these names, please"
            )
        return logits

    def _write(self, backend: Backend, states: dict[int, Bytes | None]) -> None:
        if self._gpu.kv.state:
            for slot, state in states.items():
                if state is not None:
                    backend.write_state(slot, state)
