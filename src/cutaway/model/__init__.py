"""A model as a graph of ops: its sizes, its wiring, its tensor names.

Knows what is computed. Refuses to know how (backends/).
"""

from collections.abc import Mapping
from typing import Any

from cutaway.errors import FormatError
from cutaway.model.architectures import ARCHITECTURES
from cutaway.model.config import ModelConfig, config_from_gguf
from cutaway.model.graph import Graph, Op, Tensor

__all__ = ["Graph", "ModelConfig", "Op", "Tensor", "build"]


def build(
    metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> tuple[ModelConfig, Graph]:
    """Read the sizes and build the ops, checked against the file's tensor table.

    Raises FormatError for an unknown architecture, or metadata or a tensor that is missing,
    absurd, or left over.
    """
    name = str(metadata.get("general.architecture"))
    if name not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise FormatError(f"architecture {name!r} is not supported; supported: {known}")
    config = config_from_gguf(metadata)
    graph = Graph(shapes)
    ARCHITECTURES[name](graph, config)
    graph.check_all_used()
    return config, graph
