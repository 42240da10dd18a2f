"""A file's vocabulary, its special tokens, and the tokens for filling in the middle.

Knows the names and types of the ``tokenizer.ggml.*`` fields of the GGUF specification, and refuses
fields that contradict each other. Does not know how words are merged.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
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
# Fields of cutaway for facts that GGUF has no field for: every end token with its origin, where a
# space is put in front ("first": only at the beginning of the text), and the tokens that absorb the
# white space after or before them.
END_IDS, END_ORIGINS = "cutaway.end_token_ids", "cutaway.end_token_origins"
BEGIN_ORIGIN = "cutaway.begin_token_origin"
SPACE_PREFIX, RSTRIP_TOKEN_IDS = "cutaway.space_prefix", "cutaway.space_eating_token_ids"
PAIR_SEPARATORS = "cutaway.pair_separators"  # tokens between two texts that are read as one
LSTRIP_TOKEN_IDS = "cutaway.space_before_eating_token_ids"

# Control tokens that end a turn in every model that has them, even if the file's metadata does not
# name them (llama.cpp's list, without its heuristics).
END_OF_TURN = frozenset(
    {
        *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>"),
        *("<|end|>", "<|return|>", "<|call|>", "<end_of_turn>", "<end_of_utterance>"),
        *("<eos>", "</s>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<｜end▁of▁sentence｜>"),
    }
)


class Kind(IntEnum):
    """The type of a token (GGUF ``tokenizer.ggml.token_type``)."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def padding_name(row: int) -> str:
    """Return llama.cpp's name of a matrix row for which the tokenizer has no token."""
    return f"[PAD{row}]"


class Vocabulary(NamedTuple):
    """The stored texts of all tokens and their kinds, an int64 array (vocab_size,), by id."""

    tokens: list[str]
    kinds: npt.NDArray[np.int64]

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> "Vocabulary":
        """Read tokens and kinds; without kinds all tokens are normal. FormatError if malformed."""
        tokens = strings(metadata, TOKENS)
        kinds = numbers(metadata, KINDS, len(tokens), dtypes="iu")
        if kinds is None:
            kinds = np.full(len(tokens), Kind.NORMAL)
        return cls(tokens, kinds.astype(np.int64))

    def ids_of(self, *kinds: Kind) -> list[int]:
        """Return all ids of these kinds, ascending."""
        matches: list[int] = np.flatnonzero(np.isin(self.kinds, kinds)).tolist()
        return matches

    def table(self, *kinds: Kind) -> dict[str, int]:
        """Map token text -> id for these kinds, without empty texts."""
        return {self.tokens[i]: i for i in self.ids_of(*kinds) if self.tokens[i]}

    def end_ids(self, metadata: Mapping[str, Any]) -> dict[int, str]:
        """Map id -> origin for every token that ends a generation."""
        token_ids = ids(metadata, END_IDS, len(self.tokens))
        origins = strings(metadata, END_ORIGINS) if token_ids else []
        if len(origins) != len(token_ids):
            raise FormatError(f"{END_ORIGINS} must name one origin for each of {END_IDS}")
        ends = dict(zip(token_ids, origins, strict=True))
        for field in END_FIELDS:
            token_id = special_id(metadata, field, len(self.tokens))
            if token_id is not None:
                ends.setdefault(token_id, field)
        control = self.table(Kind.CONTROL)
        # In gpt-oss, <|return|> and <|call|> end a turn; <|end|> only ends a message.
        between = {"<|end|>"} if {"<|return|>", "<|call|>"} <= control.keys() else set()
        for text, token_id in control.items():
            if text in END_OF_TURN - between:
                ends.setdefault(token_id, f"control token {text}")
        return ends


def stored_bytes(text: str) -> bytes:
    """Return the bytes of a stored text; surrogates are bytes that are no UTF-8 (PEP 383)."""
    return text.encode("utf-8", "surrogateescape")


def strings(metadata: Mapping[str, Any], field: str) -> list[str]:
    """Return an array of strings; FormatError if the field is absent or anything else."""
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
    """Return an array of ``size`` finite numbers of NumPy's kinds ``dtypes``; None if absent."""
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
    """Return a token id, None if the field is absent; FormatError if the vocabulary lacks it."""
    value = metadata.get(field)
    if value is None:
        return None
    is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not (is_integer and 0 <= value < size):
        raise FormatError(
            f"{field} is {value!r:.40}, not an id from 0 to {size - 1}: fix the metadata"
        )
    return int(value)


def ids(metadata: Mapping[str, Any], field: str, size: int) -> list[int]:
    """Return token ids, [] if the field is absent; FormatError if the vocabulary lacks an id."""
    value = metadata.get(field, np.empty(0, np.int64))
    is_integers = isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "iu"
    if not is_integers or not ((value >= 0) & (value < size)).all():
        raise FormatError(f"{field} must be ids from 0 to {size - 1}: fix the metadata")
    token_ids: list[int] = value.tolist()
    return token_ids


def flag(metadata: Mapping[str, Any], field: str, default: bool) -> bool:
    """Return a boolean field, or its default if it is absent."""
    value = metadata.get(field, default)
    if not isinstance(value, bool | np.bool_):
        raise FormatError(f"{field} is {value!r:.40}, not true or false: fix the metadata")
    return bool(value)


