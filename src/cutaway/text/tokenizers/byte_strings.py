"""RWKV's "world" tokenizer: from the left, always the longest token that fits.

Tokens are strings of bytes; each single byte is a token. Knows how GGUF stores them: printable
ASCII as it is, other bytes as Python writes them between quotes.
"""

import re
from collections import defaultdict
from collections.abc import Iterator

from cutaway.errors import FormatError
from cutaway.text.tokenizers.vocabulary import TOKENS, Kind, Vocabulary, stored_bytes

_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_SHORT = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}


class ByteStrings:
    """Ordinary text <-> tokens."""

    space_prefix, prefix_once, drops_text = False, False, False

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._bytes = {i: unescape(vocabulary.tokens[i]) for i in vocabulary.ids_of(Kind.NORMAL)}
        self._ids = {token: i for i, token in self._bytes.items() if token}
        if missing := [n for n in range(256) if bytes([n]) not in self._ids]:
            raise FormatError(
                f"{TOKENS} has no token for the byte {missing[0]}: convert the model again"
            )
        lengths: defaultdict[bytes, set[int]] = defaultdict(set)
        for token in self._ids:
            lengths[token[:2]].add(len(token))
        self._lengths = {first: sorted(sizes, reverse=True) for first, sizes in lengths.items()}

    def words(self, text: str, *, begins: bool = False) -> Iterator[list[int]]:  # noqa: ARG002
        """Yield the id of each token."""
        data, at = text.encode(), 0
        while at < len(data):
            size = self._longest(data, at)
            yield [self._ids[data[at : at + size]]]
            at += size

    def to_bytes(self, token_id: int) -> bytes:
        """Return the bytes of a token."""
        if token_id in self._bytes:
            return self._bytes[token_id]
        return stored_bytes(self._vocabulary.tokens[token_id])

    def _longest(self, data: bytes, at: int) -> int:
        """Return the length of the longest token that begins there."""
        sizes = self._lengths.get(data[at : at + 2], ())
        return next((n for n in sizes if data[at : at + n] in self._ids), 1)


def unescape(text: str) -> bytes:
    """Return the bytes of a stored token."""
    return _ESCAPE.sub(_byte, stored_bytes(text))


def _byte(match: re.Match[bytes]) -> bytes:
    escape = match[1]
    return bytes([int(escape[1:], 16)]) if len(escape) > 1 else _SHORT.get(escape, escape)


def escape(token: bytes) -> str:
    """Return the form in which GGUF stores a token."""
    return repr(token)[2:-1]
