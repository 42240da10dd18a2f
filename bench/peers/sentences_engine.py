"""sentence-transformers, on torch, for vectors of texts; see worker.py."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any


class Engine:
    """Of a folder, in float32."""

    def __init__(self, path: str, threads: int) -> None:
        import_module("torch").set_num_threads(threads)
        library = import_module("sentence_transformers")
        self.model = library.SentenceTransformer(path, device="cpu")
        self.info: dict[str, Any] = {"version": library.__version__}

    def vectors(self, texts: Sequence[str]) -> Any:
        """One of each text, computed together."""
        return self.model.encode(texts, batch_size=len(texts), show_progress_bar=False)
