"""The GPU backend: it runs a plan's calls as kernels, through WebGPU, and has the CPU's bits.

Knows which programs a model has, and what these programs share. Rows are sampled on the CPU, from
logits that are copied back.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any, Self

import numpy as np

from cutaway.base import _native
from cutaway.base.resources import default_threads
from cutaway.compute.backends.base import Batch, Bytes, Logits
from cutaway.compute.backends.gpu.adapters import open_device
from cutaway.compute.backends.gpu.batches import Bounds
from cutaway.compute.backends.gpu.check import check_kernels, room_for_steps, unchecked_kernels
from cutaway.compute.backends.gpu.compile import compile_plan
from cutaway.compute.backends.gpu.device import Device
from cutaway.compute.backends.gpu.memory import make_memory
from cutaway.compute.backends.gpu.program import Program
from cutaway.compute.backends.gpu.recheck import Recheck
from cutaway.compute.backends.gpu.run import DeviceRunner
from cutaway.compute.backends.gpu.weights import DeviceWeights, PackedMatrix
from cutaway.compute.backends.layout import DRAFT_STATES
from cutaway.compute.backends.packed import PackedBackend
from cutaway.compute.calls import Call, Floats
from cutaway.compute.lowering import matrix_shapes
from cutaway.compute.lowering.emit import Emitter
from cutaway.compute.lowering.packing import Shapes
from cutaway.compute.model import Graph
from cutaway.compute.model.op import Slice
from cutaway.files.weights import ModelFile


class GpuBackend(PackedBackend):
    """A backend with one device, one set of packed weights, and the programs that read them."""

    name = "gpu"
    _runner: DeviceRunner

    def __init__(
        self,
        graph: Graph,
        file: ModelFile,
        *,
        kv_blocks: int,
        context: int,
        threads: int | None = None,
        kv: str = "f16",
        on_progress: Callable[[int], None] = lambda _done: None,
        device: Device | None = None,
    ) -> None:
        """threads: how many CPU threads pack and sample; device: None opens one.

        The other arguments are those of ``CpuBackend``.
        """
        self.kv_blocks, self.context, self.kv_format = kv_blocks, context, kv
        self.pool = _native.Pool(threads or default_threads().count)
        self.threads = self.pool.threads
        self.device = device or open_device(os.environ.get("CUTAWAY_GPU_FMA") or None)
        self.tier = f"webgpu {self.device.fused}"
        self._panels = DeviceWeights(self.device)
        self._panels.add(matrix_shapes(graph), file, self.pool, on_progress)
        self._set_graph(graph, file, self._panels.matrices)
        self._start(own_memory=True)

    def run(self, batch: Batch) -> Logits:
        """See ``Backend``; some steps may be computed again on the CPU and compared."""
        if self.recheck is None:
            return self.run_once(batch)
        return self.recheck.run(batch)

    def run_once(self, batch: Batch) -> Logits:
        """Run a step as ``run`` does, but on the GPU alone."""
        return super().run(batch)

    def with_adapter(self, graph: Graph, file: ModelFile) -> Self:
        """See ``Backend``. CutawayError if the adapter's kernels have other bits than the CPU."""
        twin = super().with_adapter(graph, file)
        if unchecked_kernels(twin, twin._graph):
            twin._check_beside_texts()
        if self.recheck is not None:
            twin.recheck = self.recheck.with_adapter(twin, graph, file)
        return twin

    def _check_beside_texts(self) -> None:
        """Check the kernels in KV blocks of their own, since texts may use those of the model."""
        from cutaway.compute.backends.cpu import CpuBackend

        twin = copy(self)
        twin._panels = self._panels.share(self._panels.matrices)  # frees what is read back
        twin._start(own_memory=True)
        room = room_for_steps(twin)
        check_kernels(
            twin, self._graph, lambda: CpuBackend.copy_backend(twin, twin._panels.read_all(), room)
        )

    @property
    def program(self) -> Program:
        """The program that a step runs."""
        return self._runner.program

    def _pack(
        self, shapes: Shapes, file: ModelFile, shared: Mapping[Slice, Any]
    ) -> Mapping[Slice, PackedMatrix]:
        self._panels = self._panels.share(shared)
        self._panels.add(shapes, file, self.pool)
        return self._panels.matrices

    def _decode(self, matrix: PackedMatrix, first: int, last: int) -> Floats:
        return self._panels.decode(matrix, first, last)

    def _lower(self, graph: Graph, **options: Any) -> tuple[DeviceRunner, Emitter]:
        lowered = self._weights.lower(graph, self.context, **options)
        return self._make_runner(lowered.calls, fuses=not options.get("apart")), lowered

    def _make_runner(self, plan: Sequence[Call], *, fuses: bool = True) -> DeviceRunner:
        """Return a runner of this plan on the device, with this backend's weights and memory.

        fuses: see ``compile_plan``
        """
        bounds = Bounds(vocab=0, types=0, context=self.context, kv_blocks=self.kv_blocks)
        program = compile_plan(
            plan, self._panels, self._memory, self.kv_format, bounds, fuses=fuses
        )
        stored = [*self._weights.stored.values()]
        if not self.device.flushes:
            return DeviceRunner(self.device, program, stored)
        from cutaway.compute.backends.gpu.flushing import FlushingRunner

        cpu = _native.Plan(
            self.pool, "", self.kv_blocks, self.context, "", self.kv_format, DRAFT_STATES
        )
        return FlushingRunner(self.device, program, stored, plan, cpu)

    def _start(self, *, own_memory: bool) -> None:
        self.recheck: Recheck | None = None  # that of another graph does not fit this one
        plan = self._weights.lower(self._graph, self.context).calls
        if own_memory:
            self._memory = make_memory(
                self.device, plan, self.kv_format, self.kv_blocks, self._graph
            )
        self._runner = self._make_runner(plan)

    # -- KV blocks and states ------------------------------------------------------------------

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """See ``Backend``."""
        self._memory.copy_blocks(pairs)

    def copy_windows(self, pairs: list[tuple[int, int]]) -> None:
        """See ``Backend``."""
        self._memory.copy_windows(pairs)

    def copy_states(self, pairs: list[tuple[int, int]]) -> None:
        """See ``Backend``."""
        self._memory.copy_states(pairs)

    def read_block(self, block_id: int) -> list[Bytes]:
        """See ``Backend``."""
        return self._memory.read_block(block_id)

    def write_block(self, block_id: int, pieces: Sequence[Bytes]) -> None:
        """See ``Backend``."""
        self._memory.write_block(block_id, np.concatenate([*pieces]))

    def read_state(self, slot: int) -> Bytes | None:
        """See ``Backend``."""
        return self._memory.read_state(slot)

    def write_state(self, slot: int, state: Bytes) -> None:
        """See ``Backend``."""
        self._memory.write_state(slot, state)
