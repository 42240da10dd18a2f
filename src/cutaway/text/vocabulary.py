"""The vocabulary as the file has it: token texts, their kinds, the special ids.

Knows the names and types of the ``tokenizer.ggml.*`` fields of the GGUF specification and refuses
what contradicts itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

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
