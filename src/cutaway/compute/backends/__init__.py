"""The backends, which compute the ops of a graph: their names, their sizes, and how one is made."""

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from cutaway.base.checks import shown
from cutaway.compute.backends.base import (
    Backend,
    Batch,
    Bytes,
    Computer,
    Edit,
    HostSampling,
    Inspectable,
    Logits,
    inspectable,
)
from cutaway.compute.backends.layout import (
    DRAFT_STATES,
    KV_BLOCK,
    KV_FORMATS,
    STATE_TOKENS,
    STEP_ROWS,
    KVGroup,
    KVLayout,
    StateGroup,
    check_kv,
)
from cutaway.compute.model import Graph
from cutaway.errors import CutawayError, FormatError, InputError
from cutaway.files.weights import ModelFile, TensorInfo
from cutaway.files.weights.cursor import quote

if TYPE_CHECKING:
    from cutaway.base.offload import Offload
    from cutaway.compute.backends.gpu.record import Recording
    from cutaway.compute.backends.gpu.report import Comparison
    from cutaway.compute.lowering.packing import Packing

BACKENDS = ("cpu", "gpu", "reference")
MAX_THREADS = 1023  # of the native pool

__all__ = [
    "BACKENDS",
    "DRAFT_STATES",
    "KV_BLOCK",
    "KV_FORMATS",
    "STATE_TOKENS",
    "STEP_ROWS",
    "Backend",
    "Batch",
    "Bytes",
    "Computer",
    "Edit",
    "HostSampling",
    "Inspectable",
    "KVGroup",
    "KVLayout",
    "Logits",
    "StateGroup",
    "bits_of",
    "check_kv",
    "check_native",
    "default",
    "inspectable",
    "kv_layout",
    "load",
    "report_gpu",
    "tiers",
    "weight_bytes",
]


def default() -> str:
    """Return the backend to use if none is named: cpu if native code was built, else reference."""
    return "cpu" if find_spec("cutaway.base._native") else "reference"


def bits_of(name: str) -> str:
    """Return the backend that computes the same bits as this one: for ``gpu`` it is ``cpu``."""
    return "cpu" if name == "gpu" else name


def check_built(name: str) -> None:
    """Raise InputError if a backend needs native code or a package that was not installed."""
    if name != "reference" and default() == "reference":
        raise InputError(
            "backend",
            f": {name} needs cutaway's native part, which was not built here; leave it out",
        )
    if name == "gpu" and find_spec("wgpu") is None:
        raise InputError("backend", ": gpu needs wgpu: pip install 'cutaway[gpu]', or leave it out")


def check_native() -> None:
    """Raise CutawayError if native code was built but cannot be imported, as in subinterpreters."""
    try:
        import cutaway.base._native  # noqa: F401
    except ModuleNotFoundError:
        return
    except ImportError as error:
        raise CutawayError(str(error)) from error


def kv_layout(graph: Graph, kv: str = "f16", name: str | None = None) -> KVLayout:
    """Return how a backend keeps the keys and values of a graph.

    kv: what ``check_kv`` returned; name: one of BACKENDS; None is the default backend
    """
    if (name or default()) != "reference":  # a block has the same bytes in cpu and gpu
        from cutaway.compute.backends import packed

        return packed.kv_layout(graph, kv)
    from cutaway.compute.backends import reference

    return reference.kv_layout(graph)


def weight_bytes(graph: Graph, tensors: Mapping[str, TensorInfo], name: str | None = None) -> int:
    """Return the bytes of memory that a graph's weights take; name: see ``kv_layout``."""
    if (name or default()) != "reference":
        from cutaway.compute.lowering import packing

        return packing.weight_bytes(graph, tensors)
    return sum(4 * prod(info.shape) for info in tensors.values())


def stored_bytes(graph: Graph, tensors: Mapping[str, TensorInfo], name: str | None = None) -> int:
    """Return the bytes of the tensors that a backend reads from the file without keeping a copy."""
    if (name or default()) != "reference":
        from cutaway.compute.lowering import packing

        return packing.stored_bytes(graph, tensors)
    return 0


def report_gpu(
    graph: Graph, file: ModelFile, context: int, kv: str
) -> "tuple[dict[str, Any], list[Comparison]]":
    """Describe the GPU, and compare its results with the CPU's; see ``gpu.report``."""
    from cutaway.compute.backends.gpu.report import report

    return report(graph, file, context, kv)


def tiers() -> tuple[str, ...]:
    """Return this machine's instruction sets for which native code is compiled, best first."""
    from cutaway.compute.backends import cpu

    return cpu.tiers()


