"""A GPU, used through WebGPU: its adapter, its limits, its buffers and pipelines.

Knows wgpu and no model. Every size is checked before a call, since wgpu ends the whole process on
some invalid calls.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway.base.progress import megabytes
from cutaway.base.resources import free_memory
from cutaway.compute.backends.gpu import shaders
from cutaway.compute.backends.gpu.shaders import Kernel
from cutaway.errors import CutawayError, DeviceLostError, OutOfMemoryError

Words = NDArray[np.uint32]
THREADS = 256  # threads of the largest workgroup
WORKGROUP_BYTES = 16384
STORAGE_BUFFERS = 6  # storage buffers that each kernel binds
_SHARING = ("CPU", "IntegratedGPU")  # types of adapters
OP_WORDS = 64  # words for an op's numbers: 256 bytes, the alignment of a uniform's offset


class Device:
    """An adapter of this machine, opened.

    fused    how the device computes a multiply-add: one of ``shaders.FUSED``
    flushes  whether the device flushes denormals to 0
    binding  the most bytes that a buffer may have
    """

    def __init__(self, adapter: Any) -> None:
        self.adapter, self.fused, self.flushes = adapter, "int", False
        features = [name for name in ("shader-f64",) if name in adapter.features]
        self.ways = tuple(way for way in shaders.FUSED if way != "f64" or features)
        limits = {
            name: adapter.limits[name]
            for name in ("max-storage-buffer-binding-size", "max-buffer-size")
        }
        self.device = adapter.request_device_sync(
            required_features=features, required_limits=limits
        )
        self.queue = self.device.queue
        self.binding = int(min(limits.values())) // 256 * 256
        self._pipelines: dict[tuple[Kernel, str, bool], Any] = {}
        self._scratch: Any = None
        import wgpu

        self._wgpu, self._usage = wgpu, wgpu.BufferUsage
        kinds = wgpu.BufferBindingType
        bound = [kinds.uniform, kinds.uniform, kinds.read_only_storage, kinds.storage]
        bound += [kinds.storage, kinds.read_only_storage, kinds.read_only_storage, kinds.storage]
        self._layout = self.device.create_bind_group_layout(
            entries=[
                {
                    "binding": i,
                    "visibility": wgpu.ShaderStage.COMPUTE,
                    "buffer": {"type": kind, "has_dynamic_offset": i == 1},
                }
                for i, kind in enumerate(bound)
            ]
        )
        self._pipeline_layout = self.device.create_pipeline_layout(
            bind_group_layouts=[self._layout]
        )

    @property
    def name(self) -> str:
        """The card, and its driver."""
        info = self.adapter.info
        return f"{info['device']} ({info['description'] or info['backend_type']})"

    @property
    def identity(self) -> str:
        """The card, its driver, wgpu's version and ``fused``: all that may change the bits."""
        import wgpu

        info = self.adapter.info
        words = (info[key] for key in ("vendor", "device", "description", "backend_type"))
        return " | ".join([*map(str, words), f"wgpu {wgpu.__version__}", self.fused])

    def pipeline(self, kernel: Kernel) -> Any:
        """Return a kernel's pipeline, which is compiled at its first use."""
        key = kernel, self.fused, self.flushes
        if key not in self._pipelines:
            with self.explain_errors():
                module = self.device.create_shader_module(code=shaders.text(*key))
                self._pipelines[key] = self.device.create_compute_pipeline(
                    layout=self._pipeline_layout, compute={"module": module, "entry_point": "main"}
                )
        return self._pipelines[key]

    def dispatch(self, pipeline: Any, group: Any, op: int, grid: tuple[int, int, int]) -> None:
        """Submit one dispatch; op: the index of its numbers in their buffer."""
        with self.explain_errors():
            encoder = self.device.create_command_encoder()
            compute = encoder.begin_compute_pass()
            compute.set_pipeline(pipeline)
            compute.set_bind_group(0, group, [4 * OP_WORDS * op])
            compute.dispatch_workgroups(*grid)
            compute.end()
            self.queue.submit([encoder.finish()])

    # -- errors --------------------------------------------------------------------------------

    @contextmanager
    def explain_errors(self) -> Iterator[None]:
        """Raise errors of wgpu in the block as errors that say what to do.

        These are OutOfMemoryError, DeviceLostError, and CutawayError if the driver failed. An
        invalid call is a bug of ours; its error is raised unchanged.
        """
        try:
            yield
        except self._wgpu.GPUOutOfMemoryError as error:
            raise OutOfMemoryError(
                f"the GPU {self.name} has not enough memory left: lower kv_tokens or context, or "
                "take a smaller model"
            ) from error
        except (self._wgpu.GPUError, RuntimeError) as error:  # RuntimeError: a buffer is not mapped
            if self.is_lost():
                raise DeviceLostError(
                    f"the GPU {self.name} was lost, as by a reset of its driver: load the model "
                    "again, or take another backend"
                ) from error
            if isinstance(error, self._wgpu.GPUValidationError):
                raise
            reason = " ".join(str(error).split())
            raise CutawayError(
                f"the driver of the GPU {self.name} failed ({reason}): take another backend"
            ) from error

    def is_lost(self) -> bool:
        """Whether the device takes no more calls."""
        try:
            self.device.create_buffer(size=256, usage=self._usage.COPY_DST)
        except self._wgpu.GPUOutOfMemoryError:
            return False
        except self._wgpu.GPUError:
            return True
        return False

    # -- memory --------------------------------------------------------------------------------

    def storage(self, words: int) -> Any:
        """Return a new buffer of words that kernels read and write; all words are 0."""
        return self._buffer(4 * words, self._usage.STORAGE)

    def uniform(self, words: int) -> Any:
        """Return a new buffer of words that are the same for a whole dispatch."""
        return self._buffer(4 * words, self._usage.UNIFORM)

    def _buffer(self, nbytes: int, usage: Any) -> Any:
        if nbytes > self.binding:
            raise OutOfMemoryError(
                f"the GPU {self.name} has no buffers of {nbytes} bytes, only of {self.binding}: "
                "lower kv_tokens or context, or take a smaller model"
            )
        copies = self._usage.COPY_SRC | self._usage.COPY_DST
        with self.explain_errors():
            return self.device.create_buffer(size=max(nbytes, 256), usage=usage | copies)

    def check_room(self, nbytes: int) -> None:
        """Raise OutOfMemoryError if a GPU shares the CPU's memory and too few bytes are free.

        Without this check the operating system would end a process in the middle of a load.
        """
        memory = free_memory() if self.adapter.info["adapter_type"] in _SHARING else None
        if memory is not None and nbytes > memory.free:
            raise OutOfMemoryError(
                f"the GPU {self.name} shares the memory of {memory.owner}, of which "
                f"{megabytes(memory.free)} are free, and the weights take {megabytes(nbytes)}: "
                "end other programs, or take a smaller model"
            )

    def write(self, buffer: Any, at: int, numbers: NDArray[Any]) -> None:
        """Write numbers into a buffer from byte ``at`` on; they must have a multiple of 4 bytes."""
        if numbers.nbytes:
            with self.explain_errors():
                self.queue.write_buffer(buffer, at, np.ascontiguousarray(numbers))

    def read(self, buffer: Any, at: int, nbytes: int) -> NDArray[np.uint8]:
        """Wait for all submitted work, then return a copy of ``nbytes`` bytes of a buffer."""
        if not nbytes:
            return np.empty(0, np.uint8)
        with self.explain_errors():
            return np.frombuffer(self.queue.read_buffer(buffer, at, nbytes), np.uint8)

    def copy(self, pieces: Sequence[tuple[Any, int, Any, int, int]]) -> None:
        """Copy pieces in order: (source, first byte, target, first byte there, how many bytes)."""
        if not pieces:
            return
        longest = max(piece[4] for piece in pieces)
        if self._scratch is None or self._scratch.size < longest:
            self._scratch = self._buffer(longest, self._usage.STORAGE)
        with self.explain_errors():
            encoder = self.device.create_command_encoder()
            for source, source_at, target, target_at, nbytes in pieces:
                # through a third buffer, since WebGPU does not copy a buffer into itself
                encoder.copy_buffer_to_buffer(source, source_at, self._scratch, 0, nbytes)
                encoder.copy_buffer_to_buffer(self._scratch, 0, target, target_at, nbytes)
            self.queue.submit([encoder.finish()])

    def bind(self, buffers: Sequence[Any]) -> Any:
        """Return a bind group of these buffers, in common.wgsl's order; it shows one op's words."""
        entries = [
            {
                "binding": i,
                "resource": {
                    "buffer": buffer,
                    "offset": 0,
                    "size": 4 * OP_WORDS if i == 1 else buffer.size,
                },
            }
            for i, buffer in enumerate(buffers)
        ]
        with self.explain_errors():
            return self.device.create_bind_group(layout=self._layout, entries=entries)
