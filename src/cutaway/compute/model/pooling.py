"""Embeddings and scores of texts, as a model's file describes them.

Knows how a text's rows are pooled, and the layers after pooling: dense layers of
sentence-transformers, or the head of a reranker.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from cutaway.compute.model.architectures import architecture_of
from cutaway.compute.model.graph import Graph
from cutaway.compute.model.metadata import MetadataReader
from cutaway.errors import FormatError
from cutaway.text.late_interaction import LateInteraction, late_interaction

POOLINGS = ("mean", "cls", "last", "weighted")
TOKENS = "tokens"
"""The pooling of late interaction, in which each token keeps a vector."""
_TYPES = ("", "mean", "cls", "last", "rank")  # by GGUF's pooling_type
EMBEDDING, RANK = "cutaway.embedding", "cutaway.rank"
ACTIVATIONS = ("identity", "tanh", "gelu", "relu")
"""The activations that dense layers and heads may have."""
PLUS_INPUT = "+input"
"""A suffix of a dense layer's activation: the input is added, through a matrix if there is one."""
_HEAD = "cls.output.weight"  # GGUF's name of the last matrix of a head that scores
_DENSE = ("dense_2", "dense_3")  # GGUF's names of EmbeddingGemma's dense layers


class Pooling(NamedTuple):
    """How texts become embeddings; a field is None if the file has no key for it.

    kind        one of POOLINGS; or "tokens": each token has a vector; or "rank": the file has a
                head that scores texts, and no embeddings
    normalize   whether embeddings are scaled to length 1
    max_tokens  the most tokens that the texts of the model's training had
    unsupported a further step that is not supported; "" if there is none
    prompts     a prompt's name ("query", "document") -> the prefix that it puts before a text
    default     the name of the prompt to use if none is asked for; "": no prompt
    whole       whether the tokens of a prompt are also pooled
    lower       whether texts are turned into lower case
    end_id      the token that follows each text; None: the tokenizer adds no token
    rank        how rows are pooled for a head that scores; "" without such a head
    labels      the names of the head's classes, in order; empty if the file has no names
    dimensions  the width of embeddings
    late        how queries and documents are read in late interaction; None: a text has one vector,
                or the file does not say
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
    """Read how texts are pooled; a FormatError names a key whose value is absurd."""
    name = str(metadata["general.architecture"])
    architecture = MetadataReader(metadata, name, architecture_of(name).defaults)
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
    # llama.cpp's converter writes a ColBERT as layers after pooling, and no pooling.
    has_tokens = late is not None or (after is not None and not kind and is_known)
    scored = "last" if architecture.flag("attention.causal", True) else "cls"
    return Pooling(
        "rank" if is_rank else TOKENS if has_tokens else (kind or None),
        normalize,
        settings.size_or_zero("max_tokens") or None,
        unsupported or ("" if is_known else f"pooling_type {number}"),
        {str(name): str(text) for name, text in prompts.items()},
        str(settings.value("default_prompt", "")),
        settings.flag("include_prompt", True),
        settings.flag("lower", False),
        _end_id(metadata),
        (str(settings.value("rank_pooling", "")) or scored) if is_rank else "",
        _labels(architecture) if is_rank else (),
        (after or graph.body()).ops[-1].out.width,
        late,
    )


def _labels(architecture: MetadataReader) -> tuple[str, ...]:
    labels = architecture.value("classifier.output_labels")
    return tuple(map(str, labels)) if isinstance(labels, list) else ()


def _end_id(metadata: Mapping[str, Any]) -> int | None:
    """Return the end token that a folder names or a file's tokenizer adds; None without one."""
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
    """Read a key whose value is JSON; what it stands for must be of the default's type."""
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
