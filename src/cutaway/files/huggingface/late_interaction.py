"""A folder of a model of late interaction: PyLate's, sentence-transformers' or ColBERT's own.

Knows the files in which each says how queries and documents are read.
"""

import json
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.sentences import PROMPTS, TRANSFORMER, modules
from cutaway.text.late_interaction import LateInteraction
from cutaway.text.tokenizers.wordpiece import as_stored

ARTIFACT = "artifact.metadata"
_COLBERT = "HF_ColBERT"
_MASK = "MultiVectorMask"
_OF_PYLATE = ("query_prefix", "document_prefix", "do_query_expansion", "skiplist_words")
_PREFIX = "tokenizer.ggml."


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
        self._ids = {text: i for i, text in enumerate(metadata[f"{_PREFIX}tokens"])}
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
        keys = (f"{_PREFIX}{name}_token_id" for name in ("mask", "eos", "padding"))
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
