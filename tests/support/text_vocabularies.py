"""Tiny vocabularies in the shape of GGUF metadata."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from cutaway.text.tokenizers.byte_level import byte_alphabet

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)


def byte_level(
    merges: Sequence[str] = (),
    extra: Sequence[tuple[str, int]] = (),
    pre: str = "gpt-2",
    **fields: Any,
) -> dict[str, Any]:
    """Return 256 byte tokens (id = byte), a token for each merge, then ``extra`` (text, kind)."""
    tokens = [*byte_alphabet(), *(merge.replace(" ", "") for merge in merges)]
    kinds = [NORMAL] * len(tokens) + [kind for _, kind in extra]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [*tokens, *(text for text, _ in extra)],
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        "tokenizer.ggml.merges": list(merges),
    } | _add_prefix(fields)


def sentencepiece(
    pieces: Sequence[tuple[str, float]],
    extra: Sequence[tuple[str, int]] = (),
    byte_tokens: bool = True,
    **fields: Any,
) -> dict[str, Any]:
    """Return <unk> <s> </s>, 256 byte tokens (id = 3 + byte), ``pieces``, then ``extra``."""
    spelled = [f"<0x{byte:02X}>" for byte in range(256)] if byte_tokens else []
    head = ["<unk>", "<s>", "</s>", *spelled]
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * len(spelled), *[NORMAL] * len(pieces)]
    tokens = [*head, *(text for text, _ in pieces), *(text for text, _ in extra)]
    scores = [*[0.0] * len(head), *(score for _, score in pieces), *[0.0] * len(extra)]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array([*kinds, *(kind for _, kind in extra)], np.int32),
        "tokenizer.ggml.scores": np.array(scores, np.float32),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    } | _add_prefix(fields)


def byte_strings(strings: Sequence[bytes], extra: Sequence[tuple[str, int]] = ()) -> dict[str, Any]:
    """Return <s>, 256 byte tokens (id = 1 + byte), ``strings``, then ``extra`` (text, kind)."""
    tokens = [repr(token)[2:-1] for token in [*(bytes([n]) for n in range(256)), *strings]]
    kinds = [CONTROL, *[NORMAL] * len(tokens), *(kind for _, kind in extra)]
    return {
        "tokenizer.ggml.model": "rwkv",
        "tokenizer.ggml.tokens": ["<s>", *tokens, *(text for text, _ in extra)],
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
    }


def _add_prefix(fields: dict[str, Any]) -> dict[str, Any]:
    return {f"tokenizer.ggml.{name}": value for name, value in fields.items()}
