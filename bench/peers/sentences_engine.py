"""sentence-transformers, on torch, for vectors of texts; see worker.py."""

from collections.abc import Sequence
from importlib import import_module
from time import perf_counter
from typing import Any


class Engine:
    """Of a folder, in float32."""

    def __init__(self, path: str, threads: int) -> None:
        import_module("torch").set_num_threads(threads)
        library = import_module("sentence_transformers")
        self.model = library.SentenceTransformer(path, device="cpu")
        self.info: dict[str, Any] = {"version": library.__version__}

    def embed(self, texts: Sequence[str], at_once: int) -> list[float]:
        """Seconds of each call, of so many texts."""
        seconds = []
        for first in range(0, len(texts), at_once):
            started = perf_counter()
            self.model.encode(
                texts[first : first + at_once], batch_size=at_once, show_progress_bar=False
            )
            seconds.append(perf_counter() - started)
        return seconds

    def vectors(self, texts: Sequence[str]) -> Any:
        """Of each text."""
        return self.model.encode(texts, show_progress_bar=False)
