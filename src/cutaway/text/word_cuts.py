r"""A family's expressions, applied one after the other, in time that is linear in the text.

A run of digits that is counted from behind, and white space at an end, take quadratic time as they
are published: a backtracking search looks to the end of a run from each of its characters. Those
expressions are replaced by equal ones; of the digits arithmetic finds the cuts.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from tokenizers import Regex, pre_tokenizers

Cuts = pre_tokenizers.Sequence
_GROUP = 3  # digits

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

    def words(self, text: str) -> list[str]:
        """The words in their order."""
        parts = [text]
        for step in self._steps:
            parts = [word for part in parts for word, _ in step.pre_tokenize_str(part)]
        return [word for part in parts for word, _ in self._last.pre_tokenize_str(part)]


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


def _split(pattern: str, behaviour: str) -> pre_tokenizers.Split:
    return pre_tokenizers.Split(Regex(pattern), behaviour)
