"""cutaway, for vectors of texts; see worker.py."""

from collections.abc import Sequence
from typing import Any

from cutaway import LLM, __version__


class Engine:
    """Of a file or a folder."""

    def __init__(self, path: str, threads: int) -> None:
        self.llm = LLM(path, threads=threads, progress=False)
        self.info: dict[str, Any] = {"version": __version__}

    def vectors(self, texts: Sequence[str]) -> Any:
        """One of each text, computed together."""
        return self.llm.embed(texts, truncate=True).vectors
