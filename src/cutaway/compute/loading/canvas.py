"""What a model with self-conditioning loads besides its weights: the transpose of its embedding."""

from cutaway.compute import backends
from cutaway.compute.backends import Backend
from cutaway.compute.backends.canvas import CanvasBackends
from cutaway.compute.model import ModelConfig
from cutaway.compute.model.canvases import TRANSPOSED, CanvasGraphs, build_canvas
from cutaway.files.weights import ModelFile
from cutaway.files.weights.transposed import TransposedFile


def load_canvas(config: ModelConfig, backend: Backend, file: ModelFile) -> CanvasBackends:
    """Return what computes a canvas on the weights of the model's own backend."""
    graphs = _graphs(config, file)
    rows = backend.with_adapter(graphs.rows, file)
    return CanvasBackends(rows, backend.with_graph(graphs.blend, transpose_embedding(file)))


def canvas_bytes(config: ModelConfig, file: ModelFile, backend: str | None) -> int:
    """Return the bytes of memory that a canvas takes besides the model's own weights."""
    transposed = transpose_embedding(file)
    return backends.weight_bytes(_graphs(config, file).blend, transposed.tensors, backend)


def transpose_embedding(file: ModelFile) -> TransposedFile:
    """Return a file of the embedding's transpose; nothing is read yet."""
    return TransposedFile(file, "token_embd.weight", f"{TRANSPOSED}.weight")


def _graphs(config: ModelConfig, file: ModelFile) -> CanvasGraphs:
    return build_canvas({name: info.shape for name, info in file.tensors.items()}, config)
