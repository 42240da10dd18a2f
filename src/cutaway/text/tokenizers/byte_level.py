"""Byte-level BPE, the "gpt2" kind: every byte is a character, merges have ranks.

Knows the byte alphabet, and how a family's expressions cut a text into words. cutaway's own code
merges, since a cold start would wait for the library, which takes longer to be ready.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from unicodedata import category

from tokenizers import Regex, pre_tokenizers

from cutaway.base import _native
from cutaway.errors import FormatError, InputError
from cutaway.text.tokenizers.bpe import LONGEST_REMEMBERED
from cutaway.text.tokenizers.pretokenizers import PreTokenizer
from cutaway.text.tokenizers.vocabulary import MERGES, Kind, Vocabulary, stored_bytes


def byte_alphabet() -> list[str]:
    """Return the printable character for each byte 0..255 (GPT-2's ``bytes_to_unicode``)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    substitutes = (chr(0x100 + n) for n in range(256))
    return [chr(byte) if byte in printable else next(substitutes) for byte in range(256)]


class ByteLevelBPE:
    """Ordinary text <-> tokens, by ranked merges over bytes."""

    space_prefix = prefix_once = drops_text = False

    def __init__(self, vocabulary: Vocabulary, merges: list[str], pre: PreTokenizer) -> None:
        # Control tokens are left out, so that neither a merge nor a whole word can produce one.
        hidden = vocabulary.ids_of(Kind.CONTROL, Kind.UNKNOWN)
        self._merges = _native.RankedMerges(vocabulary.tokens, hidden, merges)
        if (misfit := self._merges.misfit) >= 0:
            raise FormatError(
                f"{MERGES} does not fit tokenizer.ggml.tokens ({merges[misfit][:40]!r} is not two "
                "tokens that make a third): convert the model again"
            )
        alphabet = byte_alphabet()
        self._vocabulary = vocabulary
        self._byte = {char: bytes([byte]) for byte, char in enumerate(alphabet)}
        self._missing = frozenset(
            byte for byte, char in enumerate(alphabet) if self._merges.id_of(char) < 0
        )
        self._whole_words = pre.whole_words
        self._cuts = WordCuts(pre.patterns)
        self._remember = lru_cache(maxsize=16384)(self._merge)

    def words(self, text: str, *, begins: bool = False) -> Iterator[tuple[int, ...]]:  # noqa: ARG002
        """Yield the ids of ordinary text, word by word; InputError for a byte without a token."""
        # Some vocabularies lack bytes (SmolLM2: 0x04, 0xF1, ...); the library would drop them.
        if absent := self._missing.intersection(text.encode()):
            raise InputError(
                f"the text holds the byte 0x{min(absent):02X}, for which the model's vocabulary "
                "has no token: remove that character"
            )
        for word in self._cuts.words(text):
            yield self._remember(word) if len(word) <= LONGEST_REMEMBERED else self._merge(word)

    def to_bytes(self, token_id: int) -> bytes:
        """Return a token's bytes; user-defined tokens are stored as text."""
        text = self._vocabulary.tokens[token_id]
        # Comparing a NumPy number with an enum takes 6 µs, hence int().
        if int(self._vocabulary.kinds[token_id]) == Kind.USER_DEFINED:
            return stored_bytes(text)
        return b"".join(self._byte.get(char) or stored_bytes(char) for char in text)

    def _merge(self, word: str) -> tuple[int, ...]:
        if self._whole_words and (token_id := self._merges.id_of(word)) >= 0:
            return (token_id,)
        return tuple(self._merges.merge(word))


# -- word cuts ---------------------------------------------------------------------------------
# A family's expressions are applied one after the other, in time linear in the text. As published,
# those that group digits from the right, or match white space at the end, take quadratic time: a
# backtracking search reads to the end of a run from each of its characters. Equivalent expressions
# replace these, and arithmetic finds the groups of digits.
#
# The library holds the interpreter lock while it cuts a text, a second for a megabyte of digits. So
# a long text is cut in windows. Words that end well before a window's end are the same as in the
# whole text. The next window begins where the last of these ends: no expression looks back.

Cuts = pre_tokenizers.Sequence
_GROUP = 3  # digits
_WINDOW, _AHEAD = 8192, 1024  # characters of a window; how many after a word may decide its end
# Expressions whose match may depend on farther or on earlier characters.
_FAR = (r"\s+$", r"<sentinel:[0-9]+>")

# Equivalents in which a search begins only at the first character of a run.
_EQUAL = {r"\s+$": r"(?<!\s)\s+$"}
# Runs of digits cut into groups from the right, and whether a run is cut from its neighbours.
_RUNS = {
    r"\d{1,3}(?=(?:\d{3})*\b)": (r"(?<!\d)\d+(?!\d)\b", True),
    r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))": (r"\p{N}+", True),
    r"(?=(\d{3})+(?!\d))": (r"\d+", False),
}


class WordCuts:
    """Cuts a text into words, which are spelled in the byte alphabet."""

    def __init__(self, patterns: Sequence[str]) -> None:
        # The library applies all expressions between two cuts of digits in one call.
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

    def words(self, text: str) -> Iterator[str]:
        """Yield the words in their order."""
        parts = [text]
        for step in self._steps:
            parts = [word for part in parts for word, _ in step.pre_tokenize_str(part)]
        for part in parts:
            yield from self._cut(part)

    def _cut(self, text: str) -> Iterator[str]:
        begin, size = 0, _WINDOW if self._in_windows else len(text)
        while begin + size < len(text):
            window = text[begin : begin + size]
            end = min(_end_run(window), size - _AHEAD)
            cuts = self._last.pre_tokenize_str(window)
            certain = [(word, place[1]) for word, place in cuts if place[1] <= end]
            if certain:
                yield from (word for word, _ in certain)
                begin, size = begin + certain[-1][1], _WINDOW
            else:
                size *= 2  # a word exceeds the window
        yield from (word for word, _ in self._last.pre_tokenize_str(text[begin:]))


class _DigitGroups:
    """Cuts runs of digits into groups of three from the right.

    around: whether cuts are also made before and after each run
    """

    def __init__(self, run: str, around: bool) -> None:
        self._gaps, self._around = _split(run, "removed"), around

    def pre_tokenize_str(self, text: str) -> list[tuple[str, tuple[int, int]]]:
        """Return (piece, (start, end)) of all pieces, like the library's method of this name."""
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
    """Return the start of a run of white space or of letters and marks at the end of the text.

    The run's first cut may depend on how the run continues. If there is no such run, return the
    text's length.
    """
    begin = len(text.rstrip())
    if begin == len(text):
        while begin and (text[begin - 1].isalpha() or category(text[begin - 1])[0] == "M"):
            begin -= 1
    return begin


def _split(pattern: str, behaviour: str) -> pre_tokenizers.Split:
    return pre_tokenizers.Split(Regex(pattern), behaviour)
