"""Loads a model's weights into a backend's memory, or into a file on a disk.

Knows whether the weights fit, and how many are loaded; not what they are for.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from cutaway.base.progress import Bar, megabytes, say
from cutaway.base.resources import free_memory
from cutaway.compute import backends
from cutaway.compute.backends import Backend
from cutaway.compute.loading.setup import Setup
from cutaway.compute.model import Graph
from cutaway.errors import InputError
from cutaway.files.weights import ModelFile

if TYPE_CHECKING:
    from cutaway.base.offload import Offload

_SOON_S = 1.0  # a load shorter than this shows no progress


def prepare_weights(
    graph: Graph,
    file: ModelFile,
    setup: Setup,
    name: str,
    *,
    context: int,
    kv_tokens: int,
    beside: int,
    writes: bool,
    tells: bool,
    show: bool,
    on_progress: Callable[[int], object],
) -> Callable[[], Backend]:
    """Return what loads the weights into a backend. InputError if they do not fit into memory.

    name: the model's name, for errors and progress
    beside: bytes that are loaded after the weights, and must fit, too
    writes: whether the model writes one token after the other
    tells: whether to report on the terminal which weights are kept on a disk
    show: whether to show a progress bar on the terminal
    on_progress: is called with how many bytes are ready
    """
    backends.import_backend(setup.backend)
    size = sum(info.nbytes for info in file.tensors.values())
    size -= backends.stored_bytes(graph, file.tensors, setup.backend)
    offload = _offload(graph, setup, name, kv_tokens, tells=tells)
    memory = free_memory(swap=False) if show and writes else None
    if offload is None and setup.backend != "gpu":  # the gpu backend checks its memory itself
        _check_fits(name, size + beside)

    def load() -> Backend:
        with Bar(f"loading {name}", size, show=show, after=_SOON_S) as bar:

            def report(done: int) -> None:
                bar.update(done)
                on_progress(done)

            backend = backends.load(
                setup.backend, graph, file,
                kv_blocks=kv_tokens // backends.KV_BLOCK, context=context,
                threads=setup.threads, kv=setup.kv, offload=offload, on_progress=report,
            )  # fmt: skip
            took_long = bar.is_due()  # else measuring would be felt
        if took_long and memory and offload is None and backend.name == "cpu":
            from cutaway.compute.loading.fit import MemoryFit, measure_bandwidth  # seldom told
            from cutaway.compute.loading.info import read_bytes

            fit = MemoryFit(size, backend.kv, read_bytes(graph, file.tensors), kv_tokens, memory)
            say(f"{name}: {fit.describe(measure_bandwidth(fit.active, backend.threads))}")
        return backend

    return load


def _offload(
    graph: Graph, setup: Setup, name: str, kv_tokens: int, *, tells: bool
) -> "Offload | None":
    """Return the file that keeps the weights; None keeps them in memory."""
    if setup.offload_folder is None:
        return None
    from cutaway.base.offload import Offload

    kv = backends.kv_layout(graph, setup.kv).bytes_stored(kv_tokens)

    def tell(message: str) -> None:
        if tells:
            say(f"{name}: {message}")

    return Offload(Path(setup.offload_folder), kv, tell)


def _check_fits(name: str, size: int) -> None:
    """Raise InputError if the weights do not fit into the free memory.

    Without this check the operating system would kill a process in the middle of the load.
    """
    memory = free_memory()
    if memory is not None and size > memory.free:
        raise InputError(
            f"{name} needs {megabytes(size)} of memory for its weights, and only "
            f"{megabytes(memory.free)} of {memory.owner} are free: end other programs, raise "
            "the limit, take a model of fewer parameters or of fewer bits a weight, or have "
            "its weights read from a disk (offload_folder, --offload-folder DIR)"
        )
