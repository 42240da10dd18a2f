"""Compares a model's program with the CPU, bit for bit, before a device may run it.

Knows with how many rows each kernel of linear ops runs, and the file that lists which kernels were
right on which device. A probe of single operations is not enough: a driver's compiler decides
kernel by kernel what it fuses.
"""

import json
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Protocol

import numpy as np

from cutaway.compute.backends.base import Backend, Batch, inspectable
from cutaway.compute.backends.gpu import shaders
from cutaway.compute.backends.gpu.device import Device
from cutaway.compute.backends.gpu.launches import StepSize, launches
from cutaway.compute.backends.gpu.program import Program
from cutaway.compute.backends.gpu.run import CHUNK
from cutaway.compute.backends.layout import KV_BLOCK
from cutaway.compute.model import Graph
from cutaway.compute.model.ops.rows import EmbedTokens
from cutaway.errors import CutawayError
from cutaway.files.weights import ModelFile

STEPS = ((0, 1), (0, 2), (0, 4), (0, 8), (0, 40), (0, 260), (260, 1))
"""The first position of each step, and how many rows it has. There is a step for each kernel of few
rows, a step for ``linear_many``, a text of two chunks, and a token after this text, for which
attention gives each chunk a workgroup."""
_TOKENS = max(first + rows for first, rows in STEPS)
_LOGIT_ROWS = 40  # the most rows of a step with logits: a row of them may be a megabyte


class DeviceBackend(Backend, Protocol):
    """A backend of a device, as the check needs it."""

    device: Device
    context: int
    kv_format: str

    @property
    def program(self) -> Program:
        """The program that a step runs."""
        ...


def unchecked_kernels(backend: DeviceBackend, graph: Graph) -> set[str]:
    """Return a hash of each kernel that was not yet right on this device; none for no tokens."""
    embeds = any(isinstance(op, EmbedTokens) for op in graph.ops)
    return _kernels(backend, graph) - _checked_before(backend.device) if embeds else set()


def check_kernels(backend: DeviceBackend, graph: Graph, open_cpu: Callable[[], Backend]) -> None:
    """Run short texts on GPU and CPU. CutawayError names the first tensor with a bit that differs.

    Nothing is run if the same kernels were right on this device before, or if no op embeds tokens.
    """
    kernels = unchecked_kernels(backend, graph)
    if not kernels:
        return
    cpu = open_cpu()
    for batch in batches(graph, room_for_steps(backend)):
        if _differs(cpu, backend, batch):
            tensor = first_difference(cpu, backend, graph, batch)
            raise CutawayError(
                f"the GPU {backend.device.name} computes other bits than the CPU in {tensor} of "
                "this model: take another backend, and report these names, please"
            )
    _note(backend.device, kernels)


def room_for_steps(backend: DeviceBackend) -> int:
    """Return how many tokens of a text the backend has room for, up to the most of any step."""
    return min(_TOKENS, backend.context, KV_BLOCK * backend.kv_blocks)


def load_cpu(backend: DeviceBackend, graph: Graph, file: ModelFile) -> Backend:
    """Return a cpu backend of the same model, with room for the steps."""
    from cutaway.compute.backends.cpu import CpuBackend

    room = room_for_steps(backend)
    return CpuBackend(
        graph, file, kv_blocks=-(-room // KV_BLOCK), context=room, threads=backend.threads,
        kv=backend.kv_format,
    )  # fmt: skip


def steps(graph: Graph, room: int) -> list[tuple[int, int]]:
    """Return the steps that fit into the room and that the model can run."""
    reads_whole = any(op.bias.reads_keys for op in graph.attends)  # a text in one step
    return [
        (first, rows)
        for first, rows in STEPS
        if first + rows <= room and not (first and reads_whole)
    ]


def batches(graph: Graph, room: int) -> Iterator[Batch]:
    """Yield a batch for each step: one sequence, whose token ids are spread over the vocabulary."""
    embed = next(op for op in graph.ops if isinstance(op, EmbedTokens))
    tokens = graph.shapes[embed.weights["weight"]][0]
    table = np.arange(-(-room // KV_BLOCK), dtype=np.int32)[None]
    for first, rows in steps(graph, room):
        positions = np.arange(first, first + rows, dtype=np.int32)
        ids = ((positions.astype(np.int64) + rows) * 7919 % tokens).astype(np.int32)
        logit_rows = np.arange(max(0, rows - _LOGIT_ROWS), rows, dtype=np.int32)
        yield Batch(ids, positions, np.zeros(rows, np.int32), table, logit_rows)


def _differs(cpu: Backend, gpu: Backend, batch: Batch) -> bool:
    return cpu.run(batch).tobytes() != gpu.run(batch).tobytes()


def first_difference(cpu: Backend, gpu: Backend, graph: Graph, batch: Batch) -> str:
    """Name the first tensor whose bits differ in a tap; "its logits" if no tensor's bits do."""
    for op in graph.ops:
        name = op.out.name
        on_cpu, on_gpu = (
            inspectable(backend).tap(batch, [name])[1][name] for backend in (cpu, gpu)
        )
        if on_cpu.tobytes() != on_gpu.tobytes():
            return f"{name} ({op.kind})"
    return "its logits"


# -- what was right before -------------------------------------------------------------------------


def _kernels(backend: DeviceBackend, graph: Graph) -> set[str]:
    """Return a hash of the text of each kernel that the steps run."""
    sizes = [
        StepSize(rows, min(rows, _LOGIT_ROWS), chunks=(first + rows - 1) // CHUNK + 1, stored=1)
        for first, rows in steps(graph, room_for_steps(backend))
    ]
    run = [launch for size in sizes for launch in launches(backend.program, size)]
    kernels, device = {launch.dispatch.kernel for launch in run}, backend.device
    texts = (shaders.text(kernel, device.fused, device.flushes) for kernel in kernels)
    return {sha256(text.encode()).hexdigest()[:16] for text in texts}


def _file() -> Path:
    from cutaway.files.hub.catalog import cache_dir

    return cache_dir() / "gpu-checks.json"


def _checked_before(device: Device) -> set[str]:
    try:
        return {*json.loads(_file().read_text()).get(device.identity, [])}
    except (OSError, ValueError):
        return set()


def _note(device: Device, hashes: set[str]) -> None:
    path = _file()
    try:
        devices = json.loads(path.read_text())
    except (OSError, ValueError):
        devices = {}
    devices[device.identity] = sorted({*devices.get(device.identity, ()), *hashes})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(devices))
    except OSError:  # the kernels are checked again next time
        return
