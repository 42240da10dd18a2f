"""A model as a graph of ops: its sizes, its wiring, its tensor names."""

from collections.abc import Iterable, Mapping
from typing import Any

from cutaway.compute.model.architectures import architecture_of
from cutaway.compute.model.config import ModelConfig, config_from_gguf
from cutaway.compute.model.graph import Graph, Op, Tensor
from cutaway.compute.model.mixture import GATING_KEY, SIGMOID
from cutaway.compute.model.ops.mixture import Experts
from cutaway.compute.model.pooling import POOLINGS, Pooling, finish, pooling_from_gguf
from cutaway.errors import FormatError

__all__ = [
    "POOLINGS",
    "Graph",
    "ModelConfig",
    "Op",
    "Pooling",
    "Tensor",
    "build",
    "build_draft_head",
    "config_of",
    "has_draft_head",
    "pooling_from_gguf",
]


def config_of(metadata: Mapping[str, Any], context: int | None = None) -> ModelConfig:
    """Read the sizes; see ``build`` for the context and for FormatError."""
    row = architecture_of(metadata.get("general.architecture"))
    return config_from_gguf(metadata, row, context)


def build(
    metadata: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    context: int | None = None,
) -> tuple[ModelConfig, Graph]:
    """Read the sizes and build the ops, checked against the file's tensor table.

    context: the most tokens of a text; None is the model's own limit.
    Raises FormatError for an unknown architecture, and for metadata or a tensor that is missing,
    absurd, or left over.
    """
    if metadata.get("general.type") == "adapter":
        raise FormatError(
            "the model file is a LoRA adapter: name the model that it was made for, and this file "
            "as its lora"
        )
    config = config_of(_with_gating(metadata, shapes), context)
    graph = Graph(_run(shapes, config))
    architecture_of(config.architecture).build(graph, config)
    finish(graph, metadata)
    graph.check_all_used()
    if config.experts and not any(isinstance(op, Experts) for op in graph.ops):
        raise FormatError(
            f"{config.architecture}.expert_count is {config.experts}, and no layer has experts"
        )
    _check_ends(config, graph)
    return config, graph


def _with_gating(metadata: Mapping[str, Any], shapes: Iterable[str]) -> Mapping[str, Any]:
    """Set a sigmoid gating if experts are chosen with a bias, as in DeepSeek V3 (arXiv 2408.15664).

    A gating that the file or the architecture's row names is kept. V3's files name none. Neither do
    V2's, but V2 has no such bias.
    """
    row = architecture_of(name := metadata.get("general.architecture"))
    is_biased = any(tensor.endswith("exp_probs_b.bias") for tensor in shapes)
    if not is_biased or GATING_KEY in row.defaults:
        return metadata
    return {f"{name}.{GATING_KEY}": SIGMOID, **metadata}


def has_draft_head(config: ModelConfig) -> bool:
    """Whether the file has a draft head: a supported block after the model's own (MTP)."""
    return config.unrun_layers > 0 and architecture_of(config.architecture).layer is not None


def build_draft_head(
    metadata: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    context: int | None = None,
) -> Graph:
    """Build the ops of the draft head, the block after the model's own; see ``build``.

    FormatError if the file has no draft head, or one of a kind that is not supported.
    """
    from cutaway.compute.model.draft_heads import draft_head  # few texts are drafted by one

    config = config_of(_with_gating(metadata, shapes), context)
    layer = architecture_of(config.architecture).layer
    if layer is None or not has_draft_head(config):
        raise FormatError("the model has no draft head (multi-token prediction)")
    prefix = f"blk.{config.layers}."
    outside = {name: shape for name, shape in shapes.items() if not name.startswith("blk.")}
    inside = {name: shape for name, shape in shapes.items() if name.startswith(prefix)}
    graph = Graph(outside | inside)
    for name in outside:
        graph.allow_unused(name)
    draft_head(graph, config, layer)
    graph.check_all_used()
    return graph


def _run(shapes: Mapping[str, tuple[int, ...]], c: ModelConfig) -> Mapping[str, tuple[int, ...]]:
    """Leave out the tensors of draft heads, the blocks after the model's own."""
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
