"""Lists the GPUs of this machine, and opens the first one that can run the kernels.

Knows the limits that an adapter must have for the kernels; ``probe.py`` tests its arithmetic.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import gettempdir
from typing import Any

from cutaway.base.checks import shown
from cutaway.compute.backends.gpu.device import STORAGE_BUFFERS, THREADS, WORKGROUP_BYTES, Device
from cutaway.compute.backends.gpu.probe import choose_fused
from cutaway.compute.backends.gpu.shaders import FUSED, TESTED
from cutaway.errors import CutawayError, InputError


def adapters() -> list[Any]:
    """Return this machine's adapters except OpenGL's, in wgpu's order; ImportError without wgpu."""
    import wgpu

    with _runtime_folder():
        every_adapter = wgpu.gpu.enumerate_adapters_sync()
    # WGSL is translated for OpenGL into a language that guarantees less.
    return [adapter for adapter in every_adapter if adapter.info["backend_type"] != "OpenGL"]


@contextmanager
def _runtime_folder() -> Iterator[None]:
    """Set XDG_RUNTIME_DIR if it is unset; otherwise drivers' window systems print errors."""
    is_set = "XDG_RUNTIME_DIR" in os.environ
    if not is_set:
        os.environ["XDG_RUNTIME_DIR"] = gettempdir()
    try:
        yield
    finally:
        if not is_set:
            del os.environ["XDG_RUNTIME_DIR"]


def open_device(fused: str | None = None) -> Device:
    """Open the first adapter whose limits suffice. CutawayError if none does, or bits are wrong.

    fused: see ``Device``; if it is None, ``choose_fused`` probes the device and chooses
    """
    if fused not in (None, *FUSED, *TESTED):
        raise InputError(f"CUTAWAY_GPU_FMA must be one of {', '.join(FUSED)}, not {shown(fused)}")
    device = open_first()
    if fused is None:
        choose_fused(device)
    else:
        device.fused = fused
    return device


def open_first() -> Device:
    """Open the first adapter whose limits suffice, without a probe; CutawayError if none does."""
    reasons = ""
    for adapter in adapters():
        if lacks := _lacks(adapter):
            reasons += f"; {adapter.info['device']} has {lacks}"
            continue
        try:
            return Device(adapter)
        except RuntimeError as error:  # the driver's reason
            reasons += f"; {adapter.info['device']} cannot be opened ({error})"
    raise CutawayError(
        "this machine has no GPU that can be used through WebGPU"
        f"{reasons}: install its Vulkan driver, or take another backend"
    )


def _lacks(adapter: Any) -> str:
    """Return the limits of the adapter that are too low for the kernels, as text; "" if none is."""
    least = {
        "max-storage-buffers-per-shader-stage": STORAGE_BUFFERS,
        "max-compute-invocations-per-workgroup": THREADS,
        "max-compute-workgroup-storage-size": WORKGROUP_BYTES,
    }
    short = [name for name, number in least.items() if adapter.limits[name] < number]
    return ", ".join(f"{name} {adapter.limits[name]}" for name in short)
