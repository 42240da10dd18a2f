"""Records what a program submits, to be replayed without cutaway: in a page, on any machine.

``PaperDevice`` stands in for a device and keeps what it is told; this module decides nothing about
a step. A recording is a JSON document and a file of bytes; the document names a piece of the file
as (first byte, how many bytes). The document has:

fused      the text of each way to compute a multiply-add, by the way's name
packed_dot the text of dot4I8Packed, put first where a browser has no such function
texts      pieces of kernels' texts
pipelines  for each kernel, its name, and the pieces that make its text after the first line, which
           says whether the device flushes denormals; -1 is the fused way's text
buffers    for each buffer, its bytes, whether it is a uniform, and its first content (null: zeros)
groups     for each bind group, its buffers, by binding, in the order of common.wgsl
steps      for each step, what is written first, (buffer, at, bytes); then the launches, (pipeline,
           group, op, workgroups in x, y, z), where op is the place of the op's numbers in binding
           1; and what is read at the end, (buffer, at, how many bytes)
"""

import json
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cutaway.compute.backends.gpu import probe, shaders
from cutaway.compute.backends.gpu.device import OP_WORDS
from cutaway.compute.backends.gpu.shaders import Kernel

Bytes = NDArray[np.uint8]
BINDING = 1 << 27
"""The most bytes of a buffer: every browser has as many, by WebGPU's default limits."""


class PaperBuffer:
    """A buffer with the bytes that the host wrote, but without those that kernels would write."""

    def __init__(self, nbytes: int, *, is_uniform: bool = False) -> None:
        self.size, self.is_uniform = max(nbytes, 256), is_uniform
        self.bytes: Bytes | None = None  # None until something is written

    def write(self, at: int, numbers: Bytes) -> None:
        """Overwrite bytes from ``at`` on."""
        if self.bytes is None:
            self.bytes = np.zeros(self.size, np.uint8)
        self.bytes[at : at + len(numbers)] = numbers


Launched = tuple[Kernel, Sequence[PaperBuffer], int, tuple[int, ...]]
"""A kernel, its bind group, its op, and how many workgroups it has in each dimension."""


class DeviceStep:
    """The writes and launches up to a read, and this read."""

    def __init__(self) -> None:
        self.writes: list[tuple[PaperBuffer, int, Bytes]] = []
        self.launches: list[Launched] = []
        self.read: tuple[PaperBuffer, int, int] | None = None


class PaperDevice:
    """Has the methods of ``Device`` that runners use, but computes nothing; all it reads is 0."""

    def __init__(self, binding: int = BINDING) -> None:
        """binding: the most bytes of a buffer."""
        self.name, self.fused, self.flushes, self.binding = "of a browser", "int", False, binding
        self.device = self.queue = _Encoder(self)
        self.steps: list[DeviceStep] = []
        self._step = DeviceStep()

    def start(self) -> None:
        """Forget the steps so far, so that the recording begins with the next one."""
        self.steps, self._step = [], DeviceStep()

    def check_room(self, nbytes: int) -> None:
        """See ``Device``; on paper there is always room."""

    def explain_errors(self) -> AbstractContextManager[None]:
        """See ``Device``; on paper there are no errors."""
        return nullcontext()

    def storage(self, words: int) -> PaperBuffer:
        """See ``Device``."""
        return PaperBuffer(4 * words)

    def uniform(self, words: int) -> PaperBuffer:
        """See ``Device``."""
        return PaperBuffer(4 * words, is_uniform=True)

    def pipeline(self, kernel: Kernel) -> Kernel:
        """See ``Device``."""
        return kernel

    def bind(self, buffers: Sequence[PaperBuffer]) -> tuple[PaperBuffer, ...]:
        """See ``Device``."""
        return tuple(buffers)

    def dispatch(
        self, pipeline: Kernel, group: Sequence[PaperBuffer], op: int, grid: tuple[int, ...]
    ) -> None:
        """See ``Device``."""
        self._step.launches.append((pipeline, group, op, grid))

    def write(self, buffer: PaperBuffer, at: int, numbers: NDArray[Any]) -> None:
        """See ``Device``."""
        words = np.ascontiguousarray(numbers).view(np.uint8).ravel().copy()
        self._step.writes.append((buffer, at, words))

    def read(self, buffer: PaperBuffer, at: int, nbytes: int) -> Bytes:
        """See ``Device``; a step ends with a read."""
        self._step.read = buffer, at, nbytes
        self.steps.append(self._step)
        self._step = DeviceStep()
        return np.zeros(nbytes, np.uint8)

    def copy(self, pieces: Sequence[tuple[Any, int, Any, int, int]]) -> None:
        """Copy nothing: no kernel has written anything."""


