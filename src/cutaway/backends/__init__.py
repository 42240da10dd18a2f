"""How the ops of a graph are computed. Refuses to know sequences, requests and sampling."""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from cutaway.backends.base import KV_BLOCK, Backend, Batch, Logits, Watch
from cutaway.errors import InputError
from cutaway.model import Graph
from cutaway.weights import ModelFile

if TYPE_CHECKING:
    from cutaway._native import Pool

BACKENDS = ("cpu", "reference")
MAX_THREADS = 1023  # of the native pool

__all__ = ["BACKENDS", "KV_BLOCK", "Backend", "Batch", "Logits", "Watch", "default", "load"]


def default() -> str:
    """The backend of a request that names none: the native one where it was built."""
    return "cpu" if find_spec("cutaway._native") else "reference"


def load(
    name: str,
    graph: Graph,
    file: ModelFile,
    *,
    kv_blocks: int,
    context: int,
    threads: int | None = None,
    pool: "Pool | None" = None,
) -> Backend:
    """Prepare a graph and its weights for running. InputError for an unknown backend.

    pool: threads of another backend that never runs at the same time, instead of ``threads``
    """
    if name == "cpu":
        from cutaway.backends.cpu import CpuBackend

        return CpuBackend(
            graph, file, kv_blocks=kv_blocks, context=context, threads=threads, pool=pool
        )
    if name != "reference":
        raise InputError(f"backend must be one of {', '.join(BACKENDS)}, not {name!r}")
    from cutaway.backends.reference import ReferenceBackend

    if threads is not None:
        raise InputError(
            "threads cannot be set for the reference backend; NumPy's BLAS reads "
            "OPENBLAS_NUM_THREADS from the environment instead"
        )
    weights = {tensor: file.dequantize(tensor) for tensor in file.tensors}
    return ReferenceBackend(graph, weights, kv_blocks)
