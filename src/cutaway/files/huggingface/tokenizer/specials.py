"""The special tokens of a folder: which begin and end texts, and which file says so.

Knows the five files that name them and which of them is believed first.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

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
    """Where special tokens are named; tokens: the texts by id."""

    tokenizer: JsonObject
    own: JsonObject  # tokenizer_config.json, completed by special_tokens_map.json
    config: JsonObject
    generation: JsonObject
    tokens: list[str]

    def id_of(self, text: object) -> int | None:
        """A token's id, None where the model has no such token."""
        return self.tokens.index(text) if isinstance(text, str) and text in self.tokens else None

    def named(self, key: str) -> int | None:
        """The id of a token that the tokenizer's own config names by its text."""
        value = self.own.get(key)
        text = value.get("content") if isinstance(value, dict) else value
        if text is not None and not isinstance(text, str):
            self.own.fail(key, "the text of a token")
        return None if text is None else self.id_of(text)

    def numbered(self, where: JsonObject, key: str) -> list[int]:
        """The ids under a key that holds one or several."""
        value = where.get(key)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(i) is int and 0 <= i < len(self.tokens) for i in ids):
            where.fail(key, f"ids of tokens, 0 to {len(self.tokens) - 1}")
        return ids


def added_tokens(tokenizer: JsonObject) -> Iterator[JsonObject]:
    """The tokens that are found in a text as a whole."""
    added = tokenizer.get("added_tokens") or []
    if not isinstance(added, list) or not all(isinstance(one, dict) for one in added):
        tokenizer.fail("added_tokens", "a list of objects")
    for one in added:
        token = JsonObject(one, f"{tokenizer.file}: added_tokens")
        if token.flag("single_word"):
            token.refuse("single_word", f"the token {token.text('content')!r:.40} must do without")
        yield token


def special_metadata(
    where: Sources, *, sees_all: bool = False, embeds: bool = False
) -> dict[str, Any]:
    """The ids of special tokens, whether texts begin with one, and where ends are said.

    sees_all: whether a token may end every text, since the model continues none
    embeds: whether the folder is of a model of vectors: one that writes has its end token behind
    the texts of which vectors are made, and no prompts
    The first end is the tokenizer's own: chat templates mean that one by `eos_token`.
    """
    first, last = _frame(where, embeds=embeds)
    end = None
    if embeds and not sees_all:
        last, end = None, last
    if last is not None and not sees_all:
        raise FormatError(
            f"{where.tokenizer.file}: post_processor puts a token behind a text, so that a prompt "
            "would be ended before it is answered; this is not supported"
        )
    begins = _begins(where, first)
    begin = next(iter(begins), None)
    ends = _ends(where)
    ids = {
        "bos": begin,
        "eos": next(iter(ends), None),
        "unknown": where.named("unk_token"),
        "padding": where.named("pad_token"),
        "seperator": last,
        "mask": _mask(where),
    }
    metadata: dict[str, Any] = {
        f"{_PREFIX}{name}_token_id": token_id for name, token_id in ids.items()
        if token_id is not None
    }  # fmt: skip
    explicit = where.own.get("add_bos_token") is not None
    adds = where.own.flag("add_bos_token") if explicit else first is not None
    metadata[f"{_PREFIX}add_bos_token"] = adds and begin is not None
    metadata[f"{_PREFIX}add_sep_token"] = last is not None
    metadata[PAIR_SEPARATORS] = _pair_separators(where)
    if begin is not None:
        metadata[BEGIN_ORIGIN] = begins[begin]
    if end is not None:
        metadata["cutaway.embedding.end_token_id"] = end
    metadata[END_IDS] = np.array(list(ends), np.int64)
    metadata[END_ORIGINS] = list(ends.values())
    for name, key in (("rstrip", RSTRIP_TOKEN_IDS), ("lstrip", LSTRIP_TOKEN_IDS)):
        named = (one.id("id") for one in added_tokens(where.tokenizer) if one.flag(name))
        stripping = [token_id for token_id in named if token_id < len(where.tokens)]
        metadata[key] = np.array(stripping, np.int64)
    return metadata


def _mask(where: Sources) -> int | None:
    """The mask token: as the files name it, else by its usual spellings."""
    if (own := where.named("mask_token")) is not None:
        return own
    for token_id in where.numbered(where.config, "mask_token_id"):
        return token_id
    special = {one.text("content") for one in added_tokens(where.tokenizer) if one.flag("special")}
    return next((where.id_of(name) for name in _MASKS if name in special), None)


