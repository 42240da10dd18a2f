"""The vocabulary as the file has it, its special tokens, and those that mark a gap to be filled.

Knows the names and types of the ``tokenizer.ggml.*`` fields of the GGUF specification and refuses
what contradicts itself. Refuses to know how words are merged.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cutaway.errors import FormatError

TOKENS = "tokenizer.ggml.tokens"
KINDS = "tokenizer.ggml.token_type"
MERGES = "tokenizer.ggml.merges"
END_FIELDS = tuple(f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))
# What GGUF has no words for, and files of other kinds say: every end with its origin, where a
# space is put in front ("first": of the text alone), tokens that take the white space behind
# them, or before them.
END_IDS, END_ORIGINS = "cutaway.end_token_ids", "cutaway.end_token_origins"
BEGIN_ORIGIN = "cutaway.begin_token_origin"
SPACE_PREFIX, RSTRIP_TOKEN_IDS = "cutaway.space_prefix", "cutaway.space_eating_token_ids"
PAIR_SEPARATORS = "cutaway.pair_separators"  # tokens between two texts that are read as one
LSTRIP_TOKEN_IDS = "cutaway.space_before_eating_token_ids"

# Control tokens that end a turn in the models that have them, whether or not the
# file's metadata says so (the list that llama.cpp keeps, without its heuristics).
END_OF_TURN = frozenset(
    {
        *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>"),
        *("<|end|>", "<|return|>", "<|call|>", "<end_of_turn>", "<end_of_utterance>"),
        *("<eos>", "</s>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<｜end▁of▁sentence｜>"),
    }
)


class Kind(IntEnum):
    """What a token is for (GGUF ``tokenizer.ggml.token_type``)."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def padding_name(row: int) -> str:
    """What llama.cpp calls a row of a model's matrices for which the tokenizer has no token."""
    return f"[PAD{row}]"


@dataclass(frozen=True)
class Vocabulary:
    """Token texts as stored, and kinds: int array (vocab_size,), both indexed by id."""

    tokens: list[str]
    kinds: npt.NDArray[np.int64]

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> "Vocabulary":
        """Read tokens and kinds; without kinds every token is normal. FormatError if malformed."""
        tokens = strings(metadata, TOKENS)
        kinds = numbers(metadata, KINDS, len(tokens), dtypes="iu")
        if kinds is None:
            kinds = np.full(len(tokens), Kind.NORMAL)
        return cls(tokens, kinds.astype(np.int64))

    def ids_of(self, *kinds: Kind) -> list[int]:
        """All ids of these kinds, ascending."""
        found: list[int] = np.flatnonzero(np.isin(self.kinds, kinds)).tolist()
        return found

    def table(self, *kinds: Kind) -> dict[str, int]:
        """Token text -> id, over these kinds, without empty texts: nothing can match those."""
        return {self.tokens[i]: i for i in self.ids_of(*kinds) if self.tokens[i]}

    def end_ids(self, metadata: Mapping[str, Any]) -> dict[int, str]:
        """Every id that ends a generation -> where that is known from."""
        listed = ids(metadata, END_IDS, len(self.tokens))
        origins = strings(metadata, END_ORIGINS) if listed else []
        if len(origins) != len(listed):
            raise FormatError(f"{END_ORIGINS} must name one origin for each of {END_IDS}")
        ends = dict(zip(listed, origins, strict=True))
        for field in END_FIELDS:
            token_id = special_id(metadata, field, len(self.tokens))
            if token_id is not None:
                ends.setdefault(token_id, field)
        control = self.table(Kind.CONTROL)
        # Where <|return|> and <|call|> end a turn, <|end|> only ends a message (gpt-oss).
        between = {"<|end|>"} if {"<|return|>", "<|call|>"} <= control.keys() else set()
        for text, token_id in control.items():
            if text in END_OF_TURN - between:
                ends.setdefault(token_id, f"control token {text}")
        return ends


def stored_bytes(text: str) -> bytes:
    """The bytes of a text in the file; what was no UTF-8 came as lone surrogates (PEP 383)."""
    return text.encode("utf-8", "surrogateescape")


def strings(metadata: Mapping[str, Any], field: str) -> list[str]:
    """An array of strings, or FormatError."""
    value = metadata.get(field)
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value[:1]):
        raise FormatError(
            f"{field} is missing or not an array of strings: "
            "use a GGUF file that carries its tokenizer"
        )
    return value


def numbers(
    metadata: Mapping[str, Any], field: str, size: int, dtypes: str = "iuf"
) -> npt.NDArray[Any] | None:
    """An array of exactly ``size`` finite numbers of NumPy's kinds ``dtypes``, None if absent."""
    if field not in metadata:
        return None
    value = metadata[field]
    if not isinstance(value, np.ndarray) or value.dtype.kind not in dtypes:
        raise FormatError(f"{field} is not an array of numbers: convert the model again")
    if value.shape != (size,) or not np.isfinite(value).all():
        raise FormatError(
            f"{field} must hold {size} finite numbers, one for each token, "
            f"but its shape is {value.shape} of {value.dtype}: convert the model again"
        )
    return value


def special_id(metadata: Mapping[str, Any], field: str, size: int) -> int | None:
    """A token id, None where the field is absent; outside the vocabulary is a FormatError."""
    value = metadata.get(field)
    if value is None:
        return None
    known = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not (known and 0 <= value < size):
        raise FormatError(
            f"{field} is {value!r:.40}, not an id from 0 to {size - 1}: fix the metadata"
        )
    return int(value)


