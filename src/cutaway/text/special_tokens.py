"""Tokens that are found in a text as a whole, before any merging.

Knows literal texts and finds them leftmost first, longest first, leaving everything around them
(spaces too) untouched. A regular expression of all literals would be shorter, but takes 0.1 s to
compile and microseconds per ``<`` for Gemma's 6,000 of them; asking a dict for each possible length
takes neither.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping


class SpecialTokens:
    """Splits a text at the literals of ``table`` (text -> id)."""

    def __init__(self, table: Mapping[str, int]) -> None:
        self._table = table
        lengths: defaultdict[str, set[int]] = defaultdict(set)
        for literal in table:
            lengths[literal[0]].add(len(literal))
        self._lengths = {first: sorted(sizes, reverse=True) for first, sizes in lengths.items()}
        self._first = re.compile(f"[{re.escape(''.join(lengths))}]") if lengths else None

    def split(self, text: str) -> Iterator[str | int]:
        """The pieces of ``text`` in order: an id for each literal, a str for what lies between."""
        start = 0
        for at, size in self._found(text):
            if at > start:
                yield text[start:at]
            yield self._table[text[at : at + size]]
            start = at + size
        if start < len(text):
            yield text[start:]

    def escape(self, text: str, mark: str) -> str:
        """``text`` with ``mark`` after the first character of every literal, overlapping ones too.

        A literal of one character cannot be broken, and stays.
        """
        if not self._first:
            return text
        return self._first.sub(
            lambda first: first[0] + mark if self._size(text, first.start()) else first[0], text
        )

    def _found(self, text: str) -> Iterator[tuple[int, int]]:
        """(position, length) of each literal."""
        at = 0
        while self._first and (match := self._first.search(text, at)):
            at = match.start()
            size = self._size(text, at)
            if size:
                yield at, size
            at += size or 1

    def _size(self, text: str, at: int) -> int:
        """Length of the longest literal that begins there, or 0."""
        return next((n for n in self._lengths[text[at]] if text[at : at + n] in self._table), 0)
