"""The special tokens of a folder: those that begin and end texts, and the file that names each.

Knows the five files that name them, and their precedence.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import FormatError
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.text.tokenizers.vocabulary import (
    BEGIN_ORIGIN,
    END_IDS,
    END_ORIGINS,
    LSTRIP_TOKEN_IDS,
    PAIR_SEPARATORS,
    RSTRIP_TOKEN_IDS,
)

_PREFIX = "tokenizer.ggml."
_MASKS = ("[MASK]", "<mask>", "<|mask|>", "<|MASK|>", "<|mdm_mask|>")


@dataclass(frozen=True)
class Sources:
    """The files that name special tokens; tokens: the texts by id."""

    tokenizer: JsonObject
    tokenizer_config: JsonObject  # tokenizer_config.json, completed by special_tokens_map.json
    config: JsonObject
    generation: JsonObject
    tokens: list[str]

    def id_of(self, text: object) -> int | None:
        """Return a token's id; None if the model has no such token."""
        return self.tokens.index(text) if isinstance(text, str) and text in self.tokens else None

    def find_token(self, key: str) -> int | None:
        """Return the id of a token that tokenizer_config.json names by its text."""
        value = self.tokenizer_config.get(key)
        text = value.get("content") if isinstance(value, dict) else value
        if text is not None and not isinstance(text, str):
            self.tokenizer_config.fail(key, "the text of a token")
        return None if text is None else self.id_of(text)

    def find_ids(self, file: JsonObject, key: str) -> list[int]:
        """Return the ids under a key that has one or several."""
        value = file.get(key)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(i) is int and 0 <= i < len(self.tokens) for i in ids):
            file.fail(key, f"ids of tokens, 0 to {len(self.tokens) - 1}")
        return ids


def added_tokens(tokenizer: JsonObject) -> Iterator[JsonObject]:
    """Yield the added tokens, which are matched in a text as a whole."""
    entries = tokenizer.get("added_tokens") or []
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        tokenizer.fail("added_tokens", "a list of objects")
    for entry in entries:
        token = JsonObject(entry, f"{tokenizer.file}: added_tokens")
        if token.flag("single_word"):
            token.refuse("single_word", f"the token {token.text('content')!r:.40} must do without")
        yield token


def special_metadata(
    sources: Sources, *, sees_all: bool = False, embeds: bool = False
) -> dict[str, Any]:
    """Return the ids of special tokens, whether texts begin with one, and the file of each end id.

    sees_all: whether a token may end every text, since the model continues none
    embeds: whether the folder is an embedding model's: if it also generates text, its end token
    follows texts to embed, but not prompts
    The tokenizer's own end comes first: chat templates call it `eos_token`.
    """
    first, last = _frame(sources, embeds=embeds)
    end = None
    if embeds and not sees_all:
        last, end = None, last
    if last is not None and not sees_all:
        raise FormatError(
            f"{sources.tokenizer.file}: post_processor puts a token behind a text, so that a "
            "prompt would be ended before it is answered; this is not supported"
        )
    begins, ends = _begins(sources, first), _ends(sources)
    begin = next(iter(begins), None)
    ids = {
        "bos": begin,
        "eos": next(iter(ends), None),
        "unknown": sources.find_token("unk_token"),
        "padding": sources.find_token("pad_token"),
        "seperator": last,
        "mask": _mask(sources),
    }
    metadata: dict[str, Any] = {
        f"{_PREFIX}{name}_token_id": token_id for name, token_id in ids.items()
        if token_id is not None
    }  # fmt: skip
    explicit = sources.tokenizer_config.get("add_bos_token") is not None
    adds = sources.tokenizer_config.flag("add_bos_token") if explicit else first is not None
    metadata[f"{_PREFIX}add_bos_token"] = adds and begin is not None
    metadata[f"{_PREFIX}add_sep_token"] = last is not None
    metadata[PAIR_SEPARATORS] = _pair_separators(sources)
    if begin is not None:
        metadata[BEGIN_ORIGIN] = begins[begin]
    if end is not None:
        metadata["cutaway.embedding.end_token_id"] = end
    metadata[END_IDS] = np.array(list(ends), np.int64)
    metadata[END_ORIGINS] = list(ends.values())
    metadata[RSTRIP_TOKEN_IDS] = _flagged_ids(sources, "rstrip")
    metadata[LSTRIP_TOKEN_IDS] = _flagged_ids(sources, "lstrip")
    return metadata


def _flagged_ids(sources: Sources, flag: str) -> NDArray[np.int64]:
    """Return the ids of the added tokens that have a flag."""
    flagged = (token.id("id") for token in added_tokens(sources.tokenizer) if token.flag(flag))
    return np.array([i for i in flagged if i < len(sources.tokens)], np.int64)


