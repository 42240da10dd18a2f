"""How tokenizer.json cuts a text, and which tokenizer of `text/` does the same.

Knows the pre-tokenizers and normalizers of the `tokenizers` library that the supported families
use, and Unigram's pieces with their scores. Settings without an exact equal are refused by name.
"""

import json
from base64 import b64decode
from collections.abc import Iterator
from typing import Any

import numpy as np

from cutaway.errors import FormatError
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.text.tokenizers.pretokenizers import GPT2_WORDS, PRETOKENIZERS
from cutaway.text.tokenizers.unigram import CHARSMAP, PREPARATION, SCORES
from cutaway.text.tokenizers.wordpiece import FIELD, GOES_ON, LONGEST_WORD, SETTINGS

_SPACE = "▁"
_UNICODE = ("NFC",)  # ignored, as by the other files of these families: texts keep their bytes


def byte_level_family(tokenizer: JsonObject) -> str:
    """Return the family in `text.pretokenizers` that cuts texts alike; `FormatError` if none."""
    for normalizer in _flat(tokenizer.get("normalizer"), "normalizers"):
        if normalizer.get("type") not in _UNICODE:
            tokenizer.refuse("normalizer", f"only {' or '.join(_UNICODE)} is")
    steps = list(_flat(tokenizer.get("pre_tokenizer"), "pretokenizers"))
    patterns = tuple(p for step in steps for p in _patterns(tokenizer, step, len(steps)))
    whole_words = tokenizer.part("model").flag("ignore_merges")
    for name, family in PRETOKENIZERS.items():
        if (family.patterns, family.whole_words) == (patterns, whole_words):
            return name
    raise FormatError(
        f"{tokenizer.file}: pre_tokenizer cuts words by {' then '.join(patterns)!r:.200}"
        f"{', and keeps whole words,' if whole_words else ''} as no supported family does"
    )


def is_byte_level(tokenizer: JsonObject) -> bool:
    """Whether bytes become characters before anything is merged."""
    steps = _flat(tokenizer.get("pre_tokenizer"), "pretokenizers")
    return any(step.get("type") == "ByteLevel" for step in steps)


def wordpiece(tokenizer: JsonObject, model: JsonObject) -> dict[str, Any]:
    """Return the metadata of BERT's preparation; `FormatError` for any other."""
    model.must_be("continuing_subword_prefix", GOES_ON)
    model.must_be("max_input_chars_per_word", LONGEST_WORD)
    normalizers = list(_flat(tokenizer.get("normalizer"), "normalizers"))
    steps = list(_flat(tokenizer.get("pre_tokenizer"), "pretokenizers"))
    kinds = [step.get("type") for step in (*normalizers, *steps)]
    if kinds != ["BertNormalizer", "BertPreTokenizer"]:
        raise FormatError(
            f"{tokenizer.file}: normalizer and pre_tokenizer prepare a text in a way that is not "
            f"supported for WordPiece ({kinds!r:.200})"
        )
    normalizer = JsonObject(normalizers[0], f"{tokenizer.file}: normalizer")
    done = {name: normalizer.flag(name, True) for name in SETTINGS}
    done["strip_accents"] = normalizer.flag("strip_accents", done["lowercase"])
    metadata = {"tokenizer.ggml.model": "bert"} | {FIELD.format(k): v for k, v in done.items()}
    unknown = (model.get("vocab") or {}).get(model.text("unk_token"))
    return metadata if unknown is None else metadata | {"tokenizer.ggml.unknown_token_id": unknown}


def space_prefix(tokenizer: JsonObject) -> str | None:
    """Return where SentencePiece-like BPE puts a space, by its name in `text/`; None for nowhere.

    A normalizer puts "▁" before every stretch of text; Metaspace only at the very beginning, and
    never doubles it; Gemma has neither. `FormatError` for any other preparation of a text.
    """
    normalizers = list(_flat(tokenizer.get("normalizer"), "normalizers"))
    steps = list(_flat(tokenizer.get("pre_tokenizer"), "pretokenizers"))
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    prepend = {"type": "Prepend", "prepend": _SPACE}
    # No spaces are left when this runs, so it cuts nothing.
    idle = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious",
            "invert": False}  # fmt: skip
    if normalizers == [prepend, replace] and not steps:
        return "every"
    if normalizers == [replace] and steps in ([], [idle]):
        return None
    if not normalizers and len(steps) == 1:
        scheme = _metaspace(steps[0])
        if scheme in ("first", "never"):
            return "first" if scheme == "first" else None
    raise FormatError(
        f"{tokenizer.file}: normalizer and pre_tokenizer prepare a text in a way that is not "
        f"supported ({[*normalizers, *steps]!r:.200})"
    )


