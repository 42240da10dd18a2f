"""Folders of embedding models: sentence-transformers', and those of late interaction.

Knows modules.json and the files that it names: how a text's rows are pooled, and how long a text
may be; and the files of PyLate, sentence-transformers and ColBERT that define how queries and
documents are read. Unsupported settings that change the embedding are listed in the metadata, so
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
_OWN_KINDS = {"weightedmean": "weighted"}  # unknown to GGUF
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
    """Return the files that exist and describe embeddings."""
    pooling = [folder / path / "config.json" for kind, path in modules(folder) if kind == "Pooling"]
    dense = [
        folder / path / name for kind, path in modules(folder) if kind == "Dense"
        for name in ("config.json", _WEIGHTS)
    ]  # fmt: skip
    paths = [folder / name for name in (MODULES, PROMPTS, TRANSFORMER)] + pooling + dense
    return [path for path in paths if path.is_file()]


def sentence_metadata(folder: Path, architecture: str, *, is_rank: bool) -> dict[str, Any]:
    """Return GGUF's keys, and some that GGUF lacks; {} for a folder without modules.

    is_rank: whether the model has a head that scores texts; then the tokenizer limits their length
    """
    module_list = modules(folder)
    if not module_list:
        max_tokens = (
            _most_tokens(folder, JsonObject.read(folder / TRANSFORMER)) if is_rank else None
        )
        return {} if max_tokens is None else {f"{_PREFIX}max_tokens": max_tokens}
    metadata: dict[str, Any] = {f"{_PREFIX}normalize": False}
    unsupported, dense = [], list[list[str]]()
    for kind, path in module_list:
        settings = JsonObject.read(folder / path / "config.json") if str(path) != "." else None
        if kind == "Pooling" and settings is not None:
            more, problems = _pooling_metadata(settings, architecture)
            metadata |= more
            unsupported += problems
        elif kind == "Dense" and settings is not None:
            dense.append([f"dense_{len(dense) + 2}", _activation(settings)])
        elif kind == "Normalize":
            metadata[f"{_PREFIX}normalize"] = True
        elif kind not in ("Transformer", "MultiVectorMask"):
            unsupported.append(f"the module {kind}")
    if dense:
        metadata[f"{_PREFIX}dense"] = json.dumps(dense)
    settings = JsonObject.read(folder / TRANSFORMER)
    if (max_tokens := _most_tokens(folder, settings)) is not None:
        metadata[f"{_PREFIX}max_tokens"] = max_tokens
    metadata[f"{_PREFIX}lower"] = settings.flag("do_lower_case")
    config = JsonObject.read(folder / PROMPTS)
    prompts = config.part("prompts").values
    if not all(isinstance(text, str) for text in prompts.values()):
        config.fail("prompts", "an object of texts")
    metadata[f"{_PREFIX}prompts"] = json.dumps(dict(prompts))
    if (default := config.text("default_prompt_name")) is not None:
        metadata[f"{_PREFIX}default_prompt"] = default
    return metadata | ({f"{_PREFIX}refused": ", ".join(unsupported)} if unsupported else {})


def _most_tokens(folder: Path, settings: JsonObject) -> int | None:
    """Return how many tokens a text may have.

    sentence-transformers 6 stores this number with the tokenizer.
    """
    if settings.get("max_seq_length") is not None:
        return settings.size("max_seq_length")
    tokenizer = JsonObject.read(folder / TOKENIZER)
    length = tokenizer.get("model_max_length")
    none = length is None or (isinstance(length, int | float) and length >= _NO_LIMIT)
    return None if none else tokenizer.size("model_max_length")


def _pooling_metadata(config: JsonObject, architecture: str) -> tuple[dict[str, Any], list[str]]:
    """Return the metadata of pooling, and the names of unsupported settings."""
    name = _pooling(config)
    metadata: dict[str, Any] = {f"{_PREFIX}include_prompt": config.flag("include_prompt", True)}
    if name in _KINDS:
        return metadata | {f"{architecture}.pooling_type": _KINDS[name]}, []
    if name in _OWN_KINDS:
        return metadata | {f"{_PREFIX}pooling": _OWN_KINDS[name]}, []
    return metadata, [f"pooling by {name}"]


def _pooling(config: JsonObject) -> str:
    """Return the kind of pooling, from old files or new ones; the mean by default."""
    if (mode := config.text("pooling_mode")) is not None:
        return {"lasttoken": "last"}.get(mode, mode)
    on = [name for key, name in _MODES.items() if config.flag(key, name == "mean")]
    return " and ".join(on) or "nothing"


def _activation(config: JsonObject) -> str:
    """Return the name in ``model.pooling`` of a dense layer's activation, by torch's class."""
    name = (config.text("activation_function") or "torch.nn.modules.activation.Tanh").split(".")[-1]
    names = {"Identity": "identity", "Tanh": "tanh", "GELU": "gelu", "ReLU": "relu"}
    if name not in names:
        config.refuse("activation_function", f"{', '.join(names)} are")
    return names[name] + (_PLUS_INPUT if config.flag("use_residual") else "")


def dense_tensors(folder: Path) -> dict[str, NDArray[np.float32]]:
    """Return the matrices and biases of dense layers after pooling, by GGUF's names."""
    tensors: dict[str, NDArray[np.float32]] = {}
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
                tensors[f"dense_{i + 2}.{end}"] = np.asarray(file.part(name), np.float32).copy()
    return tensors


