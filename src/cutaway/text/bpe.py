"""Byte-level BPE, the "gpt2" kind: every byte is a character, merges have ranks.

Knows the byte alphabet and ranks; `word_cuts` cuts the text into words. Merging is
our own: the library's takes 44 ms and 20 MB for 49k tokens before the first word, two dicts take 25
ms and 8 MB.
"""

from functools import lru_cache

from cutaway.errors import FormatError, InputError
from cutaway.text.merging import LONGEST_REMEMBERED, merge
from cutaway.text.pretokenizers import PreTokenizer
from cutaway.text.vocabulary import MERGES, Kind, Vocabulary, stored_bytes
from cutaway.text.word_cuts import WordCuts


def byte_alphabet() -> list[str]:
    """The printable character that stands for each byte 0..255 (GPT-2's ``bytes_to_unicode``)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (chr(0x100 + n) for n in range(256))
    return [chr(byte) if byte in printable else next(others) for byte in range(256)]


class ByteLevelBPE:
    """Ordinary text <-> tokens, by ranked merges over bytes."""

    space_prefix = prefix_once = drops_text = False

    def __init__(self, vocabulary: Vocabulary, merges: list[str], pre: PreTokenizer) -> None:
        # Control tokens stay out, so no merge and no whole word can ever produce one.
        hidden = set(vocabulary.ids_of(Kind.CONTROL, Kind.UNKNOWN))
        ids = {text: i for i, text in enumerate(vocabulary.tokens) if i not in hidden}
        _check_merges(ids, merges)
        alphabet = byte_alphabet()
        self._vocabulary = vocabulary
        self._byte = {char: bytes([byte]) for byte, char in enumerate(alphabet)}
        self._missing = frozenset(byte for byte, char in enumerate(alphabet) if char not in ids)
        self._ids = ids
        self._ranks = dict(zip(merges, range(len(merges)), strict=True))  # by "left right"
        self._whole_words = pre.whole_words
        self._cuts = WordCuts(pre.patterns)
        self._remember = lru_cache(maxsize=16384)(self._merge)

    def words(self, text: str, *, begins: bool = False) -> list[tuple[int, ...]]:  # noqa: ARG002
        """Ids of ordinary text, word by word; InputError for a byte that has no token."""
        # Some vocabularies lack bytes (SmolLM2: 0x04, 0xF1, ...); the library would drop them.
        if lost := self._missing.intersection(text.encode()):
            raise InputError(
                f"the text holds the byte 0x{min(lost):02X}, for which the model's vocabulary "
                "has no token: remove that character"
            )
        return [
            self._remember(word) if len(word) <= LONGEST_REMEMBERED else self._merge(word)
            for word in self._cuts.words(text)
        ]

    def to_bytes(self, token_id: int) -> bytes:
        """The bytes of a normal or user-defined token; the latter is stored as it reads."""
        text = self._vocabulary.tokens[token_id]
        # NumPy takes 6 µs to compare its number with an enum.
        if int(self._vocabulary.kinds[token_id]) == Kind.USER_DEFINED:
            return stored_bytes(text)
        return b"".join(self._byte.get(char) or stored_bytes(char) for char in text)

    def _merge(self, word: str) -> tuple[int, ...]:
        if self._whole_words and word in self._ids:
            return (self._ids[word],)
        return tuple(self._ids[part] for part in merge(word, self._rank))

    def _rank(self, left: str, right: str) -> int | None:
        return self._ranks.get(f"{left} {right}")


def _check_merges(ids: dict[str, int], merges: list[str]) -> None:
    """FormatError unless every merge makes a token of two tokens."""
    for pair in merges:
        left, _, right = pair.partition(" ")
        if left not in ids or right not in ids or left + right not in ids:
            raise FormatError(
                f"{MERGES} does not fit tokenizer.ggml.tokens ({pair[:40]!r} is not two tokens "
                "that make a third): convert the model again"
            )
