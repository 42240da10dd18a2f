"""Tokens that are found in a text as a whole, before any merging.

Knows literal texts and finds them leftmost first, longest first, leaving everything around them
(spaces too) untouched. A regular expression of all literals would be shorter, but takes 0.1 s to
compile and microseconds per ``<`` for Gemma's 6,000 of them; asking a dict for each possible length
takes neither.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import pairwise


class SpecialTokens:
    """Splits a text at the literals of ``table`` (text -> id)."""

    def __init__(self, table: Mapping[str, int]) -> None:
        self._table = table
        lengths: defaultdict[str, set[int]] = defaultdict(set)
        for literal in table:
            lengths[literal[0]].add(len(literal))
        self._lengths = {first: sorted(sizes, reverse=True) for first, sizes in lengths.items()}
        self._first = re.compile(f"[{re.escape(''.join(lengths))}]") if lengths else None

    def split(self, text: str, mark: str = "") -> Iterator[str | int]:
        """The pieces of ``text`` in order: an id for each literal, a str for what lies between.

        mark: see ``escape``
        """
        start = 0
        for at, size in self._found(text, mark):
            if at > start:
                yield text[start:at]
            yield self._table[text[at : at + size]]
            start = at + size
        if start < len(text):
            yield text[start:]

    def escape(self, text: str, mark: str) -> str:
        """``text`` with ``mark`` after the first character of every literal, overlapping ones too.

        What may be part of a literal with the text around is broken as well: its beginning, at the
        end of ``text``, and its end of two characters or more, at the beginning.
        """
        if not self._first:
            return text
        starts = (found.start() for found in self._first.finditer(text))
        cuts = {at + 1 for at in starts if self._size(text, at) or self._may_begin(text[at:])}
        if any(text[:size] in self._endings for size in range(2, self._longest)):
            cuts.add(1)
        return mark.join(text[a:b] for a, b in pairwise([0, *sorted(cuts), len(text)]))

    def _may_begin(self, rest: str) -> bool:
        return len(rest) < self._longest and rest in self._beginnings

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._table))

    @cached_property
    def _beginnings(self) -> frozenset[str]:
        return frozenset(text[:n] for text in self._table for n in range(1, len(text)))

    @cached_property
    def _endings(self) -> frozenset[str]:
        return frozenset(text[-n:] for text in self._table for n in range(2, len(text)))

    def _found(self, text: str, mark: str) -> Iterator[tuple[int, int]]:
        """(position, length) of each literal; one character with a mark behind it is none."""
        at = 0
        while self._first and (match := self._first.search(text, at)):
            at = match.start()
            size = self._size(text, at)
            if size == 1 and mark and text.startswith(mark, at + 1):
                size = 0
            if size:
                yield at, size
            at += size or 1

    def _size(self, text: str, at: int) -> int:
        """Length of the longest literal that begins there, or 0."""
        return next((n for n in self._lengths[text[at]] if text[at : at + n] in self._table), 0)
