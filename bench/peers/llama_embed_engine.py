"""llama.cpp through llama-cpp-python, for vectors of texts; see worker.py.

Its own batching: as many texts as fit into 512 tokens are computed together.
"""

from collections.abc import Sequence
from importlib import import_module
from time import perf_counter
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

    def embed(self, texts: Sequence[str], at_once: int) -> list[float]:
        """Seconds of each call, of so many texts."""
        seconds = []
        for first in range(0, len(texts), at_once):
            started = perf_counter()
            self.vectors(texts[first : first + at_once])
            seconds.append(perf_counter() - started)
        return seconds

    def vectors(self, texts: Sequence[str]) -> Any:
        """Of each text."""
        return self.model.embed([*texts], normalize=True)
