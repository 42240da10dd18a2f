"""Filling in the middle: the tokens with which a model marks the text before and after a gap.

Knows the families' names of these tokens and the order they were trained in. Whether a model was
trained with tokens that it has cannot be known: the ones that the file's metadata names are taken,
else three special tokens that are spelled as in one of these families.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from cutaway.text.vocabulary import Kind, Vocabulary, special_id

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
