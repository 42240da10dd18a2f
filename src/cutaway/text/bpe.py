"""Byte-level BPE, the "gpt2" kind: every byte is a character, merges have ranks.

Knows the byte alphabet and how to set up Hugging Face ``tokenizers``, which does
the merging (it builds 49k tokens in 0.04 s and encodes about a million characters
a second). Refuses to know special tokens: it sees only ordinary text.
"""

from __future__ import annotations

from typing import Any

from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from cutaway.errors import FormatError, InputError
from cutaway.text.pretokenizers import PreTokenizer
from cutaway.text.vocabulary import Kind, Vocabulary, stored_bytes

MERGES = "tokenizer.ggml.merges"


def byte_alphabet() -> list[str]:
    """The printable character that stands for each byte 0..255 (GPT-2's ``bytes_to_unicode``)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (chr(0x100 + n) for n in range(256))
    return [chr(byte) if byte in printable else next(others) for byte in range(256)]


class ByteLevelBPE:
    """Ordinary text <-> tokens, by ranked merges over bytes."""

    space_prefix = False

    def __init__(self, vocabulary: Vocabulary, merges: list[str], pre: PreTokenizer) -> None:
        # Control tokens stay out, so no merge and no whole word can ever produce one.
        hidden = set(vocabulary.ids_of(Kind.CONTROL, Kind.UNKNOWN))
        ids = {text: i for i, text in enumerate(vocabulary.tokens) if i not in hidden}
        alphabet = byte_alphabet()
        self._vocabulary = vocabulary
        self._byte = {char: bytes([byte]) for byte, char in enumerate(alphabet)}
        self._missing = frozenset(byte for byte, char in enumerate(alphabet) if char not in ids)
        self._bpe = Tokenizer(_model(ids, merges, pre))
        self._bpe.pre_tokenizer = _splitter(pre)

    def encode(self, text: str) -> list[int]:
        """Ids of ordinary text; InputError for a byte that the vocabulary has no token for."""
        # Some vocabularies lack bytes (SmolLM2: 0x04, 0xF1, ...); the library would drop them.
        if lost := self._missing.intersection(text.encode()):
            raise InputError(
                f"the text holds the byte 0x{min(lost):02X}, for which the model's vocabulary "
                "has no token: remove that character"
            )
        ids: list[int] = self._bpe.encode(text, add_special_tokens=False).ids
        return ids

    def to_bytes(self, token_id: int) -> bytes:
        """The bytes of a normal or user-defined token; the latter is stored as it reads."""
        text = self._vocabulary.tokens[token_id]
        if self._vocabulary.kinds[token_id] == Kind.USER_DEFINED:
            return stored_bytes(text)
        return b"".join(self._byte.get(char) or char.encode() for char in text)


def _model(ids: dict[str, int], merges: list[str], pre: PreTokenizer) -> models.BPE:
    pairs: list[Any] = [tuple(merge.split(" ", 1)) for merge in merges]
    try:
        return models.BPE(ids, pairs, ignore_merges=pre.whole_words)
    except Exception as error:  # the library raises bare Exception
        reason = str(error).partition("\n")[0][:80]
        raise FormatError(
            f"{MERGES} does not fit tokenizer.ggml.tokens ({reason}): convert the model again"
        ) from error


def _splitter(pre: PreTokenizer) -> pre_tokenizers.Sequence:
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in pre.patterns]
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([*cuts, as_bytes])
