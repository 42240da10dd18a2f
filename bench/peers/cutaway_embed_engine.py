"""cutaway, for vectors of texts; see worker.py."""

from collections.abc import Sequence
from time import perf_counter
from typing import Any

from cutaway import LLM, __version__


class Engine:
    """Of a file or a folder."""

    def __init__(self, path: str, threads: int) -> None:
        self.llm = LLM(path, threads=threads, progress=False)
        self.info: dict[str, Any] = {"version": __version__}

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
        return self.llm.embed(texts, truncate=True).vectors
