"""Turn text into token ids and back, as the model file defines it.

Knows the special tokens and when a text may spell them, the place of BOS, the ids that end a
generation, and the file's fields that each kind of tokenizer needs. Each kind does its own merging.
A kind and its library are imported when the first tokenizer of that kind is made. Does not know
models, sampling and files: metadata comes as a plain mapping.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, islice
from types import MappingProxyType
from typing import Any, Protocol

from cutaway.base.checks import shown
from cutaway.errors import FormatError, InputError
from cutaway.text.characters import printable_bytes
from cutaway.text.tokenizers import pretokenizers
from cutaway.text.tokenizers.vocabulary import (
    LSTRIP_TOKEN_IDS,
    MERGES,
    PAIR_SEPARATORS,
    RSTRIP_TOKEN_IDS,
    SPACE_PREFIX,
    TOKENS,
    FimTokens,
    Kind,
    SpecialTokens,
    Vocabulary,
    flag,
    numbers,
    padding_name,
    special_id,
    stored_bytes,
    strings,
)
from cutaway.text.tokenizers.vocabulary import ids as token_ids

# -- the kinds ---------------------------------------------------------------------------------

_PREFIX = "tokenizer.ggml."


class TokenizerKind(Protocol):
    """Ordinary text <-> tokens: the interface of all kinds of tokenizers."""

    @property
    def space_prefix(self) -> bool:
        """Whether a space is put before a text, and before text after a special token."""

    @property
    def prefix_once(self) -> bool:
        """Whether the space is only put at the very beginning, unless the text begins with one."""

    @property
    def drops_text(self) -> bool:
        """Whether tokens may lack some of a text's characters."""

    def words(self, text: str, *, begins: bool = False) -> Iterable[Sequence[int]]:
        """Return the ids of each word of a text without special tokens.

        begins: put a space in front, if the kind wants one
        """

    def to_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token which is not special adds to the text."""


KindAndDefaults = tuple[TokenizerKind, bool, bool]
"""(tokenizer, whether a text begins with BOS and ends with SEP if the file does not tell)."""


def _byte_level(vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> KindAndDefaults:
    from cutaway.text.tokenizers.byte_level import ByteLevelBPE

    pre = pretokenizers.lookup(metadata.get(pretokenizers.FIELD))
    return ByteLevelBPE(vocabulary, strings(metadata, MERGES), pre), pre.add_bos, pre.add_sep


def _sentencepiece(vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> KindAndDefaults:
    from cutaway.text.tokenizers.bpe import SentencePieceBPE

    return SentencePieceBPE(vocabulary, **sentencepiece(metadata)), True, False


def sentencepiece(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``SentencePieceBPE``, besides the vocabulary."""
    size, is_gemma4 = len(metadata[TOKENS]), metadata[_PREFIX + "model"] == "gemma4"
    # Gemma 4 uses its merges, even if the file has scores.
    scores = None if is_gemma4 else numbers(metadata, _PREFIX + "scores", size)
    if scores is None and MERGES not in metadata:
        raise FormatError(f"{_PREFIX}scores is missing: convert the model again")
    return {
        "scores": None if scores is None else scores.tolist(),
        "merges": strings(metadata, MERGES) if scores is None else None,
        "space_prefix": flag(metadata, _PREFIX + "add_space_prefix", not is_gemma4),
        "prefix_once": metadata.get(SPACE_PREFIX) == "first",
        "unknown_id": special_id(metadata, _PREFIX + "unknown_token_id", size),
    }


