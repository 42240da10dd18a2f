"""Reports how what a GPU computes compares with the right numbers, in arithmetic and in ops.

Knows how a device is described; ``probe.py`` and ``check.py`` know what is computed.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from cutaway.compute.backends.base import Backend, Batch, inspectable
from cutaway.compute.backends.gpu import GpuBackend
from cutaway.compute.backends.gpu.adapters import open_first
from cutaway.compute.backends.gpu.check import batches, load_cpu, room_for_steps
from cutaway.compute.backends.gpu.device import Device
from cutaway.compute.backends.gpu.probe import all_triples, examine
from cutaway.compute.backends.layout import KV_BLOCK
from cutaway.compute.model import Graph
from cutaway.files.weights import ModelFile

_TAPPED_ROWS = 40  # the most rows of a step whose tensors are all read
_CONTEXT = 512  # how many tokens there is room for


class Comparison(NamedTuple):
    """How some numbers that a GPU computed compare with the right ones.

    part       "arithmetic", "ops" or "steps"
    name       an operation and its way of multiply-add, or an op's kind, or the rows of a step
    numbers    how many numbers were compared; differing: how many of them have other bits
    allowed    how many differing numbers are allowed: denormals that the device flushes, and all
               numbers of a way of multiply-add that is not used
    first      the first tensor that differs; "" if none does
    """

    part: str
    name: str
    numbers: int
    differing: int
    allowed: int = 0
    first: str = ""

    @property
    def is_right(self) -> bool:
        """Whether all differing numbers are allowed."""
        return self.differing <= self.allowed


def report(
    graph: Graph, file: ModelFile, context: int, kv: str
) -> tuple[dict[str, Any], list[Comparison]]:
    """Describe the GPU that the gpu backend takes, and compare what it computes.

    context: the model's; kv: what ``check_kv`` returned. CutawayError if no GPU can be opened.
    """
    device = open_first()
    rows = [*_compare_arithmetic(device)]
    backend = GpuBackend(
        graph, file, kv_blocks=_CONTEXT // KV_BLOCK, context=context, kv=kv, device=device
    )
    cpu, ops = load_cpu(backend, graph, file), dict[str, Comparison]()
    for batch in batches(graph, room_for_steps(backend)):
        if len(batch.tokens) <= _TAPPED_ROWS:
            _compare_ops(cpu, backend, graph, batch, ops)
        right, logits = cpu.run(batch), backend.run(batch)
        name = f"{len(batch.tokens)} rows at {batch.positions[0]}"
        rows.append(Comparison("steps", name, logits.size, _count(right, logits)))
    return describe(device), [*rows, *ops.values()]


def describe(device: Device) -> dict[str, Any]:
    """Return all that may change a device's bits, its limits, and what the probe has chosen."""
    import wgpu

    info = device.adapter.info
    return {
        "name": info["device"], "type": info["adapter_type"], "vendor": info["vendor"],
        "driver": info["description"], "api": info["backend_type"], "wgpu": wgpu.__version__,
        "buffer_bytes": device.binding, "fused": device.fused, "flushes": device.flushes,
    }  # fmt: skip


def _compare_arithmetic(device: Device) -> Iterator[Comparison]:
    """Probe each way of a multiply-add up to the first right one, as ``choose_fused`` does."""
    count = len(all_triples()[0])
    for way in device.ways:
        device.fused = way
        results = examine(device)
        is_right = not any(result.wrong_normal for result in results)
        is_last = way == device.ways[-1]
        for operation, wrong, wrong_normal in results:
            allowed = wrong if not (is_right or is_last) else wrong - wrong_normal
            yield Comparison("arithmetic", f"{operation}, fma {way}", count, wrong, allowed)
        if is_right:
            device.flushes = any(result.wrong for result in results)
            return


def _compare_ops(
    cpu: Backend, gpu: Backend, graph: Graph, batch: Batch, ops: dict[str, Comparison]
) -> None:
    """Compare the tensors of all ops, and add the counts to the comparison of each kind of op."""
    names = [op.out.name for op in graph.ops]
    (_, right), (_, tensors) = (inspectable(b).tap(batch, names) for b in (cpu, gpu))
    for op in graph.ops:
        name = op.out.name
        so_far = ops.get(op.kind, Comparison("ops", op.kind, 0, 0))
        differing = _count(right[name], tensors[name])
        ops[op.kind] = so_far._replace(
            numbers=so_far.numbers + tensors[name].size,
            differing=so_far.differing + differing,
            first=so_far.first or (name if differing else ""),
        )


def _count(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> int:
    return int((a.view(np.uint32) != b.view(np.uint32)).sum())
