r"""How each family of byte-level models cuts a text into words before merging.

Knows, for each value of ``tokenizer.ggml.pre``, the regular expressions that are applied one after
the other (each cuts the fragments that the one before it left; what it does not match stays as a
fragment) and the two habits that come with the name. The expressions are those of the models' own
``tokenizer.json`` where llama.cpp's ``llama-vocab.cpp`` cites them, otherwise llama.cpp's.

A Unicode normalizer (Qwen's NFC) is left out, as llama.cpp does: the text comes
back byte for byte.
"""

from dataclasses import dataclass
from typing import Any

from cutaway.errors import FormatError

FIELD = "tokenizer.ggml.pre"

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_BAILING_WORDS = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]"
    r"|\s+(?!\S)|\s+"
)
_PUNCTUATION = r"[\p{P}\$\+<=>\^~\|]+"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"


def _words(digits: str) -> str:
    """The GPT-4 expression; Llama 3 and Qwen differ only in how many digits make a word."""
    return (
        rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
    )


def _cased_words(digits: str, suffix: str = "") -> str:
    """The o200k expression: a word also ends where upper case begins."""
    head = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{head}[{_UPPER}]*[{_LOWER}]+{suffix}|{head}[{_UPPER}]+[{_LOWER}]*{suffix}|{digits}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
    )


@dataclass(frozen=True)
class PreTokenizer:
    """Expressions in the order of use, and what the family does by default."""

    patterns: tuple[str, ...]
    whole_words: bool = False  # a word that is itself a token skips merging ("ignore_merges")
    add_bos: bool = False  # where the metadata does not say


_FAMILIES: tuple[tuple[str, PreTokenizer], ...] = (
    ("gpt-2 phi-2 mpt olmo jais exaone4", PreTokenizer((GPT2_WORDS,))),
    (
        "smollm starcoder refact command-r codeshell exaone minerva-7b",
        PreTokenizer((r"\p{N}", GPT2_WORDS)),
    ),
    (
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral lfm2",
        PreTokenizer((_words(r"\p{N}{1,3}"),), whole_words=True, add_bos=True),
    ),
    ("dbrx smaug-bpe", PreTokenizer((_words(r"\p{N}{1,3}"),))),
    ("qwen2 deepseek-r1-qwen stablelm2 megrez hunyuan", PreTokenizer((_words(r"\p{N}"),))),
    ("tekken", PreTokenizer((_cased_words(r"\p{N}"),), whole_words=True, add_bos=True)),
    ("gpt-4o llama4", PreTokenizer((_cased_words(r"\p{N}{1,3}", f"{_CONTRACTION}?"),))),
    ("bailingmoe bailingmoe2 llada-moe", PreTokenizer((_BAILING_WORDS,))),
    ("default", PreTokenizer((_PUNCTUATION, GPT2_WORDS, r"\p{N}+", r"[0-9][0-9][0-9]"))),
)
PRETOKENIZERS = {name: family for names, family in _FAMILIES for name in names.split()}


def lookup(name: Any) -> PreTokenizer:
    """The pre-tokenizer of that name; FormatError with the list of names for any other."""
    if not isinstance(name, str) or name not in PRETOKENIZERS:
        said = "is missing" if name is None else f"{name!r:.40} is not supported"
        raise FormatError(
            f"{FIELD} {said}: use a model with one of {', '.join(sorted(PRETOKENIZERS))}"
        )
    return PRETOKENIZERS[name]
