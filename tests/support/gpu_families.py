"""Compares families on this machine's first GPU with the CPU: python -m support.gpu_families NAME…

A process of its own, since the drivers of a process are chosen when it starts (VK_ICD_FILENAMES).
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import numpy as np

from cutaway.compute import backends
from cutaway.compute.backends import Batch, gpu
from cutaway.compute.backends.gpu.adapters import open_device
from cutaway.compute.backends.gpu.device import Device
from cutaway.compute.backends.gpu.flushing import FlushingRunner
from cutaway.compute.loading.model import LoadedModel
from cutaway.compute.loading.setup import Setup
from support import random_models

STEPS = (12, 1, 2, 9, 1)  # rows


def compare(name: str, device: Device) -> int:
    """Return how many steps have the CPU's logits."""
    with TemporaryDirectory() as folder:
        random_models.save(name, Path(folder))
        model = LoadedModel.open(folder, Setup(), weights=False)
        with model.open_file() as file:
            cpu = backends.load("cpu", model.graph, file, kv_blocks=24, context=64, threads=1)
            on_gpu = gpu.GpuBackend(
                model.graph, file, kv_blocks=24, context=64, threads=1, device=device
            )
    start, same, rng = 0, 0, np.random.default_rng(5)
    for count in STEPS:
        tokens = rng.integers(0, model.tokenizer.vocab_size, count).astype(np.int32)
        positions = np.arange(start, start + count, dtype=np.int32)
        rows = np.unique([0, count // 2, count - 1]).astype(np.int32)
        zeros, blocks = np.zeros(count, np.int32), np.array([[7, 3]], np.int32)
        batch = Batch(tokens, positions, zeros, blocks, rows)
        same += cpu.run(batch).tobytes() == on_gpu.run(batch).tobytes()
        start += count
    return same


def main() -> None:
    device = open_device()
    print(f"{device.name}, fma {device.fused}, flushes {device.flushes}", flush=True)
    is_same, run_again = True, FlushingRunner._run_again
    for name in sys.argv[1:]:
        counter = patch.object(FlushingRunner, "_run_again", autospec=True, side_effect=run_again)
        with counter as again:
            same = compare(name, device)
        count = again.call_count
        print(f"{name}: {same} of {len(STEPS)} steps, {count} computed again", flush=True)
        is_same &= same == len(STEPS)
    sys.exit(0 if is_same else 1)


if __name__ == "__main__":
    main()
