"""The GPUs of this machine: which there are, which can be used, and the first of these, opened.

Knows what kernels need of an adapter; its arithmetic is asked of ``probe.py``.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import gettempdir
from typing import Any

from cutaway.compute.backends.gpu.device import STORAGE_BUFFERS, THREADS, WORKGROUP_BYTES, Device
from cutaway.compute.backends.gpu.probe import choose_fused
from cutaway.errors import CutawayError


def adapters() -> list[Any]:
    """The adapters of this machine that can compute, as wgpu lists them; none without wgpu."""
    import wgpu

    with _runtime_folder():
        every_adapter = wgpu.gpu.enumerate_adapters_sync()
    # OpenGL has no WGSL of its own: what it is translated to promises less.
    return [adapter for adapter in every_adapter if adapter.info["backend_type"] != "OpenGL"]


@contextmanager
def _runtime_folder() -> Iterator[None]:
    """XDG_RUNTIME_DIR set, without which drivers' window systems print errors that nobody needs."""
    is_set = "XDG_RUNTIME_DIR" in os.environ
    if not is_set:
        os.environ["XDG_RUNTIME_DIR"] = gettempdir()
    try:
        yield
    finally:
        if not is_set:
            del os.environ["XDG_RUNTIME_DIR"]


def open_device(fused: str | None = None) -> Device:
    """The first adapter that has what the kernels need. CutawayError where none has.

    fused: see ``Device``; None takes what a probe chooses
    """
    try:
        candidates = adapters()
    except ImportError as error:
        raise CutawayError(
            "the gpu backend needs wgpu: pip install 'cutaway[gpu]', or take another backend"
        ) from error
    for adapter in candidates:
        if not _lacks(adapter):
            device = Device(adapter)
            if fused is None:
                choose_fused(device)
            else:
                device.fused = fused
            return device
    reasons = "".join(f"; {adapter.info['device']} has {_lacks(adapter)}" for adapter in candidates)
    raise CutawayError(
        "this machine has no GPU that can be used through WebGPU"
        f"{reasons}: install its Vulkan driver, or take another backend"
    )


def _lacks(adapter: Any) -> str:
    """What an adapter has too little of; "" where it has all that kernels need."""
    least = {
        "max-storage-buffers-per-shader-stage": STORAGE_BUFFERS,
        "max-compute-invocations-per-workgroup": THREADS,
        "max-compute-workgroup-storage-size": WORKGROUP_BYTES,
    }
    short = [name for name, number in least.items() if adapter.limits[name] < number]
    return ", ".join(f"{name} {adapter.limits[name]}" for name in short)
