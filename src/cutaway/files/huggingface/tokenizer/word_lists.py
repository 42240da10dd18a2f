"""Tokenizers without tokenizer.json: BERT's vocab.txt, RoBERTa's vocab.json and merges.txt, Qwen's.

Knows transformers' defaults for such folders, and makes the tokenizer.json that it would write.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cutaway.errors import FormatError, InputError
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.text.tokenizers.pretokenizers import PRETOKENIZERS

WORDS, VOCAB, MERGES, ADDED = "vocab.txt", "vocab.json", "merges.txt", "added_tokens.json"
FILES = (WORDS, VOCAB, MERGES, ADDED)
_LARGEST = 1 << 27  # bytes

_QWEN = ("DreamTokenizer", "Qwen2Tokenizer", "Qwen2TokenizerFast")  # Dream's is the same
_BERT = {"cls": "[CLS]", "sep": "[SEP]", "unk": "[UNK]", "pad": "[PAD]", "mask": "[MASK]"}
_ROBERTA = {"cls": "<s>", "sep": "</s>", "unk": "<unk>", "pad": "<pad>", "mask": "<mask>"}


def tokenizer_of_lists(folder: Path, config: JsonObject, own: JsonObject) -> JsonObject:
    """What tokenizer.json would hold; empty where the folder lacks the lists.

    own: tokenizer_config.json. `FormatError` for tokenizers that the lists do not fully describe.
    """
    kind = config.text("model_type")
    if kind in ("bert", "distilbert") and (folder / WORDS).is_file():
        named = _named(own, _BERT)
        _check(folder, config, own, ("Bert", "DistilBert"), named)
        return JsonObject(_wordpiece(_lines(folder / WORDS), own, named), WORDS)
    if kind == "roberta" and (folder / VOCAB).is_file() and (folder / MERGES).is_file():
        named = _named(own, _ROBERTA)
        _check(folder, config, own, ("Roberta",), named)
        return JsonObject(_byte_level(folder, own, named), VOCAB)
    if own.text("tokenizer_class") in _QWEN and (folder / VOCAB).is_file():
        return JsonObject(_qwen(folder, own), VOCAB)
    return JsonObject({}, WORDS)


def _check(
    folder: Path,
    config: JsonObject,
    own: JsonObject,
    classes: tuple[str, ...],
    named: dict[str, str],
) -> None:
    """Refuse classes that cut words otherwise, and tokens besides those that have a use."""
    known = [f"{name}Tokenizer{fast}" for name in classes for fast in ("", "Fast")]
    for settings in (config, own):
        settings.must_be("tokenizer_class", *known)
    listed = JsonObject.read(folder / ADDED).values
    added = [*own.part("added_tokens_decoder").values.values(), *listed]
    texts = [one.get("content") if isinstance(one, dict) else one for one in added]
    if more := [text for text in texts if text not in named.values()]:
        raise FormatError(
            f"{folder}: the token {more[0]!r:.40} was added, which is supported only with a "
            "tokenizer.json; load the tokenizer with transformers and save it again"
        )


def _wordpiece(words: list[str], own: JsonObject, named: dict[str, str]) -> dict[str, Any]:
    own.must_be("do_basic_tokenize", True)
    own.must_be("never_split", [])
    vocab = {word: token_id for token_id, word in enumerate(words)}
    lowered = all(word == word.lower() for word in words if not word.startswith("["))
    if own.get("do_lower_case") is None and not lowered:
        own.fail("do_lower_case", f"true or false, since {WORDS} has words with capitals")
    lowercase = own.flag("do_lower_case", True)
    frame = [{"SpecialToken": {"id": named[name]}} for name in ("cls", "sep")]
    return {
        "model": {"type": "WordPiece", "vocab": vocab, "unk_token": named["unk"]},
        "normalizer": {
            "type": "BertNormalizer",
            "lowercase": lowercase,
            "strip_accents": own.get("strip_accents"),
            "handle_chinese_chars": own.flag("tokenize_chinese_chars", True),
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [frame[0], {"Sequence": {"id": "A"}}, frame[1]],
        },
        "added_tokens": [*_special(vocab, named)],
    }


def _byte_level(folder: Path, own: JsonObject, named: dict[str, str]) -> dict[str, Any]:
    vocab = JsonObject.read(folder / VOCAB).values
    mask = own.get("mask_token")
    own_mask = JsonObject(mask if isinstance(mask, dict) else {}, f"{own.file}: mask_token")
    eats = named["mask"] if own_mask.flag("lstrip", True) else ""
    return {
        "model": {"type": "BPE", "vocab": vocab, "merges": _merges(folder)},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": own.flag("add_prefix_space")},
        "post_processor": {
            "type": "RobertaProcessing",
            "cls": [named["cls"]],
            "sep": [named["sep"]],
        },
        "added_tokens": [*_special(vocab, named, eats_space=eats)],
    }


def _qwen(folder: Path, own: JsonObject) -> dict[str, Any]:
    """All added tokens are in the tokenizer's config, with what is particular to each."""
    own.must_be("add_prefix_space", False)
    added = own.part("added_tokens_decoder")
    known = [{**added.part(key).values, "id": key} for key in added.values]
    texts = [token.get("content") for token in known]
    if more := [text for text in JsonObject.read(folder / ADDED).values if text not in texts]:
        own.fail("added_tokens_decoder", f"an object that has the token {more[0]!r:.40}, too")
    if not all(token["id"].isdecimal() for token in known):
        own.fail("added_tokens_decoder", "an object of tokens by their ids")
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
        "added_tokens": [{**token, "id": int(token["id"])} for token in known],
    }


def _merges(folder: Path) -> list[str]:
    return [line for line in _lines(folder / MERGES) if line and not line.startswith("#version")]


def _named(own: JsonObject, usual: dict[str, str]) -> dict[str, str]:
    """The text of each special token: as the folder says it, or as the family has it."""
    found = {}
    for name, text in usual.items():
        value = own.get(f"{name}_token")
        value = value.get("content") if isinstance(value, dict) else value
        if value is not None and not isinstance(value, str):
            own.fail(f"{name}_token", "the text of a token")
        found[name] = text if value is None else value
    return found


def _special(
    vocab: Mapping[str, Any], named: dict[str, str], eats_space: str = ""
) -> Iterator[dict[str, Any]]:
    """Those that the vocabulary has, as tokens that are found in a text as a whole."""
    for text in dict.fromkeys(named.values()):
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
