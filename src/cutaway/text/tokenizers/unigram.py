"""Unigram, the "t5" kind: cut a text into the pieces whose scores have the largest sum.

Kudo 2018, arXiv 1804.10959. The ``tokenizers`` library prepares a text by tokenizer.json's steps,
or by llama.cpp's for GGUF's fields. Cutaway's own code cuts the text: for 250,000 pieces the
library takes 1.4 s before the first text, a dict 0.1 s.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from functools import lru_cache
from math import inf
from typing import Any

import numpy as np

from cutaway.errors import FormatError
from cutaway.text.tokenizers.bpe import LONGEST_REMEMBERED
from cutaway.text.tokenizers.vocabulary import (
    Kind,
    Vocabulary,
    flag,
    numbers,
    special_id,
    stored_bytes,
)

SPACE = "▁"  # U+2581, a space in the spelling of pieces
PREPARATION = "cutaway.unigram"
"""JSON of tokenizer.json's normalizer and pre_tokenizer, and whether unknown text becomes bytes."""
SCORES = "cutaway.unigram_scores"
"""The scores in float64, if float32, GGUF's type, would change them."""
CHARSMAP = "tokenizer.ggml.precompiled_charsmap"
_PREFIX = "tokenizer.ggml."
_UNKNOWN_PENALTY = 10.0  # below the lowest score, as in SentencePiece