def modules(folder: Path) -> list[tuple[str, PurePosixPath]]:
    """Return (kind, folder) of each module, in order; [] without modules.json."""
    path = folder / MODULES
    try:
        entries = json.loads(path.read_bytes()) if path.is_file() else []
        pairs = [(str(entry["type"]).split(".")[-1], str(entry["path"])) for entry in entries]
    except (OSError, ValueError, RecursionError, TypeError, KeyError, AttributeError):
        raise FormatError(f"{path}: the file is no list of modules; download it again") from None
    module_list = [(kind, PurePosixPath(name)) for kind, name in pairs]
    if any(name.is_absolute() or ".." in name.parts for _, name in module_list):
        raise FormatError(f"{path}: a module lies outside the folder; download it again")
    return module_list


# -- late interaction: PyLate's, sentence-transformers' or ColBERT's own ---------------------------


ARTIFACT = "artifact.metadata"
_COLBERT = "HF_ColBERT"
_MASK = "MultiVectorMask"
_OF_PYLATE = ("query_prefix", "document_prefix", "do_query_expansion", "skiplist_words")
_OF_TOKENIZER = "tokenizer.ggml."


def late_metadata(
    folder: Path, config: JsonObject, metadata: Mapping[str, Any]
) -> dict[str, str | bool]:
    """Return ``LateInteraction`` as metadata; {} if a text has one vector.

    config: config.json; metadata: the tokenizer's. FormatError for what is not supported.
    """
    settings, words = JsonObject.read(folder / PROMPTS), _Words(metadata)
    besides: dict[str, str | bool] = {"cutaway.embedding.normalize": True}
    masks = [path for kind, path in modules(folder) if kind == _MASK]
    classes = config.get("architectures")
    if isinstance(classes, list) and _COLBERT in classes:
        interaction = _read_colbert(JsonObject.read(folder / ARTIFACT), words)
    elif masks:
        mask = JsonObject.read(folder / masks[0] / "config.json")
        interaction, left = _read_sentence_transformers(
            settings, JsonObject.read(folder / TRANSFORMER), mask, words
        )
        besides = {"cutaway.embedding.prompts": json.dumps(left)}
    elif settings.text("model_type") == "ColBERT" or any(
        key in settings.values for key in _OF_PYLATE
    ):
        interaction = _read_pylate(settings, words)
    else:
        return {}
    reads_fillers = interaction.filled_to and not interaction.fillers_are_seen
    if reads_fillers and config.flag("conv_zero_padding"):  # LFM2's convolutions see zeros there
        config.refuse("conv_zero_padding", "where tokens do not attend to fillers only false is")
    return {**interaction.to_metadata(), **besides}


