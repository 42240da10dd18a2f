"""A model's own program against the CPU, bit for bit, before it may be used on a device.

Knows which rows reach every kernel of a program, and how a device and the texts of its kernels are
named where it is written down that they were right. A probe of single operations is not enough:
drivers' compilers decide by kernel what they fuse.
"""

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cutaway.compute.backends.base import Backend, Batch, inspectable
from cutaway.compute.backends.gpu import shaders
from cutaway.compute.backends.gpu.device import Device
from cutaway.compute.backends.layout import KV_BLOCK
from cutaway.compute.model import Graph
from cutaway.compute.model.ops.rows import EmbedTokens
from cutaway.errors import CutawayError
from cutaway.files.weights import ModelFile

if TYPE_CHECKING:
    from cutaway.compute.backends.gpu import GpuBackend

ROWS = (1, 2, 4, 8, 40)
"""Rows of the steps: as few as each kernel for few has, and so many that tiles are taken."""
BLOCKS = -(-max(ROWS) // KV_BLOCK)


def check(backend: "GpuBackend", graph: Graph, file: ModelFile) -> None:
    """Compute a short text on both. CutawayError where a bit differs, naming the first tensor.

    Nothing is done where the same kernels were right on this device before.
    """
    earlier, kernels = _checked_before(backend.device), _kernels(backend)
    if kernels <= earlier or not any(isinstance(op, EmbedTokens) for op in graph.ops):
        return
    cpu = _on_cpu(backend, graph, file)
    for batch in batches(graph, backend.context):
        if _differs(cpu, backend, batch):
            tensor = first_difference(cpu, backend, graph, batch)
            raise CutawayError(
                f"the GPU {backend.device.name} computes other bits than the CPU in {tensor} of "
                "this model: take another backend, and tell us what cutaway gpu prints"
            )
    _note(backend.device, earlier | kernels)


def _on_cpu(backend: "GpuBackend", graph: Graph, file: ModelFile) -> Backend:
    from cutaway.compute import backends

    blocks = min(BLOCKS, backend.kv_blocks)
    context = min(backend.context, KV_BLOCK * blocks)
    return backends.load(
        "cpu", graph, file, kv_blocks=blocks, context=context, threads=backend.threads,
        kv=backend.kv_format,
    )  # fmt: skip


def batches(graph: Graph, context: int) -> Iterator[Batch]:
    """Texts of ROWS tokens, spread over the vocabulary, each from its first token on."""
    embed = next(op for op in graph.ops if isinstance(op, EmbedTokens))
    tokens = graph.shapes[embed.weights["weight"]][0]
    table = np.arange(BLOCKS, dtype=np.int32)[None]
    for rows in ROWS:
        if rows <= context:
            positions = np.arange(rows, dtype=np.int32)
            ids = ((positions.astype(np.int64) + rows) * 7919 % tokens).astype(np.int32)
            yield Batch(ids, positions, np.zeros(rows, np.int32), table, positions)


def _differs(cpu: Backend, gpu: Backend, batch: Batch) -> bool:
    return cpu.run(batch).tobytes() != gpu.run(batch).tobytes()


def first_difference(cpu: Backend, gpu: Backend, graph: Graph, batch: Batch) -> str:
    """The first tensor of a graph whose numbers differ; "its logits" where none does alone."""
    for op in graph.ops:
        name = op.out.name
        on_cpu, on_gpu = (
            inspectable(backend).tap(batch, [name])[1][name] for backend in (cpu, gpu)
        )
        if on_cpu.tobytes() != on_gpu.tobytes():
            return f"{name} ({op.kind})"
    return "its logits"


# -- what was right before -------------------------------------------------------------------------


def _kernels(backend: "GpuBackend") -> set[str]:
    """The texts of a program's kernels, by their hashes."""
    kernels = {dispatch.kernel for dispatch in backend.program.dispatches}
    texts = (shaders.text(kernel, backend.device.fused) for kernel in kernels)
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
    devices[device.identity] = sorted(hashes)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(devices))
    except OSError:  # it is checked again the next time
        return