class Unigram:
    """Ordinary text <-> tokens. Text without a piece becomes byte tokens or the unknown token."""

    drops_text = True

    def __init__(self, vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> None:
        size = len(vocabulary.tokens)
        scores = numbers(metadata, SCORES if SCORES in metadata else f"{_PREFIX}scores", size)
        unknown = special_id(metadata, f"{_PREFIX}unknown_token_id", size)
        if scores is None or unknown is None:
            lacking = "scores" if scores is None else "unknown_token_id"
            raise FormatError(f"{_PREFIX}{lacking} is missing: convert the model again")
        self._vocabulary, self._unknown_id = vocabulary, unknown
        # Control and unknown tokens are left out: ordinary text never spells them.
        self._pieces = vocabulary.table(Kind.NORMAL, Kind.USER_DEFINED, Kind.BYTE)
        self._scores: list[float] = scores.tolist()
        self._unknown_score = min(self._scores, default=0.0) - _UNKNOWN_PENALTY
        self._longest: dict[str, int] = {}  # first character -> length of its longest piece
        for piece in self._pieces:
            self._longest[piece[0]] = max(self._longest.get(piece[0], 0), len(piece))
        preparation = _preparation(vocabulary, metadata)
        self._byte_fallback = preparation.get("byte_fallback") is True
        self._normalizer, self._splitter = _load_steps(preparation)
        schemes = set(_schemes(preparation.get("pre_tokenizer")))
        self.space_prefix, self.prefix_once = bool(schemes - {"never"}), "first" in schemes
        self._remember = lru_cache(maxsize=16384)(self._cut)

    def words(self, text: str, *, begins: bool = False) -> list[tuple[int, ...]]:
        """Return the ids of ordinary text, word by word. begins: put a space in front."""
        clean = text if self._normalizer is None else self._normalizer.normalize_str(text)
        words = [clean]
        if self._splitter is not None:
            words = [word for word, _ in self._splitter.pre_tokenize_str(clean)]
        if words and not begins and not clean.startswith((" ", SPACE)):
            words[0] = words[0].removeprefix(SPACE)
        return [
            self._remember(word) if len(word) <= LONGEST_REMEMBERED else self._cut(word)
            for word in words
        ]

    def to_bytes(self, token_id: int) -> bytes:
        """Return the bytes of a token."""
        text = self._vocabulary.tokens[token_id]
        if int(self._vocabulary.kinds[token_id]) == Kind.BYTE:
            return bytes([int(text[3:5], 16)])
        return stored_bytes(text.replace(SPACE, " "))

    def _cut(self, word: str) -> tuple[int, ...]:
        return tuple(token_id for part in self._parts(word) for token_id in self._ids(part))

    def _parts(self, word: str) -> list[str]:
        """Return the best cut (Viterbi), with adjacent unknown characters as one part.

        As in the library, the first of equal cuts wins, and scores are summed from the left.
        """
        best, starts = [0.0] + [-inf] * len(word), [0] * (len(word) + 1)
        unknown = [False] * (len(word) + 1)
        for start in range(len(word)):
            here, single = best[start], False
            for end in range(start + 1, start + self._longest.get(word[start], 0) + 1):
                token_id = self._pieces.get(word[start:end])
                if token_id is None or end > len(word):
                    continue
                single |= end == start + 1
                if (score := here + self._scores[token_id]) > best[end]:
                    best[end], starts[end], unknown[end] = score, start, False
            if not single and (score := here + self._unknown_score) > best[start + 1]:
                best[start + 1], starts[start + 1], unknown[start + 1] = score, start, True
        parts, end, after = list[str](), len(word), False
        while end:
            part = word[starts[end] : end]
            if unknown[end] and after:
                parts[-1] = part + parts[-1]
            else:
                parts.append(part)
            end, after = starts[end], unknown[end]
        return parts[::-1]

    def _ids(self, part: str) -> list[int]:
        if (token_id := self._pieces.get(part)) is not None:
            return [token_id]
        if self._byte_fallback:
            spelled = [self._pieces.get(f"<0x{byte:02X}>", -1) for byte in part.encode()]
            if min(spelled) >= 0:
                return spelled
        return [self._unknown_id]


def _preparation(vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the normalizer and pre-tokenizer as tokenizer.json describes them."""
    text = metadata.get(PREPARATION)
    if text is None:
        return _llama_cpp_preparation(vocabulary, metadata)
    try:
        preparation = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        preparation = None
    if not isinstance(preparation, dict):
        raise FormatError(f"{PREPARATION} is no JSON object: convert the model again")
    return preparation


def _llama_cpp_preparation(vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Describe llama.cpp's steps: map characters, merge spaces, write each word with its space.

    If no piece has a space inside, words are cut apart, which does not change the ids.
    """
    steps: list[dict[str, Any]] = []
    charsmap = metadata.get(CHARSMAP)
    if isinstance(charsmap, np.ndarray) and charsmap.dtype.itemsize == 1 and len(charsmap):
        text = b64encode(charsmap.tobytes()).decode()
        steps.append({"type": "Precompiled", "precompiled_charsmap": text})
    elif charsmap is not None and not isinstance(charsmap, np.ndarray):
        raise FormatError(f"{CHARSMAP} is no array of bytes: convert the model again")
    merges = flag(metadata, f"{_PREFIX}remove_extra_whitespaces", False)
    if merges:
        spaces = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
        steps += [spaces, {"type": "Strip", "strip_left": True, "strip_right": True}]
    prefixed = merges or flag(metadata, f"{_PREFIX}add_space_prefix", True)
    inner = any(SPACE in text[1:].lstrip(SPACE) for text in vocabulary.table(Kind.NORMAL))
    space = {
        "type": "Metaspace", "replacement": SPACE, "split": not inner,
        "prepend_scheme": "always" if prefixed else "never",
    }  # fmt: skip
    return {"normalizer": {"type": "Sequence", "normalizers": steps}, "pre_tokenizer": space}


def _load_steps(preparation: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the library's (normalizer, pre-tokenizer), each None if ``preparation`` lacks it."""
    from tokenizers import Tokenizer

    _check_charsmaps(preparation.get("normalizer"))
    whole: dict[str, Any] = {
        "version": "1.0", "added_tokens": [], "normalizer": preparation.get("normalizer"),
        "pre_tokenizer": preparation.get("pre_tokenizer"),
        "model": {"type": "Unigram", "unk_id": 0, "vocab": [["?", 0.0]]},
    }  # fmt: skip
    try:
        tokenizer = Tokenizer.from_str(json.dumps(whole))
    except Exception as error:  # the library raises no narrower type
        raise FormatError(f"the tokenizer's normalizer or pre_tokenizer: {error}") from error
    return tokenizer.normalizer, tokenizer.pre_tokenizer


def _check_charsmaps(step: Any) -> None:
    """Raise FormatError for a map of characters that would make the library panic."""
    if not isinstance(step, dict):
        return
    if step.get("type") == "Precompiled":
        try:
            data = b64decode(step.get("precompiled_charsmap") or "", validate=True)
        except (TypeError, ValueError):
            data = b""
        size = int.from_bytes(data[:4], "little")  # of the trie; the texts follow it
        if len(data) < 4 + 1024 or size % 4 or not 1024 <= size <= len(data) - 4:
            raise FormatError("the tokenizer's precompiled_charsmap is damaged: convert it again")
    for inner_step in step.get("normalizers") or ():
        _check_charsmaps(inner_step)


def _schemes(step: Any) -> Iterator[str]:
    """Yield the ``prepend_scheme`` of each Metaspace step."""
    if isinstance(step, dict) and step.get("type") == "Metaspace":
        plain = "always" if step.get("add_prefix_space", True) else "never"
        yield str(step.get("prepend_scheme", plain))
    elif isinstance(step, dict) and isinstance(steps := step.get("pretokenizers"), list):
        for inner_step in steps:
            yield from _schemes(inner_step)
