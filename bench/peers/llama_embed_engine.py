"""llama.cpp through llama-cpp-python, for vectors of texts; see worker.py.

Its own batching: as many texts as fit into 512 tokens are computed together.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

_ROWS = 512


class Engine:
    """Of a GGUF file."""

    def __init__(self, path: str, threads: int) -> None:
        library = import_module("llama_cpp")
        self.model = library.Llama(
            path, embedding=True, n_threads=threads, n_threads_batch=threads, n_ctx=_ROWS,
            n_batch=_ROWS, n_ubatch=_ROWS, verbose=False,
        )  # fmt: skip
        self.info: dict[str, Any] = {"version": library.__version__}

    def vectors(self, texts: Sequence[str]) -> Any:
        """One of each text, computed together."""
        return self.model.embed([*texts], normalize=True)
