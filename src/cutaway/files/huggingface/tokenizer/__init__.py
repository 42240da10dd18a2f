"""tokenizer.json and its companions as GGUF's tokenizer.ggml.* metadata.

Knows the kinds of tokenizers that `text/` has, the purpose of each token, and which files have the
ids of special tokens.
"""

from pathlib import Path
from re import fullmatch
from typing import Any

import numpy as np

from cutaway.errors import FormatError
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.sentences import MODULES
from cutaway.files.huggingface.tokenizer.specials import (
    Sources,
    added_tokens,
    special_metadata,
)
from cutaway.files.huggingface.tokenizer.splitting import (
    byte_level_family,
    is_byte_level,
    scored_pieces,
    space_prefix,
    unigram,
    wordpiece,
)
from cutaway.files.huggingface.tokenizer.word_lists import BYTE_STRINGS, tokenizer_of_lists
from cutaway.files.huggingface.tokenizer.word_lists import FILES as LISTS
from cutaway.text import chat
from cutaway.text.tokenizers.byte_strings import escape
from cutaway.text.tokenizers.pretokenizers import FIELD
from cutaway.text.tokenizers.vocabulary import SPACE_PREFIX, Kind, padding_name, stored_bytes
from cutaway.text.tokenizers.wordpiece import as_stored

TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG, SPECIALS, GENERATION = (
    "tokenizer_config.json", "special_tokens_map.json", "generation_config.json",
)  # fmt: skip
TEMPLATE, OLD_TEMPLATE = "chat_template.jinja", "chat_template.json"
_BESIDE = (TOKENIZER_CONFIG, SPECIALS, GENERATION, TEMPLATE, OLD_TEMPLATE)
_RECOMMENDED = {
    "temperature": "temp", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}  # fmt: skip
_PREFIX = "tokenizer.ggml."
_MOST_TOKENS = 1 << 21  # the largest vocabularies have 2¹⁸


def tokenizer_files(folder: Path) -> list[Path]:
    """Return the files that exist and define how text becomes tokens, or special tokens."""
    main = folder / TOKENIZER
    lists = [] if main.is_file() else [folder / name for name in LISTS]
    return [p for p in (main, *lists, *(folder / name for name in _BESIDE)) if p.is_file()]


def tokenizer_metadata(
    folder: Path, config: JsonObject, rows: int, *, sees_all: bool = False
) -> dict[str, Any]:
    """Return all tokenizer.* keys. `FormatError` for what is not supported.

    rows: how many the embedding has; sees_all: whether a text may be ended before it is read
    """
    if rows > _MOST_TOKENS:  # a file with holes in it has room for any number
        raise FormatError(f"{folder}: the embedding has {rows} rows, and {_MOST_TOKENS} is most")
    tokenizer_config = JsonObject.read(folder / TOKENIZER_CONFIG).with_fallback(
        JsonObject.read(folder / SPECIALS)
    )
    tokenizer = JsonObject.read(folder / TOKENIZER) or tokenizer_of_lists(
        folder, config, tokenizer_config
    )
    if not tokenizer:
        raise FormatError(
            f"{folder}: the folder has no {TOKENIZER}; load the tokenizer with transformers and "
            "save it again, which writes one"
        )
    metadata, tokens = _model_metadata(tokenizer, rows)
    sources = Sources(
        tokenizer, tokenizer_config, config, JsonObject.read(folder / GENERATION), tokens
    )
    embeds = (folder / MODULES).is_file()
    return (
        special_metadata(sources, sees_all=sees_all, embeds=embeds)
        | metadata
        | _template(folder, tokenizer_config)
    )


