"""How the ops of a graph are computed. Refuses to know sequences, requests and sampling."""

from cutaway.backends.base import KV_BLOCK, Backend, Batch, Logits, Watch
from cutaway.errors import InputError
from cutaway.model import Graph
from cutaway.weights import GGUFFile

BACKENDS = ("reference",)

__all__ = ["BACKENDS", "KV_BLOCK", "Backend", "Batch", "Logits", "Watch", "load"]


def load(
    name: str, graph: Graph, file: GGUFFile, *, kv_blocks: int, threads: int | None = None
) -> Backend:
    """Prepare a graph and its weights for running. InputError for an unknown backend."""
    if name not in BACKENDS:
        raise InputError(f"backend must be one of {', '.join(BACKENDS)}, not {name!r}")
    from cutaway.backends.reference import ReferenceBackend

    if threads is not None:
        raise InputError(
            "threads cannot be set for the reference backend; NumPy's BLAS reads "
            "OPENBLAS_NUM_THREADS from the environment instead"
        )
    weights = {tensor: file.dequantize(tensor) for tensor in file.tensors}
    return ReferenceBackend(graph, weights, kv_blocks)
