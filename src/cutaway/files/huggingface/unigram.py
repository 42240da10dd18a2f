"""A Unigram tokenizer.json as metadata: pieces with their scores, and what prepares a text.

Knows GGUF's fields for llama.cpp, which prepares texts in one way; `text/` reads all of it.
"""

import json
from base64 import b64decode
from typing import Any

import numpy as np

from cutaway.errors import FormatError
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.text.tokenizers.unigram import CHARSMAP, PREPARATION, SCORES

_PREFIX = "tokenizer.ggml."


def scored_pieces(model: JsonObject) -> list[tuple[str, float]]:
    """(text, score) by id. `FormatError` for a list that is none, or has a text twice."""
    listed = model.get("vocab")
    if not isinstance(listed, list) or not all(map(_is_piece, listed)):
        model.fail("vocab", "a list of pieces, each with its score")
    if len({text for text, _ in listed}) < len(listed):
        model.fail("vocab", "a list of pieces that differ from each other")
    return [(text, float(score)) for text, score in listed]


def _is_piece(one: Any) -> bool:
    pair = isinstance(one, list) and len(one) == 2 and isinstance(one[0], str)
    return pair and isinstance(one[1], int | float) and not isinstance(one[1], bool)


def unigram(tokenizer: JsonObject, model: JsonObject, rows: int) -> dict[str, Any]:
    """All but the tokens. `FormatError` for a step that the library does not know."""
    pieces = scored_pieces(model)
    exact = np.zeros(rows, np.float64)
    exact[: len(pieces)] = [score for _, score in pieces]
    scores = exact.astype(np.float32)  # as GGUF has them, and SentencePiece
    said = {
        "normalizer": tokenizer.get("normalizer"),
        "pre_tokenizer": tokenizer.get("pre_tokenizer"),
        "byte_fallback": model.flag("byte_fallback"),
    }
    metadata = {
        f"{_PREFIX}model": "t5", f"{_PREFIX}pre": "default", f"{_PREFIX}scores": scores,
        f"{_PREFIX}unknown_token_id": model.get("unk_id"), PREPARATION: json.dumps(said),
        f"{_PREFIX}add_space_prefix": True, f"{_PREFIX}remove_extra_whitespaces": True,
    }  # fmt: skip
    if (scores != exact).any():
        metadata[SCORES] = exact
    charsmap = _charsmap(tokenizer)
    return metadata if charsmap is None else metadata | {CHARSMAP: charsmap}


def _charsmap(tokenizer: JsonObject) -> Any:
    """How SentencePiece maps characters, uint8; None where it does not."""
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