def _model_metadata(tokenizer: JsonObject, rows: int) -> tuple[dict[str, Any], list[str]]:
    """Return the keys of the tokenizer's model, and its tokens."""
    model = tokenizer.part("model")
    kind = model.text("type")
    words, scored, strings = (kind == name for name in ("WordPiece", "Unigram", BYTE_STRINGS))
    merges = [] if words or scored or strings else _merges(model)
    pieces = not words and not strings and not is_byte_level(tokenizer)
    tokens, kinds = _vocabulary(tokenizer, model, rows, pieces=pieces)
    if words:
        metadata = wordpiece(tokenizer, model)
    elif scored:
        metadata = unigram(tokenizer, model, rows)
    elif strings:
        metadata = {f"{_PREFIX}model": "rwkv"}
    else:
        metadata = _sentencepiece(tokenizer, model) if pieces else _byte_level(tokenizer)
        metadata[f"{_PREFIX}merges"] = merges
    stored = as_stored if words else _escape if strings else str
    metadata[f"{_PREFIX}tokens"] = [
        stored(text) if kind == Kind.NORMAL else text
        for text, kind in zip(tokens, kinds, strict=True)
    ]
    metadata[f"{_PREFIX}token_type"] = np.array(kinds, np.int32)
    return metadata, tokens


def _escape(text: str) -> str:
    return escape(stored_bytes(text))


def sampling_metadata(folder: Path) -> dict[str, Any]:
    """Return the sampling settings that a folder recommends, by GGUF's names."""
    recommended = JsonObject.read(folder / GENERATION).values
    numbers = {key: recommended.get(key) for key in _RECOMMENDED}
    return {
        f"general.sampling.{_RECOMMENDED[key]}": value
        for key, value in numbers.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }


def _byte_level(tokenizer: JsonObject) -> dict[str, Any]:
    return {f"{_PREFIX}model": "gpt2", FIELD: byte_level_family(tokenizer)}


def _sentencepiece(tokenizer: JsonObject, model: JsonObject) -> dict[str, Any]:
    """Return the metadata; ranked merges replace scores, since the library merges by them."""
    if not model.flag("byte_fallback"):
        raise FormatError(
            f"{tokenizer.file}: the model has neither ByteLevel nor byte_fallback, so that some "
            "texts have no tokens; this is not supported"
        )
    model.must_be("ignore_merges", False)
    prefix = space_prefix(tokenizer)
    if tokenizer.get("normalizer") is not None:
        _check_found_first(tokenizer, spaced=prefix is not None)
    metadata = {f"{_PREFIX}model": "llama", f"{_PREFIX}add_space_prefix": prefix is not None}
    return metadata | ({SPACE_PREFIX: "first"} if prefix == "first" else {})


def _check_found_first(tokenizer: JsonObject, *, spaced: bool) -> None:
    """Refuse added tokens that are found only after spaces became "▁", if that makes a difference.

    spaced: whether the same step puts a space before a text, and before these tokens. Special
    tokens are not refused, as in early llamas, since they are not parsed in plain text.
    """
    for token in added_tokens(tokenizer):
        text = token.text("content") or ""
        found_late = token.flag("normalized") and not token.flag("special")
        if found_late and (spaced or token.flag("rstrip") or " " in text):
            token.refuse("normalized", f"the token {text!r:.40} must be found in the text as it is")


def _merges(model: JsonObject) -> list[str]:
    """Return each merge as "left right", however the file writes them."""
    model.must_be("type", "BPE")
    model.must_be("dropout", 0)
    for name in ("continuing_subword_prefix", "end_of_word_suffix"):
        model.must_be(name, "")
    merges = model.get("merges")
    if not isinstance(merges, list):
        model.fail("merges", "a list")
    pairs = [pair if isinstance(pair, str) else _join(pair) for pair in merges]
    if not all(pair.count(" ") == 1 for pair in pairs):
        model.fail("merges", "a list of pairs without spaces in them")
    return pairs


def _join(pair: Any) -> str:
    is_pair = isinstance(pair, list) and len(pair) == 2 and all(isinstance(p, str) for p in pair)
    return " ".join(pair) if is_pair else ""


