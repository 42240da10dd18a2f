"""Tokenizers without tokenizer.json: BERT's vocab.txt, RoBERTa's and Qwen's files, RWKV's list.

Knows transformers' defaults for such folders, and makes the tokenizer.json that transformers would
write; for RWKV's list, one of our own.
"""

from ast import literal_eval
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cutaway.errors import FormatError, InputError
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.text.tokenizers.pretokenizers import PRETOKENIZERS

WORDS, VOCAB, MERGES, ADDED_TOKENS = "vocab.txt", "vocab.json", "merges.txt", "added_tokens.json"
BYTE_STRINGS = "rwkv_vocab_v20230424.txt"
FILES = (WORDS, VOCAB, MERGES, ADDED_TOKENS, BYTE_STRINGS)
_LARGEST = 1 << 27  # bytes
_DIGITS = 9  # of a token's id, as many as each int32 can have

_QWEN = ("DreamTokenizer", "Qwen2Tokenizer", "Qwen2TokenizerFast")  # Dream's is the same
_BERT = {"cls": "[CLS]", "sep": "[SEP]", "unk": "[UNK]", "pad": "[PAD]", "mask": "[MASK]"}
_ROBERTA = {"cls": "<s>", "sep": "</s>", "unk": "<unk>", "pad": "<pad>", "mask": "<mask>"}


def tokenizer_of_lists(
    folder: Path, config: JsonObject, tokenizer_config: JsonObject
) -> JsonObject:
    """Return what tokenizer.json would have; empty where the folder lacks the lists.

    `FormatError` for tokenizers that the lists do not fully describe.
    """
    kind = config.text("model_type")
    if kind in ("bert", "distilbert") and (folder / WORDS).is_file():
        specials = _special_texts(tokenizer_config, _BERT)
        _check(folder, config, tokenizer_config, ("Bert", "DistilBert"), specials)
        return JsonObject(_wordpiece(_lines(folder / WORDS), tokenizer_config, specials), WORDS)
    if kind == "roberta" and (folder / VOCAB).is_file() and (folder / MERGES).is_file():
        specials = _special_texts(tokenizer_config, _ROBERTA)
        _check(folder, config, tokenizer_config, ("Roberta",), specials)
        return JsonObject(_byte_level(folder, tokenizer_config, specials), VOCAB)
    if tokenizer_config.text("tokenizer_class") in _QWEN and (folder / VOCAB).is_file():
        return JsonObject(_qwen(folder, tokenizer_config), VOCAB)
    if (folder / BYTE_STRINGS).is_file():
        return JsonObject(_byte_strings(folder / BYTE_STRINGS, tokenizer_config), BYTE_STRINGS)
    return JsonObject({}, WORDS)


def _check(
    folder: Path,
    config: JsonObject,
    tokenizer_config: JsonObject,
    classes: tuple[str, ...],
    specials: dict[str, str],
) -> None:
    """Refuse classes that cut words differently, and added tokens without a known use."""
    allowed = [f"{name}Tokenizer{fast}" for name in classes for fast in ("", "Fast")]
    for settings in (config, tokenizer_config):
        settings.must_be("tokenizer_class", *allowed)
    added_tokens = JsonObject.read(folder / ADDED_TOKENS).values
    tokens = [*tokenizer_config.part("added_tokens_decoder").values.values(), *added_tokens]
    texts = [token.get("content") if isinstance(token, dict) else token for token in tokens]
    if more := [text for text in texts if text not in specials.values()]:
        raise FormatError(
            f"{folder}: the token {more[0]!r:.40} was added, which is supported only with a "
            "tokenizer.json; load the tokenizer with transformers and save it again"
        )


def _wordpiece(
    words: list[str], tokenizer_config: JsonObject, specials: dict[str, str]
) -> dict[str, Any]:
    tokenizer_config.must_be("do_basic_tokenize", True)
    tokenizer_config.must_be("never_split", [])
    vocab = {word: token_id for token_id, word in enumerate(words)}
    lowered = all(word == word.lower() for word in words if not word.startswith("["))
    if tokenizer_config.get("do_lower_case") is None and not lowered:
        tokenizer_config.fail(
            "do_lower_case", f"true or false, since {WORDS} has words with capitals"
        )
    lowercase = tokenizer_config.flag("do_lower_case", True)
    frame = [{"SpecialToken": {"id": specials[name]}} for name in ("cls", "sep")]
    return {
        "model": {"type": "WordPiece", "vocab": vocab, "unk_token": specials["unk"]},
        "normalizer": {
            "type": "BertNormalizer",
            "lowercase": lowercase,
            "strip_accents": tokenizer_config.get("strip_accents"),
            "handle_chinese_chars": tokenizer_config.flag("tokenize_chinese_chars", True),
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [frame[0], {"Sequence": {"id": "A"}}, frame[1]],
        },
        "added_tokens": [*_special(vocab, specials)],
    }


