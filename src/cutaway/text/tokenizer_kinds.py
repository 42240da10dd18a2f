"""The kinds of tokenizers: how each makes tokens of ordinary text, read from a model's file.

Knows which fields of the file a kind needs. Each kind, and the library that it uses, is imported
when the first of it is made.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from cutaway.errors import FormatError
from cutaway.text import pretokenizers
from cutaway.text.vocabulary import (
    MERGES,
    SPACE_PREFIX,
    TOKENS,
    Vocabulary,
    flag,
    numbers,
    special_id,
    strings,
)

_PREFIX = "tokenizer.ggml."


class TokenizerKind(Protocol):
    """Ordinary text <-> tokens: what the kinds of tokenizers have in common."""

    @property
    def space_prefix(self) -> bool:
        """Whether a text, and what follows a special token, gets a space in front."""

    @property
    def prefix_once(self) -> bool:
        """Whether that is only at the very beginning, where there is no space yet."""

    @property
    def drops_text(self) -> bool:
        """Whether characters of a text may be in no token."""

    def words(self, text: str, *, begins: bool = False) -> Sequence[Sequence[int]]:
        """Ids of each word of a text without special tokens.

        begins: whether it gets a space in front, where the kind puts one
        """

    def to_bytes(self, token_id: int) -> bytes:
        """What a token that is not special adds to the text."""


Made = tuple[TokenizerKind, bool, bool]
"""The tokenizer; whether texts begin with BOS and end with a token where the file does not say."""


def _byte_level(vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> Made:
    from cutaway.text.bpe import ByteLevelBPE  # imports the tokenizers library

    pre = pretokenizers.lookup(metadata.get(pretokenizers.FIELD))
    return ByteLevelBPE(vocabulary, strings(metadata, MERGES), pre), pre.add_bos, pre.add_sep


def _sentencepiece(vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> Made:
    from cutaway.text.spm import SentencePieceBPE

    return SentencePieceBPE(vocabulary, **sentencepiece(metadata)), True, False


def sentencepiece(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What a ``SentencePieceBPE`` is made of beside its vocabulary, by name."""
    size, is_gemma4 = len(metadata[TOKENS]), metadata[_PREFIX + "model"] == "gemma4"
    # Gemma 4's merges say what is merged, whatever scores it has.
    scores = None if is_gemma4 else numbers(metadata, _PREFIX + "scores", size)
    if scores is None and MERGES not in metadata:
        raise FormatError(f"{_PREFIX}scores is missing: convert the model again")
    return {
        "scores": None if scores is None else scores.tolist(),
        "merges": strings(metadata, MERGES) if scores is None else None,
        "space_prefix": flag(metadata, _PREFIX + "add_space_prefix", not is_gemma4),
        "prefix_once": metadata.get(SPACE_PREFIX) == "first",
        "unknown_id": special_id(metadata, _PREFIX + "unknown_token_id", size),
    }


def _wordpiece(vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> Made:
    from cutaway.text.wordpiece import WordPiece

    unknown = special_id(metadata, _PREFIX + "unknown_token_id", len(vocabulary.tokens))
    return WordPiece(vocabulary, metadata, unknown), True, True


def _unigram(vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> Made:
    from cutaway.text.unigram import Unigram

    return Unigram(vocabulary, metadata), False, False


KINDS: Mapping[str, Callable[[Vocabulary, Mapping[str, Any]], Made]] = {
    "gpt2": _byte_level, "llama": _sentencepiece, "gemma4": _sentencepiece, "bert": _wordpiece,
    "t5": _unigram,
}  # fmt: skip
"""By ``tokenizer.ggml.model``."""