def ids(metadata: Mapping[str, Any], field: str, size: int) -> list[int]:
    """Token ids, none where the field is absent; outside the vocabulary is a FormatError."""
    value = metadata.get(field, np.empty(0, np.int64))
    known = isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "iu"
    if not known or not ((value >= 0) & (value < size)).all():
        raise FormatError(f"{field} must be ids from 0 to {size - 1}: fix the metadata")
    found: list[int] = value.tolist()
    return found


def flag(metadata: Mapping[str, Any], field: str, default: bool) -> bool:
    """A boolean field, or its default where it is absent."""
    value = metadata.get(field, default)
    if not isinstance(value, bool | np.bool_):
        raise FormatError(f"{field} is {value!r:.40}, not true or false: fix the metadata")
    return bool(value)


# -- special tokens ----------------------------------------------------------------------------
# They are found in a text as a whole, before any merging: literal texts, leftmost first, longest
# first; everything around them (spaces too) stays. A regular expression of all literals would be
# shorter, but takes 0.1 s to compile and microseconds per ``<`` for Gemma's 6,000 of them; asking a
# dict for each possible length takes neither.


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
        cuts = {at + 1 for at in starts if self._size(text, at) or self._may_begin(text, at)}
        if any(text[:size] in self._endings for size in range(2, self._longest)):
            cuts.add(1)
        return mark.join(text[a:b] for a, b in pairwise([0, *sorted(cuts), len(text)]))

    def _may_begin(self, text: str, at: int) -> bool:
        """Whether the text ends there within a literal."""
        return len(text) - at < self._longest and text[at:] in self._beginnings

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


# -- filling in the middle ---------------------------------------------------------------------
# Families have their names of these tokens, and an order that they were trained in. Whether a model
# was trained with tokens that it has cannot be known: the ones that the file's metadata names are
# taken, else three special tokens that are spelled as in one of these families.

_PREFIX = "tokenizer.ggml."
_FIELDS = (("fim_pre", "fim_suf", "fim_mid"), ("prefix", "suffix", "middle"))  # now, and before
_REPOSITORY = ("fim_rep", ("<|repo_name|>", "<repo_name>", "<reponame>"))
_FILE = ("fim_sep", ("<|file_sep|>", "<|file_separator|>", "<file_sep>"))
_OTHER_ENDS = ("fim_pad", ("<|fim_pad|>", "<fim_pad>", "<fim-pad>", "▁<EOT>", "<EOT>"))


class _Family(NamedTuple):
    """prefix, suffix, middle: before each part, and before what the model writes"""

    prefix: str
    suffix: str
    middle: str | None


_FAMILIES = (
    _Family("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen2.5-Coder, CodeGemma
    _Family("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite code
    _Family("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder, Refact
    _Family("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek-Coder
    _Family("▁<PRE>", "▁<SUF>", "▁<MID>"),  # CodeLlama
    _Family("<PRE>", "<SUF>", "<MID>"),
)
# Codestral, which continues the prefix. Mistral's later, byte-level vocabularies have
# these tokens in every model, and say nothing by it.
_SENTENCEPIECE = (_Family("[PREFIX]", "[SUFFIX]", None),)


@dataclass(frozen=True)
class FimTokens:
    """Ids of the tokens that lay out a text with a gap, and of those that end what fills it.

    middle      None: the suffix comes first, and the model continues the prefix
    repository  before a project's name, file before that of each file; None: there is none
    """

    prefix: int
    suffix: int
    middle: int | None
    ends: tuple[int, ...]
    repository: int | None = None
    file: int | None = None

    def lay_out(self, before: Sequence[int], behind: Sequence[int]) -> list[int]:
        """The prompt whose continuation fills the gap."""
        if self.middle is None:
            return [self.suffix, *behind, self.prefix, *before]
        return [self.prefix, *before, self.suffix, *behind, self.middle]

    @classmethod
    def find(cls, vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> "FimTokens | None":
        """Those of a model, or None where it has none; FormatError for ids that cannot be."""
        size = len(vocabulary.tokens)

        def named(name: str) -> int | None:
            return special_id(metadata, f"{_PREFIX}{name}_token_id", size)

        spelled = vocabulary.table(Kind.CONTROL, Kind.USER_DEFINED)
        ids = _named([[*map(named, names)] for names in _FIELDS]) or _spelled(spelled, metadata)
        if ids is None:
            return None

        def each(field: str, names: Sequence[str]) -> list[int]:
            return [i for i in (named(field), *map(spelled.get, names)) if i is not None]

        repository, file = each(*_REPOSITORY), each(*_FILE)
        ends = dict.fromkeys(
            [*each(*_OTHER_ENDS), *repository, *file, *(i for i in ids if i is not None)]
        )
        return cls(
            *ids, ends=tuple(ends), repository=next(iter(repository), None),
            file=next(iter(file), None),
        )  # fmt: skip


_Ids = tuple[int, int, int | None]


def _named(each: list[list[int | None]]) -> _Ids | None:
    for prefix, suffix, middle in each:
        if prefix is not None and suffix is not None and middle is not None:
            return prefix, suffix, middle
    return None


def _spelled(ids: Mapping[str, int], metadata: Mapping[str, Any]) -> _Ids | None:
    sentencepiece = metadata.get(f"{_PREFIX}model") == "llama"
    for family in (*_FAMILIES, *(_SENTENCEPIECE if sentencepiece else ())):
        if all(name is None or name in ids for name in family):
            middle = None if family.middle is None else ids[family.middle]
            return ids[family.prefix], ids[family.suffix], middle
    return None