def _byte_level(
    folder: Path, tokenizer_config: JsonObject, specials: dict[str, str]
) -> dict[str, Any]:
    vocab = JsonObject.read(folder / VOCAB).values
    mask = tokenizer_config.get("mask_token")
    own_mask = JsonObject(
        mask if isinstance(mask, dict) else {}, f"{tokenizer_config.file}: mask_token"
    )
    eats = specials["mask"] if own_mask.flag("lstrip", True) else ""
    return {
        "model": {"type": "BPE", "vocab": vocab, "merges": _merges(folder)},
        "pre_tokenizer": {
            "type": "ByteLevel",
            "add_prefix_space": tokenizer_config.flag("add_prefix_space"),
        },
        "post_processor": {
            "type": "RobertaProcessing",
            "cls": [specials["cls"]],
            "sep": [specials["sep"]],
        },
        "added_tokens": [*_special(vocab, specials, eats_space=eats)],
    }


def _qwen(folder: Path, tokenizer_config: JsonObject) -> dict[str, Any]:
    """Return Qwen's tokenizer: its config has all added tokens and their settings."""
    tokenizer_config.must_be("add_prefix_space", False)
    decoder = tokenizer_config.part("added_tokens_decoder")
    tokens = [{**decoder.part(key).values, "id": key} for key in decoder.values]
    texts = [token.get("content") for token in tokens]
    if more := [
        text for text in JsonObject.read(folder / ADDED_TOKENS).values if text not in texts
    ]:
        tokenizer_config.fail(
            "added_tokens_decoder", f"an object that has the token {more[0]!r:.40}, too"
        )
    if not all(_is_id(token["id"]) for token in tokens):
        tokenizer_config.fail("added_tokens_decoder", "an object of tokens by their ids")
    [words] = PRETOKENIZERS["qwen2"].patterns
    return {
        "model": {
            "type": "BPE",
            "vocab": JsonObject.read(folder / VOCAB).values,
            "merges": _merges(folder),
        },
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": words}, "behavior": "Isolated"},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        },
        "added_tokens": [{**token, "id": int(token["id"])} for token in tokens],
    }


def _byte_strings(path: Path, tokenizer_config: JsonObject) -> dict[str, Any]:
    """Return RWKV's tokens; surrogates are bytes that are no UTF-8 (PEP 383).

    Token 0, which is not in the list, ends a text. Special tokens whose text is in the list have
    the list's id, as in RWKV's own tokenizer: transformers gives "\n\n" another one.
    """
    vocab: dict[str, int] = {}
    for line in _lines(path):
        token, number = _read_byte_string(line, path.name)
        if token in vocab:
            raise FormatError(
                f"{path.name}: {line!r:.60} has the token of number {vocab[token]} once more; "
                "download it again"
            )
        vocab[token] = number
    begin = _special_texts(tokenizer_config, {"bos": "<s>"})["bos"]
    texts = {"0": begin} | {
        key: token.get("content") if isinstance(token, dict) else None
        for key, token in tokenizer_config.part("added_tokens_decoder").values.items()
    }
    if not all(_is_id(key) and isinstance(text, str) for key, text in texts.items()):
        tokenizer_config.fail("added_tokens_decoder", "an object of tokens by their ids")
    specials = {int(key): text for key, text in texts.items() if text not in vocab}
    return {
        "model": {"type": BYTE_STRINGS, "vocab": vocab},
        "added_tokens": [
            {"id": i, "content": text, "special": True} for i, text in specials.items()
        ],
    }


def _read_byte_string(line: str, file: str) -> tuple[str, int]:
    """Return a token and its id from a line: an id, a literal of Python, and how many bytes."""
    number, _, rest = line.partition(" ")
    literal, _, size = rest.rpartition(" ")
    try:
        value = literal_eval(literal)
        token = value.encode() if isinstance(value, str) else value
        if isinstance(token, bytes) and len(token) == int(size):
            return token.decode("utf-8", "surrogateescape"), int(number)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        pass  # refused below
    raise FormatError(f"{file}: {line!r:.60} is not an id, a string and its length in bytes")


def _is_id(key: str) -> bool:
    return key.isdecimal() and len(key) <= _DIGITS


def _merges(folder: Path) -> list[str]:
    return [line for line in _lines(folder / MERGES) if line and not line.startswith("#version")]


def _special_texts(tokenizer_config: JsonObject, usual: dict[str, str]) -> dict[str, str]:
    """Return the text of each special token: the folder's, or the family's usual one."""
    texts = {}
    for name, text in usual.items():
        value = tokenizer_config.get(f"{name}_token")
        value = value.get("content") if isinstance(value, dict) else value
        if value is not None and not isinstance(value, str):
            tokenizer_config.fail(f"{name}_token", "the text of a token")
        texts[name] = text if value is None else value
    return texts


def _special(
    vocab: Mapping[str, Any], specials: dict[str, str], eats_space: str = ""
) -> Iterator[dict[str, Any]]:
    """Yield the specials of the vocabulary as tokens that are found in a text as a whole."""
    for text in dict.fromkeys(specials.values()):
        if text in vocab:
            eats = text == eats_space
            yield {"id": vocab[text], "content": text, "special": True, "lstrip": eats}


def _lines(path: Path) -> list[str]:
    try:
        if path.stat().st_size > _LARGEST:
            raise FormatError(f"{path}: the file is too large for what it is; download it again")
        lines = path.read_text("utf-8").split("\n")
    except OSError as error:
        raise InputError(f"{path}: the file cannot be opened: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: the file is no UTF-8 text; download it again") from error
    return lines if lines[-1] else lines[:-1]