def _vocabulary(
    tokenizer: JsonObject, model: JsonObject, rows: int, *, pieces: bool
) -> tuple[list[str], list[int]]:
    """Return texts and kinds by id; rows without a text are unused, as in llama.cpp."""
    tokens, kinds = [*map(padding_name, range(rows))], [int(Kind.UNUSED)] * rows
    scored = model.text("type") == "Unigram"
    vocab = model.get("vocab")
    if scored:
        vocab = {text: i for i, (text, _) in enumerate(scored_pieces(model))}
    if not isinstance(vocab, dict) or not vocab:
        model.fail("vocab", "an object of tokens")
    for text, token_id in vocab.items():
        if type(token_id) is not int or not 0 <= token_id < rows:
            raise FormatError(
                f"{model.file}: the id of {text!r:.40} is {token_id!r:.40}, and the model's "
                f"embedding has rows for 0 to {rows - 1}"
            )
        if kinds[token_id] != Kind.UNUSED:
            raise FormatError(f"{model.file}: two tokens of vocab have the id {token_id}")
        tokens[token_id], kinds[token_id] = text, _kind(text, pieces)
    for token in added_tokens(tokenizer):
        token_id, text = token.id("id"), token.text("content") or ""
        if vocab.get(text, token_id) != token_id:
            raise FormatError(f"{token.file}: {text!r:.40} has another id in vocab")
        if token_id < rows and tokens[token_id] != text and kinds[token_id] != Kind.UNUSED:
            raise FormatError(
                f"{token.file}: {tokens[token_id]!r:.40} and the added token {text!r:.40} have the "
                f"id {token_id}"
            )
        if token_id < rows:  # Gemma 3 names a token for pictures that its text models lack
            tokens[token_id] = text
            kinds[token_id] = Kind.CONTROL if token.flag("special") else Kind.USER_DEFINED
    unknown = model.get("unk_id") if scored else vocab.get(model.text("unk_token"))
    if scored and (type(unknown) is not int or not 0 <= unknown < len(vocab)):
        model.fail("unk_id", f"the id of a piece, 0 to {len(vocab) - 1}")
    if unknown is not None and (pieces or model.text("type") == "WordPiece"):
        kinds[unknown] = Kind.UNKNOWN
    if model.text("type") != BYTE_STRINGS:  # whose tokens need not be text
        _check(tokenizer, tokens, kinds, bytes_needed=pieces and not scored)
    return tokens, kinds


def _kind(text: str, pieces: bool) -> int:
    byte = pieces and fullmatch("<0x[0-9A-F]{2}>", text)
    return Kind.BYTE if byte else Kind.NORMAL


def _check(
    tokenizer: JsonObject, tokens: list[str], kinds: list[int], *, bytes_needed: bool
) -> None:
    if bytes_needed and kinds.count(Kind.BYTE) < 256:
        raise FormatError(f"{tokenizer.file}: byte_fallback needs a token for each of 256 bytes")
    try:
        "".join(tokens).encode()
    except UnicodeEncodeError as error:
        raise FormatError(f"{tokenizer.file}: a token is no Unicode text: {error.reason}") from None


def _template(folder: Path, tokenizer_config: JsonObject) -> dict[str, Any]:
    """Return the chat template from its file, else from the tokenizer's config.

    Of several templates it is the one named "default".
    """
    file = folder / TEMPLATE
    try:
        template: Any = file.read_text("utf-8") if file.is_file() else None
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(f"{file} cannot be read as text: {error}") from error
    origin = TEMPLATE
    for settings in (JsonObject.read(folder / OLD_TEMPLATE), tokenizer_config):
        if template is None:
            template, origin = settings.get("chat_template"), f"{settings.file} chat_template"
    if isinstance(template, list):
        of_default = (
            entry.get("template") for entry in template
            if isinstance(entry, dict) and entry.get("name") == "default"
        )  # fmt: skip
        template = next(of_default, None)
    if template is not None and not isinstance(template, str):
        raise FormatError(
            f"{origin} is {template!r:.40}; it must be a text, or a list with a default"
        )
    return {} if template is None else {chat.FIELD: template, chat.ORIGIN: origin}