def _metaspace(step: dict[str, Any]) -> str | None:
    is_metaspace = step.get("type") == "Metaspace" and step.get("replacement") == _SPACE
    return step.get("prepend_scheme") if is_metaspace and step.get("split") is False else None


def _flat(value: Any, inside: str) -> Iterator[dict[str, Any]]:
    """Yield the steps one by one, also those of sequences, however deep they are nested."""
    waiting = [value]
    while waiting:
        step = waiting.pop()
        if isinstance(step, dict) and step.get("type") == "Sequence":
            steps = step.get(inside)
            waiting += reversed(steps) if isinstance(steps, list) else ()
        elif step is not None:
            yield step if isinstance(step, dict) else {"type": step}


def _patterns(tokenizer: JsonObject, step: dict[str, Any], steps: int) -> Iterator[str]:
    """Yield the expressions of one step; each isolates what it matches."""
    kind = step.get("type")
    if kind == "Split":
        yield _split(tokenizer, step, steps)
    elif kind == "Digits":
        yield r"\p{N}" if step.get("individual_digits") else r"\p{N}+"
    elif kind == "ByteLevel":
        if step.get("add_prefix_space"):
            raise FormatError(f"{tokenizer.file}: ByteLevel's add_prefix_space is not supported")
        if step.get("use_regex", True):
            yield GPT2_WORDS
    else:
        raise FormatError(f"{tokenizer.file}: the pre_tokenizer {kind!r:.40} is not supported")


def _split(tokenizer: JsonObject, step: dict[str, Any], steps: int) -> str:
    pattern = step.get("pattern")
    regex = pattern.get("Regex") if isinstance(pattern, dict) else None
    behavior = (step.get("behavior"), bool(step.get("invert")))
    # Dropping what an expression does not match drops nothing if it matches everything, as the
    # only expression of a family does.
    if not isinstance(regex, str) or not (
        behavior == ("Isolated", False) or (behavior == ("Removed", True) and steps == 2)
    ):
        raise FormatError(
            f"{tokenizer.file}: the pre_tokenizer splits in a way that is not supported "
            f"({step!r:.200})"
        )
    return regex


# -- Unigram: pieces with their scores, and what prepares a text -----------------------------------


_PREFIX = "tokenizer.ggml."


def scored_pieces(model: JsonObject) -> list[tuple[str, float]]:
    """Return (text, score) by id. `FormatError` if ``vocab`` is malformed or repeats a text."""
    pieces = model.get("vocab")
    if not isinstance(pieces, list) or not all(map(_is_piece, pieces)):
        model.fail("vocab", "a list of pieces, each with its score")
    if len({text for text, _ in pieces}) < len(pieces):
        model.fail("vocab", "a list of pieces that differ from each other")
    return [(text, float(score)) for text, score in pieces]


def _is_piece(piece: Any) -> bool:
    pair = isinstance(piece, list) and len(piece) == 2 and isinstance(piece[0], str)
    return pair and isinstance(piece[1], int | float) and not isinstance(piece[1], bool)


def unigram(tokenizer: JsonObject, model: JsonObject, rows: int) -> dict[str, Any]:
    """Return the metadata, without the tokens. `FormatError` for an unknown step."""
    pieces = scored_pieces(model)
    exact = np.zeros(rows, np.float64)
    exact[: len(pieces)] = [score for _, score in pieces]
    scores = exact.astype(np.float32)  # as GGUF has them, and SentencePiece
    preparation = {
        "normalizer": tokenizer.get("normalizer"),
        "pre_tokenizer": tokenizer.get("pre_tokenizer"),
        "byte_fallback": model.flag("byte_fallback"),
    }
    metadata = {
        f"{_PREFIX}model": "t5", f"{_PREFIX}pre": "default", f"{_PREFIX}scores": scores,
        f"{_PREFIX}unknown_token_id": model.get("unk_id"), PREPARATION: json.dumps(preparation),
        f"{_PREFIX}add_space_prefix": True, f"{_PREFIX}remove_extra_whitespaces": True,
    }  # fmt: skip
    if (scores != exact).any():
        metadata[SCORES] = exact
    charsmap = _charsmap(tokenizer)
    return metadata if charsmap is None else metadata | {CHARSMAP: charsmap}


def _charsmap(tokenizer: JsonObject) -> Any:
    """Return SentencePiece's map of characters, uint8; None if there is none."""
    waiting = [tokenizer.get("normalizer")]
    while waiting:
        step = waiting.pop()
        if not isinstance(step, dict):
            continue
        if step.get("type") == "Precompiled":
            try:
                return np.frombuffer(
                    b64decode(step.get("precompiled_charsmap") or "", validate=True), np.uint8
                )
            except (TypeError, ValueError) as error:
                raise FormatError(f"{tokenizer.file}: precompiled_charsmap: {error}") from error
        steps = step.get("normalizers")
        waiting += steps if isinstance(steps, list) else []
    return None
