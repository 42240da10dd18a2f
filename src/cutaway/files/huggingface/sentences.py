"""Folders whose texts become vectors: sentence-transformers', and those of late interaction.

Knows modules.json and the files that it names: how a text's rows become its vector, and how long it
may be; and the files in which PyLate, sentence-transformers and ColBERT each say how queries and
documents are read. Whatever changes the vector and is not supported is listed in the metadata, so
that the model can still be loaded for other uses.
"""

import json
import string
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import FormatError
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.shards import Shards
from cutaway.text.late_interaction import LateInteraction
from cutaway.text.tokenizers.wordpiece import as_stored

MODULES, PROMPTS = "modules.json", "config_sentence_transformers.json"
TRANSFORMER, TOKENIZER = "sentence_bert_config.json", "tokenizer_config.json"
_PREFIX = "cutaway.embedding."
_KINDS = {"mean": 1, "cls": 2, "last": 3}  # as GGUF numbers them
_OWN_KINDS = {"weightedmean": "weighted"}  # of which GGUF knows nothing
_MODES = {
    "pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last", "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}  # fmt: skip
_PLUS_INPUT = "+input"  # as `compute/model/pooling.py` reads it
_WEIGHTS = "model.safetensors"  # of a dense layer
_NO_LIMIT = 2**31  # transformers writes 10^30 where a tokenizer has none


def files(folder: Path) -> list[Path]:
    """The files that exist and describe vectors."""
    pooling = [folder / path / "config.json" for kind, path in modules(folder) if kind == "Pooling"]
    dense = [
        folder / path / name for kind, path in modules(folder) if kind == "Dense"
        for name in ("config.json", _WEIGHTS)
    ]  # fmt: skip
    each = [folder / name for name in (MODULES, PROMPTS, TRANSFORMER)] + pooling + dense
    return [path for path in each if path.is_file()]


def sentence_metadata(folder: Path, architecture: str, *, is_rank: bool) -> dict[str, Any]:
    """GGUF's keys, and those that it has no words for; none where the folder says nothing.

    is_rank: whether the model has a head that scores, whose tokenizer says how much is read
    """
    listed = modules(folder)
    if not listed:
        most = _most_tokens(folder, JsonObject.read(folder / TRANSFORMER)) if is_rank else None
        return {} if most is None else {f"{_PREFIX}max_tokens": most}
    metadata: dict[str, Any] = {f"{_PREFIX}normalize": False}
    refused, dense = [], list[list[str]]()
    for kind, path in listed:
        own = JsonObject.read(folder / path / "config.json") if str(path) != "." else None
        if kind == "Pooling" and own is not None:
            more, why = _pooling_metadata(own, architecture)
            metadata |= more
            refused += why
        elif kind == "Dense" and own is not None:
            dense.append([f"dense_{len(dense) + 2}", _activation(own)])
        elif kind == "Normalize":
            metadata[f"{_PREFIX}normalize"] = True
        elif kind not in ("Transformer", "MultiVectorMask"):
            refused.append(f"the module {kind}")
    if dense:
        metadata[f"{_PREFIX}dense"] = json.dumps(dense)
    own = JsonObject.read(folder / TRANSFORMER)
    if (most := _most_tokens(folder, own)) is not None:
        metadata[f"{_PREFIX}max_tokens"] = most
    metadata[f"{_PREFIX}lower"] = own.flag("do_lower_case")
    said = JsonObject.read(folder / PROMPTS)
    prompts = said.part("prompts").values
    if not all(isinstance(text, str) for text in prompts.values()):
        said.fail("prompts", "an object of texts")
    metadata[f"{_PREFIX}prompts"] = json.dumps(dict(prompts))
    if (default := said.text("default_prompt_name")) is not None:
        metadata[f"{_PREFIX}default_prompt"] = default
    return metadata | ({f"{_PREFIX}refused": ", ".join(refused)} if refused else {})


def _most_tokens(folder: Path, own: JsonObject) -> int | None:
    """Of a text; sentence-transformers 6 writes it beside the tokenizer. None: nothing is said."""
    if own.get("max_seq_length") is not None:
        return own.size("max_seq_length")
    said = JsonObject.read(folder / TOKENIZER)
    most = said.get("model_max_length")
    none = most is None or (isinstance(most, int | float) and most >= _NO_LIMIT)
    return None if none else said.size("model_max_length")


def _pooling_metadata(config: JsonObject, architecture: str) -> tuple[dict[str, Any], list[str]]:
    """How rows become one, and what is not supported of that."""
    name = _pooling(config)
    metadata: dict[str, Any] = {f"{_PREFIX}include_prompt": config.flag("include_prompt", True)}
    if name in _KINDS:
        return metadata | {f"{architecture}.pooling_type": _KINDS[name]}, []
    if name in _OWN_KINDS:
        return metadata | {f"{_PREFIX}pooling": _OWN_KINDS[name]}, []
    return metadata, [f"pooling by {name}"]


def _pooling(config: JsonObject) -> str:
    """By the names of old files and of new ones; the mean is what both take for granted."""
    if (mode := config.text("pooling_mode")) is not None:
        return {"lasttoken": "last"}.get(mode, mode)
    on = [name for key, name in _MODES.items() if config.flag(key, name == "mean")]
    return " and ".join(on) or "nothing"


def _activation(config: JsonObject) -> str:
    """Of a dense layer: torch's class, as ``model.pooling`` calls it."""
    name = (config.text("activation_function") or "torch.nn.modules.activation.Tanh").split(".")[-1]
    known = {"Identity": "identity", "Tanh": "tanh", "GELU": "gelu", "ReLU": "relu"}
    if name not in known:
        config.refuse("activation_function", f"{', '.join(known)} are")
    return known[name] + (_PLUS_INPUT if config.flag("use_residual") else "")


def dense_tensors(folder: Path) -> dict[str, NDArray[np.float32]]:
    """The matrices and biases of dense layers after pooling, by GGUF's names."""
    found: dict[str, NDArray[np.float32]] = {}
    paths = [folder / path for kind, path in modules(folder) if kind == "Dense"]
    for i, path in enumerate(paths):
        if not (path / _WEIGHTS).is_file():
            raise FormatError(
                f"{path}: the folder has no {_WEIGHTS}; save the model as safetensors"
            )
        with closing(Shards([path / _WEIGHTS])) as file:
            for name in file:
                end = name.removeprefix("linear.")
                if end not in ("weight", "bias", "residual.weight"):
                    raise FormatError(f"{path / _WEIGHTS}: the tensor {name!r:.40} has no place")
                found[f"dense_{i + 2}.{end}"] = np.asarray(file.part(name), np.float32).copy()
    return found


def modules(folder: Path) -> list[tuple[str, PurePosixPath]]:
    """(kind, folder) of each module, in order; none without modules.json."""
    path = folder / MODULES
    try:
        listed = json.loads(path.read_bytes()) if path.is_file() else []
        each = [(str(one["type"]).split(".")[-1], str(one["path"])) for one in listed]
    except (OSError, ValueError, RecursionError, TypeError, KeyError, AttributeError):
        raise FormatError(f"{path}: the file is no list of modules; download it again") from None
    found = [(kind, PurePosixPath(name)) for kind, name in each]
    if any(name.is_absolute() or ".." in name.parts for _, name in found):
        raise FormatError(f"{path}: a module lies outside the folder; download it again")
    return found


# -- late interaction: PyLate's, sentence-transformers' or ColBERT's own ---------------------------


ARTIFACT = "artifact.metadata"
_COLBERT = "HF_ColBERT"
_MASK = "MultiVectorMask"
_OF_PYLATE = ("query_prefix", "document_prefix", "do_query_expansion", "skiplist_words")
_OF_TOKENIZER = "tokenizer.ggml."


def late_metadata(
    folder: Path, config: JsonObject, metadata: Mapping[str, Any]
) -> dict[str, str | bool]:
    """What ``LateInteraction`` says, as metadata; none where a text has one vector.

    config: config.json; metadata: that of the tokenizer. FormatError for what is not supported.
    """
    own, words = JsonObject.read(folder / PROMPTS), _Words(metadata)
    masks = [path for kind, path in modules(folder) if kind == _MASK]
    named = config.get("architectures")
    if isinstance(named, list) and _COLBERT in named:
        found = _of_colbert(JsonObject.read(folder / ARTIFACT), words)
    elif masks:
        mask = JsonObject.read(folder / masks[0] / "config.json")
        return _of_sentences(own, JsonObject.read(folder / TRANSFORMER), mask, words)
    elif own.text("model_type") == "ColBERT" or any(key in own.values for key in _OF_PYLATE):
        found = _of_pylate(own, words)
    else:
        return {}
    return {**found.to_metadata(), "cutaway.embedding.normalize": True}


class _Words:
    """The vocabulary by its texts."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._ids = {text: i for i, text in enumerate(metadata[f"{_OF_TOKENIZER}tokens"])}
        self._metadata = metadata

    def id_of(self, text: str) -> int | None:
        return self._ids.get(text, self._ids.get(as_stored(text)))

    def marker(self, said: JsonObject, key: str, default: str) -> int | None:
        """The token that a file names; None for an empty text."""
        text = said.text(key)
        text = default if text is None else text
        if text and self.id_of(text) is None:
            said.fail(key, f"a token of the vocabulary, which {text!r:.40} is not")
        return self.id_of(text) if text else None

    def filler(self, said: JsonObject, text: str | None = None) -> int:
        """What fills queries: the token named, else the mask, else the end."""
        if text is not None:
            if (found := self.id_of(text)) is None:
                said.fail("query_expansion", f"of a token that is known, not {text!r:.40}")
            return found
        keys = (f"{_OF_TOKENIZER}{name}_token_id" for name in ("mask", "eos", "padding"))
        found = next((self._metadata[key] for key in keys if key in self._metadata), None)
        if found is None:
            said.refuse("do_query_expansion", "a vocabulary with a mask or an end token is")
        return int(found)

    def skipped(self, words: list[str]) -> tuple[int, ...]:
        found = (self.id_of(word) for word in words)
        return tuple(sorted({one for one in found if one is not None}))


def _of_pylate(own: JsonObject, words: _Words) -> LateInteraction:
    expands = own.flag("do_query_expansion", True)
    length = _size(own, "query_length", 32)
    return LateInteraction(
        words.marker(own, "query_prefix", "[Q] "),
        words.marker(own, "document_prefix", "[D] "),
        length,
        _size(own, "document_length", 180),
        length if expands else 0,
        words.filler(own) if expands else 0,
        own.flag("attend_to_expansion_tokens"),
        words.skipped(_texts(own, "skiplist_words", [*string.punctuation])),
    )


def _of_colbert(own: JsonObject, words: _Words) -> LateInteraction:
    length = _size(own, "query_maxlen", 32)
    skips = own.flag("mask_punctuation", True)
    return LateInteraction(
        words.marker(own, "query_token_id", "[unused0]"),
        words.marker(own, "doc_token_id", "[unused1]"),
        length,
        _size(own, "doc_maxlen", 180),
        length,
        words.filler(own),
        own.flag("attend_to_mask_tokens"),
        words.skipped([*string.punctuation] if skips else []),
    )


def _of_sentences(
    said: JsonObject, own: JsonObject, mask: JsonObject, words: _Words
) -> dict[str, str | bool]:
    """As sentence-transformers 6 has it: a prompt that is one token is the marker."""
    prompts = said.part("prompts").values
    ids = {name: words.id_of(str(text)) for name, text in prompts.items() if text}
    markers = {name: one for name, one in ids.items() if one is not None}
    left = {name: text for name, text in prompts.items() if name not in markers}
    mask.must_be("keep_only_token_ids", None)
    skipped = _texts(mask, "skiplist_words", [])
    if skipped:
        mask.must_be("skiplist_tasks", None, ["document"], "document")
    most = _size(own, "max_seq_length", 1 << 19)
    expansion = own.part("query_expansion")
    filled = expansion.size("length") if expansion.values else 0
    length = _size(own, "query_length", most)
    if filled:
        expansion.must_be("strategy", "fixed", "min")
        length = filled if expansion.text("strategy") == "fixed" else max(length, filled)
    found = LateInteraction(
        markers.get("query"), markers.get("document"), length,
        _size(own, "document_length", most), filled,
        words.filler(own, expansion.text("token")) if filled else 0,
        expansion.flag("attend"), words.skipped(skipped),
    )  # fmt: skip
    return {**found.to_metadata(), "cutaway.embedding.prompts": json.dumps(left)}


def _size(said: JsonObject, key: str, default: int) -> int:
    return default if said.get(key) is None else said.size(key, 1 << 19)


def _texts(said: JsonObject, key: str, default: list[str]) -> list[str]:
    found = said.get(key)
    if found is None:
        return default
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        said.fail(key, "a list of texts")
    return found
