"""A model's tokenizer as a page reads it (trace/web/js/local/tokenizer.js).

Refuses by name the tokenizers that a page does not have.
"""

from collections.abc import Mapping
from typing import Any

from cutaway.errors import InputError
from cutaway.text.tokenizers import Tokenizer, sentencepiece
from cutaway.text.tokenizers.pretokenizers import FIELD, lookup
from cutaway.text.tokenizers.vocabulary import (
    LSTRIP_TOKEN_IDS,
    RSTRIP_TOKEN_IDS,
    Vocabulary,
)

Data = dict[str, Any]


def page_tokenizer(metadata: Mapping[str, Any], tokenizer: Tokenizer) -> Data:
    """Describe a tokenizer for a page. InputError if a page cannot use it."""
    kind = metadata.get("tokenizer.ggml.model")
    if kind not in ("gpt2", "llama", "gemma4"):
        raise InputError(
            f"the model's tokenizer is {kind!r}, and a page has byte-level and SentencePiece's BPE "
            "alone"
        )
    if any(len(metadata.get(name, ())) for name in (RSTRIP_TOKEN_IDS, LSTRIP_TOKEN_IDS)):
        raise InputError(
            "the model's special tokens take the white space beside them, unlike a page's"
        )
    if tokenizer.sep_id is not None:
        raise InputError("the model's texts end with a token, unlike a page's")
    vocabulary = Vocabulary.from_gguf(metadata)
    return {
        "tokens": vocabulary.tokens,
        "kinds": vocabulary.kinds.tolist(),
        "bos_id": tokenizer.bos_id,
        "add_bos": tokenizer.add_bos,
        "names": {
            i: tokenizer.token_name(i)
            for i in range(tokenizer.vocab_size)
            if not tokenizer.token_bytes(i)
        },
        "words": _words(metadata) if kind == "gpt2" else None,
        "pieces": None if kind == "gpt2" else sentencepiece(metadata),
    }


def _words(metadata: Mapping[str, Any]) -> Data:
    pre = lookup(metadata.get(FIELD))
    return {
        "merges": list(metadata["tokenizer.ggml.merges"]),
        "patterns": list(pre.patterns),
        "whole_words": pre.whole_words,
    }