def _mask(sources: Sources) -> int | None:
    """Return the mask token: as the files name it, else by its usual spellings."""
    if (mask_id := sources.find_token("mask_token")) is not None:
        return mask_id
    for token_id in sources.find_ids(sources.config, "mask_token_id"):
        return token_id
    special = {
        token.text("content") for token in added_tokens(sources.tokenizer) if token.flag("special")
    }
    return next((sources.id_of(name) for name in _MASKS if name in special), None)


def _begins(sources: Sources, first: int | None) -> dict[int, str]:
    """Return every id that may begin texts -> the file that says so, by precedence."""
    begins = {} if first is None else {first: f"{sources.tokenizer.file} post_processor"}
    if (begin_id := sources.find_token("bos_token")) is not None:
        begins.setdefault(begin_id, f"{sources.tokenizer_config.file} bos_token")
    for token_id in sources.find_ids(sources.config, "bos_token_id"):
        begins.setdefault(token_id, f"{sources.config.file} bos_token_id")
    return begins


def _ends(sources: Sources) -> dict[int, str]:
    """Return every id that ends a generation -> the file that says so, the tokenizer's first."""
    ends: dict[int, str] = {}
    end_id = sources.find_token("eos_token")
    if end_id is not None:
        ends[end_id] = f"{sources.tokenizer_config.file} eos_token"
    for source in (sources.config, sources.generation):
        for token_id in sources.find_ids(source, "eos_token_id"):
            ends.setdefault(token_id, f"{source.file} eos_token_id")
    return ends


def _frame(sources: Sources, *, embeds: bool) -> tuple[int | None, int | None]:
    """Return the tokens that the post-processor puts before and after every text, None for none."""
    frame: tuple[int | None, int | None] = None, None
    if sources.tokenizer_config.flag("add_eos_token") and embeds:
        frame = None, sources.find_token("eos_token")
    elif sources.tokenizer_config.flag("add_eos_token"):
        sources.tokenizer_config.refuse(
            "add_eos_token", "a prompt would be ended before it is answered"
        )
    for step in _steps(sources.tokenizer.get("post_processor")):
        kind = step.get("type")
        if kind == "TemplateProcessing":
            frame = _template_tokens(sources, step)
        elif kind in ("BertProcessing", "RobertaProcessing"):
            frame = _pair_token(sources, step, "cls"), _pair_token(sources, step, "sep")
        elif kind != "ByteLevel":  # it only moves offsets
            sources.tokenizer.refuse("post_processor", "only TemplateProcessing and ByteLevel are")
    return frame


def _pair_separators(sources: Sources) -> int:
    """Return how many tokens the post-processor puts between two texts; RoBERTa's has two."""
    count = 1
    for step in _steps(sources.tokenizer.get("post_processor")):
        if step.get("type") == "RobertaProcessing":
            count = 2
        elif isinstance(pair := step.get("pair"), list):
            kinds = [name for part in pair if isinstance(part, dict) for name in part]
            texts = [i for i, kind in enumerate(kinds) if kind == "Sequence"]
            count = texts[1] - texts[0] - 1 if len(texts) == 2 else count
    return max(count, 1)


def _pair_token(sources: Sources, step: dict[str, Any], key: str) -> int:
    """Return a token that the step gives as [text, id]."""
    pair = step.get(key)
    return _id_of(sources, pair[0] if isinstance(pair, list) and pair else pair)


def _template_tokens(sources: Sources, step: dict[str, Any]) -> tuple[int | None, int | None]:
    """Return the tokens around the text in a template; a template may have nothing else."""
    parts = step.get("single")
    single = parts if isinstance(parts, list) and all(isinstance(o, dict) for o in parts) else []
    names = [name for part in single for name in part]
    around = {
        ("Sequence",): (None, None), ("SpecialToken", "Sequence"): (0, None),
        ("SpecialToken", "Sequence", "SpecialToken"): (0, 2),
        ("Sequence", "SpecialToken"): (None, 1),
    }.get(tuple(names))  # fmt: skip
    if around is None:
        raise FormatError(
            f"{sources.tokenizer.file}: post_processor puts more than one token in front of a text "
            "or behind it, which is not supported"
        )
    first, last = (None if at is None else _named_in(sources, single[at]) for at in around)
    return first, last


def _named_in(sources: Sources, part: dict[str, Any]) -> int:
    token = part["SpecialToken"]
    return _id_of(sources, token.get("id") if isinstance(token, dict) else token)


def _id_of(sources: Sources, text: object) -> int:
    token_id = sources.id_of(text)
    if token_id is None:
        raise FormatError(f"{sources.tokenizer.file}: post_processor names {text!r:.40}, no token")
    return token_id


def _steps(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, dict):
        return []
    if value.get("type") != "Sequence":
        return [value]
    steps = value.get("processors")
    return [s for s in steps if isinstance(s, dict)] if isinstance(steps, list) else []
