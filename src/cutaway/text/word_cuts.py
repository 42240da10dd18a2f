r"""A family's expressions, applied one after the other, in time that is linear in the text.

A run of digits that is counted from behind, and white space at an end, take quadratic time as they
are published: a backtracking search looks to the end of a run from each of its characters. Those
expressions are replaced by equal ones; of the digits arithmetic finds the cuts.

The library holds the interpreter until a text is cut, a second for a megabyte of digits. So a long
text is cut in windows: words that end well before a window's end are those of the whole text, and
the next window begins where the last of them ends, since no expression looks back.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from unicodedata import category

from tokenizers import Regex, pre_tokenizers

Cuts = pre_tokenizers.Sequence
_GROUP = 3  # digits
_WINDOW, _AHEAD = 8192, 1024  # characters; how many behind a word may decide where it ends
# An expression whose match may depend on what is farther away than that, or before it.
_FAR = (r"\s+$", r"<sentinel:[0-9]+>")

# A search begins at the first character of a run alone.
_EQUAL = {r"\s+$": r"(?<!\s)\s+$"}
# The runs that are cut into groups from behind, and whether from what is around them as well.
_RUNS = {
    r"\d{1,3}(?=(?:\d{3})*\b)": (r"(?<!\d)\d+(?!\d)\b", True),
    r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))": (r"\p{N}+", True),
    r"(?=(\d{3})+(?!\d))": (r"\d+", False),
}


class WordCuts:
    """Cuts a text into words, whose bytes are written as characters."""

    def __init__(self, patterns: Sequence[str]) -> None:
        # What is between two cuts of digits is done by the library at once.
        self._steps: list[Cuts | _DigitGroups] = []
        cuts: list[pre_tokenizers.PreTokenizer] = []
        for pattern in patterns:
            if pattern in _RUNS:
                self._steps += [pre_tokenizers.Sequence(cuts)] if cuts else []
                self._steps.append(_DigitGroups(*_RUNS[pattern]))
                cuts = []
            else:
                cuts.append(_split(_EQUAL.get(pattern, pattern), "isolated"))
        as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        self._last = pre_tokenizers.Sequence([*cuts, as_bytes])
        self._in_windows = not any(pattern in _FAR for pattern in patterns)

    def words(self, text: str) -> list[str]:
        """The words in their order."""
        parts = [text]
        for step in self._steps:
            parts = [word for part in parts for word, _ in step.pre_tokenize_str(part)]
        return [word for part in parts for word in self._cut(part)]

    def _cut(self, text: str) -> Iterator[str]:
        begin, size = 0, _WINDOW if self._in_windows else len(text)
        while begin + size < len(text):
            window = text[begin : begin + size]
            end = min(_end_run(window), size - _AHEAD)
            found = self._last.pre_tokenize_str(window)
            known = [(word, place[1]) for word, place in found if place[1] <= end]
            if known:
                yield from (word for word, _ in known)
                begin, size = begin + known[-1][1], _WINDOW
            else:
                size *= 2  # a word is longer
        yield from (word for word, _ in self._last.pre_tokenize_str(text[begin:]))


class _DigitGroups:
    """Cuts runs of digits into groups of three from behind.

    around: and from what is before and behind them
    """

    def __init__(self, run: str, around: bool) -> None:
        self._gaps, self._around = _split(run, "removed"), around

    def pre_tokenize_str(self, text: str) -> list[tuple[str, tuple[int, int]]]:
        """As the library's: pieces and their places."""
        cuts = sorted({0, *self._cuts(text), len(text)})
        return [(text[a:b], (a, b)) for a, b in pairwise(cuts)]

    def _cuts(self, text: str) -> Iterator[int]:
        gaps = [place for _, place in self._gaps.pre_tokenize_str(text)]
        ends = [0, *(end for _, end in gaps)]
        for first, end in zip(ends, [*(begin for begin, _ in gaps), len(text)], strict=True):
            yield from range(end - _GROUP, first - 1, -_GROUP)
            if self._around:
                yield from (first, end)


def _end_run(text: str) -> int:
    """Where the run begins that a text ends with, of white space or of letters and marks.

    How its beginning is cut may depend on how it ends.
    """
    begin = len(text.rstrip())
    if begin == len(text):
        while begin and (text[begin - 1].isalpha() or category(text[begin - 1])[0] == "M"):
            begin -= 1
    return begin


def _split(pattern: str, behaviour: str) -> pre_tokenizers.Split:
    return pre_tokenizers.Split(Regex(pattern), behaviour)
