"""WordPiece, the "bert" kind: each word is cut into the longest tokens that fit, from the left.

Knows how GGUF stores such tokens: with "▁" if they begin a word, otherwise bare. The ``tokenizers``
library cleans the text and splits it into words and tokens. It never gets special tokens.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from cutaway.errors import FormatError
from cutaway.text.tokenizers.vocabulary import Kind, Vocabulary, flag, stored_bytes

SPACE, GOES_ON, LONGEST_WORD = "▁", "##", 100
SETTINGS = ("clean_text", "handle_chinese_chars", "strip_accents", "lowercase")
FIELD = "cutaway.wordpiece_{}"  # fields of cutaway: whether each cleaning step is done
_WINDOW = re.compile(r"(?s).{1,8192}[^ ]*")  # no word has a space


class WordPiece:
    """Ordinary text <-> tokens. A word without tokens becomes the unknown token."""

    space_prefix, prefix_once = True, False  # the first token of a word includes a space
    drops_text = True

    def __init__(
        self, vocabulary: Vocabulary, metadata: Mapping[str, Any], unknown_id: int | None
    ) -> None:
        from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

        if unknown_id is None:
            raise FormatError("tokenizer.ggml.unknown_token_id is missing: convert the model again")
        ids = {
            text.removeprefix(SPACE) if _begins(text) else GOES_ON + text: i
            for text, i in vocabulary.table(Kind.NORMAL, Kind.USER_DEFINED).items()
        }
        unknown = vocabulary.tokens[unknown_id]
        self._vocabulary = vocabulary
        self._library = Tokenizer(
            models.WordPiece(
                vocab=ids | {unknown: unknown_id}, unk_token=unknown,
                continuing_subword_prefix=GOES_ON, max_input_chars_per_word=LONGEST_WORD,
            )
        )  # fmt: skip
        done = {name: flag(metadata, FIELD.format(name), True) for name in SETTINGS}
        self._library.normalizer = normalizers.BertNormalizer(**done)
        self._library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()

    def words(self, text: str, *, begins: bool = False) -> Iterator[list[int]]:  # noqa: ARG002
        """Yield the ids of ordinary text, word by word."""
        for window in _WINDOW.finditer(text):
            cut = self._library.encode(window[0], add_special_tokens=False)
            pairs = groupby(zip(cut.ids, cut.word_ids, strict=True), key=lambda pair: pair[1])
            yield from ([token_id for token_id, _ in word] for _, word in pairs)

    def to_bytes(self, token_id: int) -> bytes:
        """Return the bytes of a token, with the space before a word."""
        text = self._vocabulary.tokens[token_id]
        return stored_bytes(f" {text[1:]}" if _begins(text) else text)


def _begins(stored: str) -> bool:
    """Return whether a token begins a word; "▁" alone does not, and stays a character."""
    return stored.startswith(SPACE) and stored != SPACE


def as_stored(text: str) -> str:
    """Return the form in which GGUF stores a token of tokenizer.json."""
    return text[len(GOES_ON) :] if text.startswith(GOES_ON) else SPACE + text