# -- special tokens ----------------------------------------------------------------------------
# Special tokens are found in a text before any merging. At each place the longest literal wins; the
# text around it, spaces included, stays. A regular expression of all literals would be shorter, but
# Gemma's 6,000 take 0.1 s to compile and microseconds for each ``<``. A look-up of each possible
# length in a dict avoids both costs.


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
        """Yield the pieces of ``text`` in order: an id for each literal, a str for text between.

        mark: see ``escape``
        """
        start = 0
        for at, size in self._find_literals(text, mark):
            if at > start:
                yield text[start:at]
            yield self._table[text[at : at + size]]
            start = at + size
        if start < len(text):
            yield text[start:]

    def escape(self, text: str, mark: str) -> str:
        """Return ``text`` with ``mark`` after the first character of every literal.

        Overlapping literals count. So do parts that could become literals with other text around
        ``text``: the beginning of a literal at its end, and the end of a literal (of at least two
        characters) at its beginning.
        """
        if not self._first:
            return text
        starts = (match.start() for match in self._first.finditer(text))
        cuts = {at + 1 for at in starts if self._size(text, at) or self._may_begin(text, at)}
        if any(text[:size] in self._endings for size in range(2, self._longest)):
            cuts.add(1)
        return mark.join(text[a:b] for a, b in pairwise([0, *sorted(cuts), len(text)]))

    def _may_begin(self, text: str, at: int) -> bool:
        """Return whether the text from ``at`` to its end is the beginning of a literal."""
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

    def _find_literals(self, text: str, mark: str) -> Iterator[tuple[int, int]]:
        """Yield (position, length) of each literal; a single character before a mark is text."""
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
        """Return the length of the longest literal that begins there, or 0."""
        return next((n for n in self._lengths[text[at]] if text[at : at + n] in self._table), 0)


# -- filling in the middle ---------------------------------------------------------------------
# Each family has its own names for these tokens, and the order of its training. A file does not
# tell whether its model was trained with the tokens. The tokens that the metadata names are used,
# else special tokens with the spelling of one of these families.

_PREFIX = "tokenizer.ggml."
_FIELDS = (("fim_pre", "fim_suf", "fim_mid"), ("prefix", "suffix", "middle"))  # now, formerly
_REPOSITORY = ("fim_rep", ("<|repo_name|>", "<repo_name>", "<reponame>"))
_FILE = ("fim_sep", ("<|file_sep|>", "<|file_separator|>", "<file_sep>"))
_OTHER_ENDS = ("fim_pad", ("<|fim_pad|>", "<fim_pad>", "<fim-pad>", "▁<EOT>", "<EOT>"))


class _Family(NamedTuple):
    """The tokens before the prefix, before the suffix, and before the model's own text."""

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
# Codestral has no middle token: it continues the prefix. Mistral's later, byte-level vocabularies
# have these tokens in every model, whether or not it was trained with them.
_SENTENCEPIECE = (_Family("[PREFIX]", "[SUFFIX]", None),)


class FimTokens(NamedTuple):
    """Ids of the tokens that mark the parts of a text with a gap, and of those that end a filling.

    middle      None: the suffix comes first, and the model continues the prefix
    repository  precedes a project's name, ``file`` the name of each file; None: no such token
    """

    prefix: int
    suffix: int
    middle: int | None
    ends: tuple[int, ...]
    repository: int | None = None
    file: int | None = None

    def lay_out(self, before: Sequence[int], behind: Sequence[int]) -> list[int]:
        """Return the prompt whose continuation fills the gap."""
        if self.middle is None:
            return [self.suffix, *behind, self.prefix, *before]
        return [self.prefix, *before, self.suffix, *behind, self.middle]

    @classmethod
    def find(cls, vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> "FimTokens | None":
        """Find a model's tokens; None if it has none, FormatError for impossible ids."""
        size = len(vocabulary.tokens)

        def id_of_field(name: str) -> int | None:
            return special_id(metadata, f"{_PREFIX}{name}_token_id", size)

        spelled = vocabulary.table(Kind.CONTROL, Kind.USER_DEFINED)
        ids = _first_complete(
            [[*map(id_of_field, names)] for names in _FIELDS]
        ) or _ids_by_spelling(spelled, metadata)
        if ids is None:
            return None

        def ids_of(field: str, names: Sequence[str]) -> list[int]:
            return [i for i in (id_of_field(field), *map(spelled.get, names)) if i is not None]

        repository, file = ids_of(*_REPOSITORY), ids_of(*_FILE)
        ends = dict.fromkeys(
            [*ids_of(*_OTHER_ENDS), *repository, *file, *(i for i in ids if i is not None)]
        )
        return cls(
            *ids, ends=tuple(ends), repository=next(iter(repository), None),
            file=next(iter(file), None),
        )  # fmt: skip


_Ids = tuple[int, int, int | None]


def _first_complete(candidates: list[list[int | None]]) -> _Ids | None:
    for prefix, suffix, middle in candidates:
        if prefix is not None and suffix is not None and middle is not None:
            return prefix, suffix, middle
    return None


def _ids_by_spelling(ids: Mapping[str, int], metadata: Mapping[str, Any]) -> _Ids | None:
    sentencepiece = metadata.get(f"{_PREFIX}model") == "llama"
    for family in (*_FAMILIES, *(_SENTENCEPIECE if sentencepiece else ())):
        if all(name is None or name in ids for name in family):
            middle = None if family.middle is None else ids[family.middle]
            return ids[family.prefix], ids[family.suffix], middle
    return None