def _begins(where: Sources, first: int | None) -> dict[int, str]:
    """Every id that is said to begin texts -> what says so, the one to be believed first."""
    begins = {} if first is None else {first: f"{where.tokenizer.file} post_processor"}
    if (own := where.named("bos_token")) is not None:
        begins.setdefault(own, f"{where.own.file} bos_token")
    for token_id in where.numbered(where.config, "bos_token_id"):
        begins.setdefault(token_id, f"{where.config.file} bos_token_id")
    return begins


def _ends(where: Sources) -> dict[int, str]:
    """Every id that ends a generation -> what says so, the tokenizer's own first."""
    ends: dict[int, str] = {}
    own = where.named("eos_token")
    if own is not None:
        ends[own] = f"{where.own.file} eos_token"
    for source in (where.config, where.generation):
        for token_id in where.numbered(source, "eos_token_id"):
            ends.setdefault(token_id, f"{source.file} eos_token_id")
    return ends


def _frame(where: Sources, *, embeds: bool) -> tuple[int | None, int | None]:
    """The tokens that the post-processor puts before and after every text, None for none."""
    found: tuple[int | None, int | None] = None, None
    if where.own.flag("add_eos_token") and embeds:
        found = None, where.named("eos_token")
    elif where.own.flag("add_eos_token"):
        where.own.refuse("add_eos_token", "a prompt would be ended before it is answered")
    for step in _steps(where.tokenizer.get("post_processor")):
        kind = step.get("type")
        if kind == "TemplateProcessing":
            found = _of_template(where, step)
        elif kind in ("BertProcessing", "RobertaProcessing"):
            found = _of_pair(where, step, "cls"), _of_pair(where, step, "sep")
        elif kind != "ByteLevel":  # which moves offsets alone
            where.tokenizer.refuse("post_processor", "only TemplateProcessing and ByteLevel are")
    return found


def _pair_separators(where: Sources) -> int:
    """How many tokens the post-processor puts between two texts; RoBERTa's has two."""
    count = 1
    for step in _steps(where.tokenizer.get("post_processor")):
        if step.get("type") == "RobertaProcessing":
            count = 2
        elif isinstance(pair := step.get("pair"), list):
            kinds = [name for one in pair if isinstance(one, dict) for name in one]
            texts = [i for i, kind in enumerate(kinds) if kind == "Sequence"]
            count = texts[1] - texts[0] - 1 if len(texts) == 2 else count
    return max(count, 1)


def _of_pair(where: Sources, step: dict[str, Any], key: str) -> int:
    """A token that is given as [text, id]."""
    pair = step.get(key)
    return _id_of(where, pair[0] if isinstance(pair, list) and pair else pair)


def _of_template(where: Sources, step: dict[str, Any]) -> tuple[int | None, int | None]:
    """The tokens around the text in a template, which may hold nothing else."""
    found = step.get("single")
    single = found if isinstance(found, list) and all(isinstance(o, dict) for o in found) else []
    names = [name for one in single for name in one]
    around = {
        ("Sequence",): (None, None), ("SpecialToken", "Sequence"): (0, None),
        ("SpecialToken", "Sequence", "SpecialToken"): (0, 2),
        ("Sequence", "SpecialToken"): (None, 1),
    }.get(tuple(names))  # fmt: skip
    if around is None:
        raise FormatError(
            f"{where.tokenizer.file}: post_processor puts more than one token in front of a text "
            "or behind it, which is not supported"
        )
    first, last = (None if at is None else _named_in(where, single[at]) for at in around)
    return first, last


def _named_in(where: Sources, part: dict[str, Any]) -> int:
    token = part["SpecialToken"]
    return _id_of(where, token.get("id") if isinstance(token, dict) else token)


def _id_of(where: Sources, text: object) -> int:
    token_id = where.id_of(text)
    if token_id is None:
        raise FormatError(f"{where.tokenizer.file}: post_processor names {text!r:.40}, no token")
    return token_id


def _steps(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, dict):
        return []
    if value.get("type") != "Sequence":
        return [value]
    steps = value.get("processors")
    return [s for s in steps if isinstance(s, dict)] if isinstance(steps, list) else []
