"""Embeddings and scores of texts, as a model's file describes them: how a text's rows are pooled,
and the layers after it: dense layers of sentence-transformers, or a reranker's head."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from cutaway.compute.model.graph import Graph
from cutaway.compute.model.metadata import MetadataReader
from cutaway.errors import FormatError
from cutaway.text.late_interaction import LateInteraction, late_interaction

POOLINGS = ("mean", "cls", "last", "weighted")
TOKENS = "tokens"
"""The pooling of late interaction: each token keeps a vector."""
_TYPES = ("", "mean", "cls", "last", "rank")  # by GGUF's pooling_type
EMBEDDING, RANK = "cutaway.embedding", "cutaway.rank"
ACTIVATIONS = ("identity", "tanh", "gelu", "relu")
"""The activations that dense layers and heads may have."""
PLUS_INPUT = "+input"
"""A suffix of a dense layer's activation: its input is added, through a matrix if it has one."""
_HEAD = "cls.output.weight"  # GGUF's name of the last matrix of a head that scores
_DENSE = ("dense_2", "dense_3")  # GGUF's names of EmbeddingGemma's dense layers


class Pooling(NamedTuple):
    """How texts become embeddings; None if the file has no key for it.

    kind        of POOLINGS; "tokens", a vector for each token; or "rank": the file has a head that
                scores texts, and no embeddings
    normalize   whether embeddings are scaled to length 1
    max_tokens  the most tokens of a text that the model was trained for
    unsupported a further step that is not supported; "" for none
    prompts     name ("query", "document") -> the prefix of a text
    default     the name of the prompt if none is asked for; "" for none
    whole       whether a prompt's own tokens are pooled, too
    lower       whether texts become lower case
    end_id      the token that follows each text; None: the tokenizer adds none
    rank        the pooling of rows for a head that scores; "" without one
    labels      the names of the head's classes, in order; none if the file has no names
    dimensions  the width of embeddings
    late        how queries and documents are read in late interaction; None: a text has one vector
    """

    kind: str | None = None
    normalize: bool | None = None
    max_tokens: int | None = None
    unsupported: str = ""
    prompts: Mapping[str, str] = {}
    default: str = ""
    whole: bool = True
    lower: bool = False
    end_id: int | None = None
    rank: str = ""
    labels: tuple[str, ...] = ()
    dimensions: int = 0
    late: LateInteraction | None = None


def pooling_from_gguf(metadata: Mapping[str, Any], graph: Graph) -> Pooling:
    """Read how texts are pooled; FormatError names a key whose value is absurd."""
    architecture = MetadataReader(metadata, str(metadata["general.architecture"]))
    number, settings = (
        architecture.size_or_zero("pooling_type"),
        MetadataReader(metadata, EMBEDDING),
    )
    normalize = None if settings.value("normalize") is None else settings.flag("normalize", True)
    unsupported, is_known = str(settings.value("refused", "")), number < len(_TYPES)
    kind = str(settings.value("pooling", "")) or (_TYPES[number] if is_known else "")
    is_rank, after = _HEAD in graph.shapes, graph.pooled_graph()
    prompts = _json(settings, "prompts", {})
    late = late_interaction(metadata, graph.shapes["token_embd.weight"][0])
    return Pooling(
        "rank" if is_rank else TOKENS if late else (kind or None),
        normalize,
        settings.size_or_zero("max_tokens") or None,
        unsupported or ("" if is_known else f"pooling_type {number}"),
        {str(name): str(text) for name, text in prompts.items()},
        str(settings.value("default_prompt", "")),
        settings.flag("include_prompt", True),
        settings.flag("lower", False),
        _end_id(metadata),
        (str(settings.value("rank_pooling", "")) or "cls") if is_rank else "",
        _labels(architecture) if is_rank else (),
        (after or graph.body()).ops[-1].out.width,
        late,
    )


def _labels(architecture: MetadataReader) -> tuple[str, ...]:
    labels = architecture.value("classifier.output_labels")
    return tuple(map(str, labels)) if isinstance(labels, list) else ()


def _end_id(metadata: Mapping[str, Any]) -> int | None:
    """Return the end token that a folder names, or that a file's tokenizer adds; else None."""
    tokenizer = MetadataReader(metadata, "tokenizer.ggml")
    end_id = MetadataReader(metadata, EMBEDDING).value("end_token_id")
    if end_id is None and tokenizer.value("add_eos_token") is True:
        end_id = tokenizer.value("eos_token_id")
    return int(end_id) if isinstance(end_id, int) and end_id >= 0 else None


def finish(g: Graph, metadata: Mapping[str, Any]) -> None:
    """Add the file's layers after pooling to a graph, in place of a head that predicts tokens."""
    if g.has(_HEAD):
        head = MetadataReader(metadata, RANK)
        x = g.pooled_rows(g.cut_head())
        if g.has("cls.weight"):
            x = _activate(g, g.linear(x, "cls"), str(head.value("activation", "tanh")))
        if g.has("cls.norm.weight"):
            x = g.layer_norm(
                x, "cls.norm", head.number("norm_epsilon", 1e-5), bias=g.has("cls.norm.bias")
            )
        g.linear(x, "cls.output")
        return
    default = [[name, "identity"] for name in _DENSE if g.has(f"{name}.weight")]
    layers = _json(MetadataReader(metadata, EMBEDDING), "dense", default)
    if not (layers and g.has(f"{layers[0][0]}.weight")):
        if MetadataReader(metadata, EMBEDDING).flag("body", False):
            g.cut_head()
        return
    x = g.pooled_rows(g.cut_head())
    for name, activation in layers:
        before, kind = x, activation.removesuffix(PLUS_INPUT)
        x = _activate(g, g.linear(x, name), kind)
        if kind != activation:
            beside = f"{name}.residual"
            x = g.add(x, g.linear(before, beside) if g.has(f"{beside}.weight") else before)


def _activate(g: Graph, x: Any, name: str) -> Any:
    if name not in ACTIVATIONS:
        raise FormatError(
            f"a layer after pooling has the activation {name!r:.40}, which is not supported; "
            f"supported: {', '.join(ACTIVATIONS)}"
        )
    if name == "tanh":
        return g.softcap(x, 1.0)
    return x if name == "identity" else getattr(g, {"gelu": "gelu_exact"}.get(name, name))(x)


def _json(read: MetadataReader, key: str, default: Any) -> Any:
    """Read a key whose value is JSON of the default's type."""
    text = read.value(key)
    try:
        value = default if text is None else json.loads(text)
    except (TypeError, ValueError, RecursionError):
        value = None
    if type(value) is not type(default) or (
        isinstance(value, list)
        and not all(isinstance(layer, list) and len(layer) == 2 for layer in value)
    ):
        raise FormatError(f"metadata key {read.prefix}.{key} is damaged: convert the model again")
    return value