def _wordpiece(vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> KindAndDefaults:
    from cutaway.text.tokenizers.wordpiece import WordPiece

    unknown = special_id(metadata, _PREFIX + "unknown_token_id", len(vocabulary.tokens))
    return WordPiece(vocabulary, metadata, unknown), True, True


def _unigram(vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> KindAndDefaults:
    from cutaway.text.tokenizers.unigram import Unigram

    return Unigram(vocabulary, metadata), False, False


def _byte_strings(vocabulary: Vocabulary, _metadata: Mapping[str, Any]) -> KindAndDefaults:
    from cutaway.text.tokenizers.byte_strings import ByteStrings

    return ByteStrings(vocabulary), False, False


KINDS: Mapping[str, Callable[[Vocabulary, Mapping[str, Any]], KindAndDefaults]] = {
    "gpt2": _byte_level, "llama": _sentencepiece, "gemma4": _sentencepiece, "bert": _wordpiece,
    "t5": _unigram, "rwkv": _byte_strings,
}  # fmt: skip
"""Loaders by ``tokenizer.ggml.model``."""


# -- the tokenizer -----------------------------------------------------------------------------

# White space as Unicode defines it; Python's str.strip removes more.
_WHITE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)
_TEXTKINDS = (Kind.NORMAL, Kind.USER_DEFINED, Kind.BYTE)  # the kinds that add to the text


class Tokenizer:
    """One model's tokenizer. Immutable, safe to share between threads.

    vocab_size: number of tokens; ids are 0 to vocab_size - 1
    bos_id:     the begin-of-sequence token, or None
    add_bos:    whether the model wants BOS before every text
    sep_id:     the token that the model wants after every text (BERT's [SEP]), or None
    pair_separators: number of ``sep_id`` between two texts that are read as one
    mask_id:    the mask token, whose place the model fills in, or None
    fim:     the tokens that lay out a text with a gap, or None
    end_ids:    id -> origin, for every id that ends a generation
    rstrip_token_ids: tokens that absorb the white space after them (Phi-3's)
    lstrip_token_ids: tokens that absorb the white space before them (RoBERTa's mask)
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        pieces: TokenizerKind,
        *,
        bos_id: int | None,
        add_bos: bool,
        end_ids: Mapping[int, str],
        sep_id: int | None = None,
        pair_separators: int = 1,
        mask_id: int | None = None,
        fim: FimTokens | None = None,
        rstrip_token_ids: Iterable[int] = (),
        lstrip_token_ids: Iterable[int] = (),
        lacks_bos: bool = False,
    ) -> None:
        self._vocabulary = vocabulary
        self._pieces = pieces
        self.vocab_size = len(vocabulary.tokens)
        self.bos_id = bos_id
        self.add_bos = add_bos and bos_id is not None
        self.end_ids: Mapping[int, str] = MappingProxyType(dict(end_ids))
        self.sep_id, self.mask_id, self.fim = sep_id, mask_id, fim
        self._lacks_bos = lacks_bos
        self.pair_separators = pair_separators
        self._rstrip_token_ids = frozenset(rstrip_token_ids)
        self._lstrip_token_ids = frozenset(lstrip_token_ids)

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> "Tokenizer":
        """Read GGUF's ``tokenizer.ggml.*``; FormatError for a kind that is not supported."""
        kind = metadata.get(_PREFIX + "model")
        vocabulary = Vocabulary.from_gguf(metadata)
        if not isinstance(kind, str) or kind not in KINDS:
            problem = "is missing" if kind is None else f"{kind!r:.40} is not supported"
            raise FormatError(
                f"{_PREFIX}model {problem}: use a model whose tokenizer is {' or '.join(KINDS)}"
            )
        pieces, wants_bos, wants_sep = KINDS[kind](vocabulary, metadata)
        size = len(vocabulary.tokens)
        bos, begin, sep, mask = (
            special_id(metadata, f"{_PREFIX}{name}_token_id", size)
            for name in ("bos", "cls", "seperator", "mask")  # GGUF's spelling
        )
        if bos is None and wants_bos:
            bos = begin  # llama.cpp's conversion of BERT writes BOS as CLS
        adds_sep = flag(metadata, _PREFIX + "add_sep_token", wants_sep)
        if kind == "t5" and not adds_sep:  # T5 ends each text with EOS
            sep = special_id(metadata, _PREFIX + "eos_token_id", size)
            adds_sep = flag(metadata, _PREFIX + "add_eos_token", True)
        return cls(
            vocabulary,
            pieces,
            bos_id=bos,
            add_bos=flag(metadata, _PREFIX + "add_bos_token", wants_bos),
            end_ids=vocabulary.end_ids(metadata),
            sep_id=sep if adds_sep else None,
            pair_separators=2
            if metadata.get(PAIR_SEPARATORS, 2 if kind == "t5" else 1) == 2
            else 1,
            mask_id=mask,
            fim=FimTokens.find(vocabulary, metadata),
            rstrip_token_ids=token_ids(metadata, RSTRIP_TOKEN_IDS, size),
            lstrip_token_ids=token_ids(metadata, LSTRIP_TOKEN_IDS, size),
            lacks_bos=bos is None and metadata.get(_PREFIX + "add_bos_token") is True,
        )

    def has_tokens_of(self, other: "Tokenizer") -> bool:
        """Return whether every id is the same token in both."""
        return self._vocabulary.tokens == other._vocabulary.tokens

    def encode(
        self,
        text: str,
        *,
        special: bool = False,
        add_bos: bool | None = None,
        mark: str = "",
        goes_on: bool = False,
        most: int | None = None,
    ) -> list[int]:
        """Return the token ids of ``text``.

        special: whether "<|im_start|>" and the like are tokens; otherwise they are ordinary text
        add_bos: put BOS first, and SEP last if the model wants one; None: as the model wants it.
                 A text that has the token already does not get it twice
        mark:    the character that ``escape_special_tokens`` inserted; it is removed
        goes_on: the text continues another, so neither a space nor BOS is put first
        most:    the most ids of the text; the rest of the text is not cut into words
        InputError: a lone surrogate, a byte without a token, ``add_bos`` for a model without BOS.
        """
        _check_text(text)
        parts = (self._all_specials if special else self._user_defined).split(text, mark)
        pieces = [*(self._remove_mark(parts, mark) if mark else parts)]
        ids = self._ids(pieces, goes_on=goes_on, most=most)
        return self._frame(ids, self.add_bos and not goes_on if add_bos is None else add_bos)

    def encode_parts(self, parts: Iterable[str | int]) -> list[int]:
        """Return the token ids of a prompt that consists of texts and single token ids."""
        pieces: list[str | int] = []
        for part in parts:
            if isinstance(part, str):
                _check_text(part)
            pieces += [part] if isinstance(part, int) else self._user_defined.split(part)
        return self._frame(self._ids(pieces), self.add_bos)

    def words(self, text: str) -> list[Sequence[int]]:
        """Return the token ids of each word of a text, without BOS or end tokens."""
        _check_text(text)
        return [*self._words([*self._user_defined.split(text)])]

    def _ids(
        self, pieces: Sequence[str | int], *, goes_on: bool = False, most: int | None = None
    ) -> list[int]:
        ids = chain.from_iterable(self._words(pieces, goes_on=goes_on))
        return [*islice(ids, most)]

    def _words(
        self, pieces: Sequence[str | int], *, goes_on: bool = False
    ) -> Iterator[Sequence[int]]:
        """Yield the ids of each word of texts, and the special tokens between the texts."""
        fresh, eaten = self._pieces.space_prefix and not goes_on, False
        for part, following in zip(pieces, [*pieces[1:], None], strict=False):
            if isinstance(part, str) and following in self._lstrip_token_ids:
                part = part.rstrip(_WHITE)  # noqa: PLW2901
            if isinstance(part, int):
                yield [part]
            elif rest := part.lstrip(_WHITE) if eaten else part:
                yield from self._pieces.words(rest, begins=fresh)
            fresh = self._begins_again and isinstance(part, int)
            eaten = part in self._rstrip_token_ids

    def notes(self, ids: Sequence[int], text: str | None = None) -> tuple[str, ...]:
        """Return warnings about the BOS token of a prompt; () for most prompts.

        text: the prompt's text, if it was encoded with special=True
        """
        if self.bos_id is None:
            note = (
                "the model's file asks for a BOS token first and names none, so none is put there"
            )
            return (note,) if self._lacks_bos else ()
        name, head = self.token_name(self.bos_id), list(ids[:2])
        if head == [self.bos_id, self.bos_id]:
            return (f"the prompt begins with {name} twice; give it once",)
        if self.add_bos and head[:1] != [self.bos_id]:
            return (f"the model expects {name} first, and the prompt begins without it",)
        if self.add_bos and text is not None and text.startswith(name):
            return (f"the prompt has its own {name}, so none was put in front of it",)
        return ()

    def min_tokens(self, text: str) -> int:
        """Return a lower bound on the number of tokens of ``text``, without encoding it."""
        if self._pieces.drops_text:
            return 0
        return -(-len(text) // self._longest)

    def escape_special_tokens(self, text: str, mark: str) -> str:
        """Return ``text`` with ``mark`` inside each control token, so that it is ordinary text.

        A longer text can then include the result and be encoded with special=True and the same
        mark, which must occur nowhere else.
        """
        return self._control_tokens.escape(text, mark)

    def control_tokens(self, text: str) -> dict[str, int]:
        """Map name -> id for each control token in ``text``."""
        ids = self._control_tokens.split(text)
        return {self._vocabulary.tokens[i]: i for i in ids if isinstance(i, int)}

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        """Return the whole text of ``ids``; special=True shows control tokens by name.

        Also removes the spaces that ``encode`` put in front. Bytes that are not UTF-8
        become U+FFFD. For a text that is still growing use ``token_bytes`` with ``TextStream``.
        """
        parts: list[bytes] = []
        fresh = self._pieces.space_prefix
        for token_id in ids:
            kind = self._kind(token_id)
            if kind in _TEXTKINDS:
                data = self._pieces.to_bytes(token_id)
            else:
                data = stored_bytes(self._vocabulary.tokens[token_id]) if special else b""
            ordinary = kind in (Kind.NORMAL, Kind.BYTE)
            parts.append(data.removeprefix(b" ") if fresh and ordinary else data)
            fresh = self._begins_again and not ordinary
        return b"".join(parts).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes a token adds to the text: b"" for control, unknown and unused tokens."""
        return self._pieces.to_bytes(token_id) if self._kind(token_id) in _TEXTKINDS else b""

    @cached_property
    def padding_ids(self) -> tuple[int, ...]:
        """The ids whose names tell that they are no tokens: their rows only pad the matrices."""
        unused, tokens = self._vocabulary.ids_of(Kind.UNUSED), self._vocabulary.tokens
        return tuple(i for i in unused if tokens[i] == padding_name(i))

    def token_name(self, token_id: int) -> str:
        """Return a token's printable name, never "": "<|im_end|>", " the", "<0x0A>"."""
        if self._kind(token_id) == Kind.NORMAL:
            name = printable_bytes(self._pieces.to_bytes(token_id))
        else:
            name = printable_bytes(stored_bytes(self._vocabulary.tokens[token_id]))
        return name or f"[empty token {token_id}]"

    @cached_property
    def _longest(self) -> int:
        """The largest number of characters that one token can cover."""
        return max(map(len, self._vocabulary.tokens), default=1) or 1

    @cached_property
    def _user_defined(self) -> SpecialTokens:
        return SpecialTokens(self._vocabulary.table(Kind.USER_DEFINED))

    @cached_property
    def _control_tokens(self) -> SpecialTokens:
        return SpecialTokens(self._vocabulary.table(Kind.CONTROL, Kind.UNKNOWN))

    @cached_property
    def _all_specials(self) -> SpecialTokens:
        return SpecialTokens(self._vocabulary.table(Kind.USER_DEFINED, Kind.CONTROL, Kind.UNKNOWN))

    @property
    def _begins_again(self) -> bool:
        """Whether a space is also put before text after a special token."""
        return self._pieces.space_prefix and not self._pieces.prefix_once

    def _remove_mark(self, parts: Iterable[str | int], mark: str) -> Iterator[str | int]:
        """Remove the mark from texts, then split these at user-defined tokens."""
        for part in parts:
            if isinstance(part, int) or mark not in part:
                yield part
            else:
                yield from self._user_defined.split(part.replace(mark, ""))

    def _frame(self, ids: list[int], with_bos: bool) -> list[int]:
        if not with_bos:
            return ids
        if self.bos_id is None:
            raise InputError(
                "add_bos", " asks for a BOS token, but this model has none: leave it out"
            )
        ids_with_bos = ids if ids[:1] == [self.bos_id] else [self.bos_id, *ids]
        return (
            ids_with_bos
            if self.sep_id in (None, ids_with_bos[-1])
            else [*ids_with_bos, self.sep_id]
        )

    def _kind(self, token_id: int) -> int:
        if not 0 <= token_id < self.vocab_size:
            raise InputError(
                f"token id {token_id} is outside the vocabulary: use 0 to {self.vocab_size - 1}"
            )
        return int(self._vocabulary.kinds[token_id])


def _check_text(text: str) -> None:
    if not isinstance(text, str):
        raise InputError("text", f" must be a string, not {shown(text)}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"the text holds a lone surrogate, U+{ord(text[error.start]):04X}, at character "
            f"{error.start}: it is no Unicode text, decode the input as UTF-8"
        ) from error