class _Encoder:
    """Stands in for wgpu's device, queue, encoders and passes; its commands are launches."""

    def __init__(self, device: PaperDevice) -> None:
        self._device = device
        self._pipeline: Any = None
        self._group: tuple[Any, int] = ((), 0)
        self._launches: list[Launched] = []

    def create_command_encoder(self) -> "_Encoder":
        return _Encoder(self._device)

    def begin_compute_pass(self) -> "_Encoder":
        return self

    def set_pipeline(self, pipeline: Kernel) -> None:
        self._pipeline = pipeline

    def set_bind_group(self, _index: int, group: Any, offsets: Sequence[int]) -> None:
        self._group = group, offsets[0] // (4 * OP_WORDS)

    def dispatch_workgroups(self, *grid: int) -> None:
        self._launches.append((self._pipeline, *self._group, grid))

    def end(self) -> None:
        pass

    def finish(self) -> list[Launched]:
        return self._launches

    def submit(self, commands: Sequence[list[Launched]]) -> None:
        for launches in commands:
            for launch in launches:
                self._device.dispatch(*launch)


class Recording(NamedTuple):
    """A JSON document and the bytes to which it refers; the module says what they have."""

    document: dict[str, Any]
    data: bytes

    def write(self, folder: Path, name: str) -> None:
        """Write NAME.json and NAME.bin."""
        (folder / f"{name}.json").write_text(json.dumps(self.document), encoding="utf-8")
        (folder / f"{name}.bin").write_bytes(self.data)


class _Numbers(dict[Any, int]):
    """Numbers things in the order in which they are first asked for."""

    def __missing__(self, key: Any) -> int:
        self[key] = len(self)
        return self[key]


class Recorder:
    """Numbers what a recording names, and collects the bytes to which it refers."""

    def __init__(self, before: Sequence[DeviceStep]) -> None:
        """Take the buffers' first content from the writes of the steps ``before``."""
        self._kernels, self.buffers, self._groups = _Numbers(), _Numbers(), _Numbers()
        self.data = bytearray()
        for step in before:
            for buffer, at, words in step.writes:
                buffer.write(at, words)

    def put(self, piece: NDArray[Any]) -> tuple[int, int]:
        """Add bytes; return the first, and how many they are."""
        self.data.extend(piece.tobytes())
        return len(self.data) - piece.nbytes, piece.nbytes

    def bind(self, kernel: Kernel, group: Sequence[PaperBuffer]) -> tuple[int, int]:
        """Return the numbers of a kernel and of its bind group."""
        return self._kernels[kernel], self._groups[tuple(self.buffers[b] for b in group)]

    def finish(self, fused: Iterable[str], **more: Any) -> Recording:
        """Return the recording; fused: the ways that it has; more: entries of its document."""
        texts = _Numbers()
        pipelines = [_pipeline(kernel, texts) for kernel in self._kernels]
        document = {
            "fused": {way: shaders.fused_text(way) for way in fused},
            "packed_dot": shaders.packed_dot_text(),
            "texts": [*texts],
            "pipelines": pipelines,
            "buffers": [
                (b.size, b.is_uniform, None if b.bytes is None else self.put(b.bytes))
                for b in self.buffers
            ],
            "groups": [*self._groups],
        }
        return Recording(document | more, bytes(self.data))


def recording(
    before: Sequence[DeviceStep], steps: Sequence[DeviceStep], fused: Iterable[str]
) -> Recording:
    """Return a recording of steps; before: steps whose writes are the buffers' first content."""
    recorder = Recorder(before)
    documented = [
        {
            "launches": [
                (*recorder.bind(kernel, group), op, *grid)
                for kernel, group, op, grid in step.launches
            ],
            "writes": [
                (recorder.buffers[buffer], at, *recorder.put(words))
                for buffer, at, words in step.writes
            ],
            "read": (recorder.buffers[step.read[0]], *step.read[1:]) if step.read else None,
        }
        for step in steps
    ]
    return recorder.finish(fused, steps=documented)


def probe_recording(per_kind: int, fused: Iterable[str]) -> Recording:
    """Return a recording of the probe of single operations, each with NumPy's results.

    per_kind: how many triples there are of each kind; fused: the ways that it has
    """
    device: Any = PaperDevice()
    probe.examine(device, per_kind)
    recorded, triples = recording([], device.steps, fused), probe.all_triples(per_kind)
    data = bytearray(recorded.data)

    def put(array: NDArray[Any]) -> tuple[int, int]:
        data.extend(array.tobytes())
        return len(data) - array.nbytes, array.nbytes

    for step, operation in zip(recorded.document["steps"], probe.OPERATIONS, strict=True):
        right, kinds = probe.answers(operation, triples)
        step["name"], step["right"], step["kinds"] = operation.name, put(right), put(kinds)
        step["ignores_sign"] = operation.name == "round"
    return recorded._replace(data=bytes(data))


def _pipeline(kernel: Kernel, texts: "_Numbers") -> tuple[str, list[int]]:
    pieces = shaders.pieces(kernel, reports=True)
    return kernel.name, [-1 if piece is None else texts[piece] for piece in pieces if piece != ""]