def import_backend(name: str | None) -> None:
    """Import what ``load`` needs: beside another thread's work each module waits for the lock."""
    if (name or default()) == "cpu":
        import cutaway.compute.backends.cpu  # noqa: F401


def load(
    name: str | None,
    graph: Graph,
    file: ModelFile,
    *,
    kv_blocks: int,
    context: int,
    threads: int | None = None,
    kv: str = "f16",
    beside: Backend | None = None,
    offload: "Offload | None" = None,
    on_progress: Callable[[int], None] = lambda _done: None,
) -> Backend:
    """Prepare a graph and its weights for running. InputError for an unknown backend.

    name: None takes the default, and logs a warning if that is the reference backend
    kv: how keys and values are stored, as ``check_kv`` returned it
    beside: a backend of the same name that never runs at the same time; the new backend uses its
        threads, or its GPU
    offload: the file that keeps the weights; None keeps them in memory
    on_progress: is called with the number of bytes of weights that are ready
    """
    if name is None and (name := default()) != "cpu":
        _warn_of_reference()
    _check_orders(graph, file)
    if name == "cpu":
        from cutaway.compute.backends.cpu import CpuBackend

        pool = beside.pool if isinstance(beside, CpuBackend) else None
        return CpuBackend(
            graph, file, kv_blocks=kv_blocks, context=context, threads=threads, pool=pool,
            kv=kv, offload=offload, on_progress=on_progress,
        )  # fmt: skip
    if name == "gpu":
        _check_gpu(offload)
        sizes = {"kv_blocks": kv_blocks, "context": context, "threads": threads, "kv": kv}
        return _load_gpu(graph, file, sizes, beside, on_progress)
    if name != "reference":
        raise InputError("backend", f" must be one of {', '.join(BACKENDS)}, not {shown(name)}")
    _check_reference(threads, offload)
    from cutaway.compute.backends.reference import ReferenceBackend

    weights = {tensor: file.dequantize_scaled(tensor) for tensor in file.tensors}
    return ReferenceBackend(graph, weights, kv_blocks, kv)


def _load_gpu(
    graph: Graph,
    file: ModelFile,
    sizes: dict[str, Any],
    beside: Backend | None,
    on_progress: Callable[[int], None],
) -> Backend:
    """Load a model onto a GPU, and check its kernels; sizes: arguments of ``load``, by name."""
    from cutaway.compute.backends.gpu import GpuBackend
    from cutaway.compute.backends.gpu.check import check_kernels, load_cpu
    from cutaway.compute.backends.gpu.recheck import Recheck, recheck_interval

    interval = recheck_interval()
    device = beside.device if isinstance(beside, GpuBackend) else None
    backend = GpuBackend(graph, file, on_progress=on_progress, device=device, **sizes)
    check_kernels(backend, graph, lambda: load_cpu(backend, graph, file))
    if interval:
        backend.recheck = Recheck(backend, load("cpu", graph, file, **sizes), graph, interval)
    return backend


def record_page(packing: "Packing", context: int) -> "dict[str, Recording]":
    """Return what a page runs on its reader's GPU, by the names of its files."""
    from cutaway.compute.backends.gpu import pages

    return pages.record_page(packing, context)


def _warn_of_reference() -> None:
    from logging import getLogger

    getLogger("cutaway").warning(
        "cutaway was installed without its native part: the reference backend computes, "
        "which is about ten times slower"
    )


def _check_orders(graph: Graph, file: ModelFile) -> None:
    """Raise FormatError if a column order is no permutation: its numbers are read as indices."""
    for name in graph.orders.values():
        order = file.dequantize(name)
        if not np.array_equal(np.sort(order), np.arange(len(order))):
            raise FormatError(
                f"the tensor {quote(name)} must hold each number from 0 to {len(order) - 1} once; "
                "get the model again"
            )


def _check_gpu(offload: "Offload | None") -> None:
    if offload is not None:
        raise InputError(
            "offload_folder",
            " cannot be set for the gpu backend, whose weights are in the GPU's memory",
        )


def _check_reference(threads: int | None, offload: "Offload | None") -> None:
    if threads is not None:
        raise InputError(
            "threads",
            " cannot be set for the reference backend; NumPy's BLAS reads "
            "OPENBLAS_NUM_THREADS from the environment instead",
        )
    if offload is not None:
        raise InputError(
            "offload_folder",
            " cannot be set for the reference backend, which computes with all "
            "weights in float32 in memory; leave it or the backend out",
        )