class _Words:
    """The vocabulary: finds tokens by their texts."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._ids = {text: i for i, text in enumerate(metadata[f"{_OF_TOKENIZER}tokens"])}
        self._metadata = metadata

    def id_of(self, text: str) -> int | None:
        return self._ids.get(text, self._ids.get(as_stored(text)))

    def marker(self, config: JsonObject, key: str, default: str) -> int | None:
        """Return the token that a file names; None for an empty text."""
        text = config.text(key)
        text = default if text is None else text
        if text and self.id_of(text) is None:
            config.fail(key, f"a token of the vocabulary, which {text!r:.40} is not")
        return self.id_of(text) if text else None

    def filler(self, config: JsonObject, text: str | None = None) -> int:
        """Return the token that fills queries: the named token, else the mask, else the end."""
        if text is not None:
            if (token_id := self.id_of(text)) is None:
                config.fail("query_expansion", f"of a token that is known, not {text!r:.40}")
            return token_id
        keys = (f"{_OF_TOKENIZER}{name}_token_id" for name in ("mask", "eos", "padding"))
        token_id = next((self._metadata[key] for key in keys if key in self._metadata), None)
        if token_id is None:
            config.refuse("do_query_expansion", "a vocabulary with a mask or an end token is")
        return int(token_id)

    def ids_of(self, words: list[str]) -> tuple[int, ...]:
        ids = (self.id_of(word) for word in words)
        return tuple(sorted({token_id for token_id in ids if token_id is not None}))


def _read_pylate(config: JsonObject, words: _Words) -> LateInteraction:
    expands = config.flag("do_query_expansion", True)
    length = _size(config, "query_length", 32)
    return LateInteraction(
        words.marker(config, "query_prefix", "[Q] "),
        words.marker(config, "document_prefix", "[D] "),
        length,
        _size(config, "document_length", 180),
        length if expands else 0,
        words.filler(config) if expands else 0,
        config.flag("attend_to_expansion_tokens"),
        words.ids_of(_texts(config, "skiplist_words", [*string.punctuation])),
    )


def _read_colbert(config: JsonObject, words: _Words) -> LateInteraction:
    length = _size(config, "query_maxlen", 32)
    skips = config.flag("mask_punctuation", True)
    return LateInteraction(
        words.marker(config, "query_token_id", "[unused0]"),
        words.marker(config, "doc_token_id", "[unused1]"),
        length,
        _size(config, "doc_maxlen", 180),
        length,
        words.filler(config),
        config.flag("attend_to_mask_tokens"),
        words.ids_of([*string.punctuation] if skips else []),
    )


def _read_sentence_transformers(
    config: JsonObject, transformer: JsonObject, mask: JsonObject, words: _Words
) -> tuple[LateInteraction, dict[str, str]]:
    """Read the settings of sentence-transformers 6, in which a prompt of one token is the marker.

    Returns also the prompts of more tokens.
    """
    prompts = config.part("prompts").values
    ids = {name: words.id_of(str(text)) for name, text in prompts.items() if text}
    markers = {name: token_id for name, token_id in ids.items() if token_id is not None}
    left = {name: text for name, text in prompts.items() if name not in markers}
    mask.must_be("keep_only_token_ids", None)
    skipped = _texts(mask, "skiplist_words", [])
    if skipped:
        mask.must_be("skiplist_tasks", None, ["document"], "document")
    longest = _size(transformer, "max_seq_length", 1 << 19)
    expansion = transformer.part("query_expansion")
    expanded = expansion.size("length") if expansion.values else 0
    length = _size(transformer, "query_length", longest)
    if expanded:
        expansion.must_be("strategy", "fixed", "min")
        length = expanded if expansion.text("strategy") == "fixed" else max(length, expanded)
    interaction = LateInteraction(
        markers.get("query"), markers.get("document"), length,
        _size(transformer, "document_length", longest), expanded,
        words.filler(transformer, expansion.text("token")) if expanded else 0,
        expansion.flag("attend"), words.ids_of(skipped),
    )  # fmt: skip
    return interaction, left


def _size(config: JsonObject, key: str, default: int) -> int:
    return default if config.get(key) is None else config.size(key, 1 << 19)


def _texts(config: JsonObject, key: str, default: list[str]) -> list[str]:
    texts = config.get(key)
    if texts is None:
        return default
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        config.fail(key, "a list of texts")
    return texts
