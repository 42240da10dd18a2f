"""RWKV's "world" tokenizer: from the left, always the longest token that fits.

Tokens are strings of bytes; each single byte is a token. Knows how GGUF stores them: printable
ASCII as it is, other bytes as Python writes them between quotes.
"""

import re
from collections.abc import Iterator

from cutaway.errors import FormatError
from cutaway.text.tokenizers.vocabulary import TOKENS, Kind, Vocabulary, stored_bytes

_LONGEST = 1024
"""The most bytes of a token, which bound the time of a character; RWKV's own have 128 at most."""
_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_SHORT = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}


class ByteStrings:
    """Ordinary text <-> tokens."""

    space_prefix, prefix_once, drops_text = False, False, False

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._bytes = {i: unescape(vocabulary.tokens[i]) for i in vocabulary.ids_of(Kind.NORMAL)}
        strings = {token: i for i, token in self._bytes.items() if token}
        if missing := [n for n in range(256) if bytes([n]) not in strings]:
            raise FormatError(
                f"{TOKENS} has no token for the byte {missing[0]}: convert the model again"
            )
        if (longest := max(map(len, strings))) > _LONGEST:
            raise FormatError(
                f"{TOKENS} has a token of {longest:,} bytes, and {_LONGEST:,} are the most: "
                "convert the model again"
            )
        self._nodes: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        for token, i in strings.items():
            self._ends[self._add(token)] = i

    def words(self, text: str, *, begins: bool = False) -> Iterator[list[int]]:  # noqa: ARG002
        """Yield the id of each token."""
        data, at = text.encode(), 0
        while at < len(data):
            token_id, at = self._longest(data, at)
            yield [token_id]

    def to_bytes(self, token_id: int) -> bytes:
        """Return the bytes of a token."""
        if token_id in self._bytes:
            return self._bytes[token_id]
        return stored_bytes(self._vocabulary.tokens[token_id])

    def _add(self, token: bytes) -> int:
        """Add a token's nodes to the trie; return the last.

        ``_nodes`` has the node behind a node (0: the root) and a byte, ``_ends`` the token of a
        node where one ends.
        """
        node = 0
        for byte in token:
            node = self._nodes.setdefault(node << 8 | byte, len(self._nodes) + 1)
        return node

    def _longest(self, data: bytes, at: int) -> tuple[int, int]:
        """Return the longest token that begins there, and where it ends.

        Each byte is a token, so that there always is one.
        """
        nodes, ends = self._nodes, self._ends
        node, longest, end = 0, 0, at
        while at < len(data) and (node := nodes.get(node << 8 | data[at], 0)):
            at += 1
            if node in ends:
                longest, end = ends[node], at
        return longest, end


def unescape(text: str) -> bytes:
    """Return the bytes of a stored token."""
    return _ESCAPE.sub(_byte, stored_bytes(text))


def _byte(match: re.Match[bytes]) -> bytes:
    escape = match[1]
    return bytes([int(escape[1:], 16)]) if len(escape) > 1 else _SHORT.get(escape, escape)


def escape(token: bytes) -> str:
    """Return the form in which GGUF stores a token."""
    return repr(token)[2:-1]
