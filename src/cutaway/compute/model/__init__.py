"""A model as a graph of ops: its sizes, its wiring, its tensor names."""

from collections.abc import Mapping
from typing import Any

from cutaway.compute.model.architectures import ARCHITECTURES
from cutaway.compute.model.config import ModelConfig
from cutaway.compute.model.config_keys import config_from_gguf
from cutaway.compute.model.graph import Graph, Op, Tensor
from cutaway.compute.model.lora import adapted
from cutaway.compute.model.pooling import POOLINGS, Pooling, finish, pooling_from_gguf
from cutaway.errors import FormatError

__all__ = [
    "POOLINGS",
    "Graph",
    "ModelConfig",
    "Op",
    "Pooling",
    "Tensor",
    "adapted",
    "build",
    "config_of",
    "pooling_from_gguf",
]


def config_of(metadata: Mapping[str, Any], context: int | None = None) -> ModelConfig:
    """Read the sizes; context and FormatError as in ``build``."""
    name = metadata.get("general.architecture")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise FormatError(
            f"architecture {name!r:.40} is not supported; docs/models.md lists the "
            f"{len(ARCHITECTURES)} that are"
        )
    return config_from_gguf(metadata, ARCHITECTURES[name], context)


def build(
    metadata: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    context: int | None = None,
) -> tuple[ModelConfig, Graph]:
    """Read the sizes and build the ops, checked against the file's tensor table.

    context: the tokens that texts may have; None is as many as the model can.
    Raises FormatError for an unknown architecture, or metadata or a tensor that is missing,
    absurd, or left over.
    """
    if metadata.get("general.type") == "adapter":
        raise FormatError(
            "the model file is a LoRA adapter: name the model that it was made for, and this file "
            "as its lora"
        )
    config = config_of(metadata, context)
    graph = Graph(_run(shapes, config))
    ARCHITECTURES[config.architecture].build(graph, config)
    finish(graph, metadata)
    graph.check_all_used()
    if config.experts and not any(op.kind == "experts" for op in graph.ops):
        raise FormatError(
            f"{config.architecture}.expert_count is {config.experts}, and no layer has experts"
        )
    _check_ends(config, graph)
    return config, graph


def _run(shapes: Mapping[str, tuple[int, ...]], c: ModelConfig) -> Mapping[str, tuple[int, ...]]:
    """Without the tensors of blocks that are read past."""
    unrun = tuple(f"blk.{i}." for i in range(c.layers, c.layers + c.unrun_layers))
    return {k: v for k, v in shapes.items() if not k.startswith(unrun)} if unrun else shapes


def _check_ends(config: ModelConfig, graph: Graph) -> None:
    embedding = graph.ops[0].weights["weight"]
    vocab, hidden = graph.shapes[embedding]
    if hidden != config.hidden and not graph.has("embd_proj.weight"):
        raise FormatError(
            f"tensor {embedding} is {hidden} wide and the metadata says {config.hidden}"
        )
    predicted = graph.ops[-1].out.width
    if graph.has_head and vocab != predicted:
        raise FormatError(f"the model reads {vocab} tokens and predicts {predicted}")
