"""fastembed, on ONNX Runtime, for vectors of texts; see worker.py.

Of a folder with model.onnx, as export_onnx.py writes it, and the tokenizer of the model's folder.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any


class Engine:
    """Of a folder, in float32."""

    def __init__(self, path: str, threads: int) -> None:
        library = import_module("fastembed")
        kinds = import_module("fastembed.common.model_description")
        library.TextEmbedding.add_custom_model(
            model="local/model", pooling=kinds.PoolingType.MEAN, normalization=True, dim=384,
            sources=kinds.ModelSource(hf="local/model"), model_file="model.onnx",
        )  # fmt: skip
        self.model = library.TextEmbedding(
            "local/model", specific_model_path=path, threads=threads, local_files_only=True
        )
        self.info: dict[str, Any] = {"version": library.__version__}

    def vectors(self, texts: Sequence[str]) -> Any:
        """One of each text, computed together."""
        return import_module("numpy").array([*self.model.embed([*texts], batch_size=len(texts))])
