"""Plans of a test's choice on a GPU and on the CPU; their results must be equal bit for bit."""

import numpy as np

from cutaway.base import _native
from cutaway.compute import calls
from cutaway.compute.backends import DRAFT_STATES, Batch
from cutaway.compute.backends.gpu.batches import Bounds
from cutaway.compute.backends.gpu.compile import compile_plan
from cutaway.compute.backends.gpu.flushing import FlushingRunner
from cutaway.compute.backends.gpu.memory import DeviceMemory, stored_layer
from cutaway.compute.backends.gpu.run import DeviceRunner
from cutaway.compute.backends.gpu.weights import DeviceWeights

CONTEXT = 512


def run_both(device, plan, matrices, batches, *, kv="f16", blocks=24):
    """Return the outputs of each batch, on the CPU and on the GPU. matrices: (format, packed)."""
    cpu = _native.Plan(_native.Pool(1), "", blocks, CONTEXT, "", kv)
    cpu.add(calls.plain(plan), [packed for _, packed in matrices])
    gpu = make_runner(device, plan, matrices, kv=kv, blocks=blocks)
    return [(cpu.run(batch).copy(), gpu.run(batch)) for batch in batches]


def make_runner(device, plan, matrices, *, kv="f16", blocks=24):
    """Return a runner of a plan on a device. matrices: see ``run_both``."""
    weights = DeviceWeights(device)
    for i, (format, packed) in enumerate(matrices):
        words = sum(_native.packed(later).nbytes for _, later in matrices[i:]) // 4
        weights.matrices["matrix", i, i] = weights._put(packed, format, words)
    attends = [call for call in plan if isinstance(call, calls.AttendCall)]
    layers = [stored_layer(call.shape, kv) for call in attends if call.shape.reads < 0]
    memory = DeviceMemory(device, layers, [], blocks, blocks + DRAFT_STATES)
    memory.window = max((call.shape.window for call in attends), default=0)
    program = compile_plan(plan, weights, memory, kv, Bounds(0, 0, CONTEXT, blocks))
    if not device.flushes:
        return DeviceRunner(device, program, [])
    beside = _native.Plan(_native.Pool(1), "", blocks, CONTEXT, "", kv, DRAFT_STATES)
    return FlushingRunner(device, program, [], plan, beside)


def assert_same(pairs):
    for on_cpu, on_gpu in pairs:
        np.testing.assert_array_equal(on_cpu.view(np.uint32), on_gpu.view(np.uint32))


def rows_apart(count):
    """Return a batch with token i as row i; each is a sequence of its own at position 0."""
    rows = np.arange(count, dtype=np.int32)
    zeros = np.zeros(count, np.int32)
    return Batch(rows, zeros, rows, np.zeros((count, 1), np.int32), rows)
