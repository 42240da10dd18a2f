"""The tokens that lay out a text with a gap: whose they are, and in which order they come."""

import pytest

from cutaway.errors import FormatError
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.tokenizer import tokenizer_metadata
from cutaway.text import Tokenizer
from support import tiny_tokenizers
from support.text_vocabularies import CONTROL, NORMAL, USER, byte_level, sentencepiece
from support.tiny_tokenizers import save

A, B, C = range(256, 259)


def of_names(*names, kind=CONTROL, **fields):
    made = byte_level(extra=[(name, kind) for name in names], **fields)
    return Tokenizer.from_gguf(made).fim


@pytest.mark.parametrize(
    "names",
    [
        ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
        ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
        ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
        ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
        ("▁<PRE>", "▁<SUF>", "▁<MID>"),
        ("<PRE>", "<SUF>", "<MID>"),
    ],
)
@pytest.mark.parametrize("kind", [CONTROL, USER])
def test_a_family_is_known_by_its_names(names, kind):
    middle = of_names(*names, kind=kind)
    assert middle.lay_out([1, 2], [3]) == [A, 1, 2, B, 3, C]
    assert of_names(*names[:2], kind=kind) is None
    assert of_names(*names, kind=NORMAL) is None  # ordinary text


def test_codestral_writes_behind_the_prefix():
    names = [("[PREFIX]", CONTROL), ("[SUFFIX]", CONTROL)]
    tokenizer = Tokenizer.from_gguf(sentencepiece([("a", 0.0)], extra=names))
    prefix, suffix = 260, 261
    assert tokenizer.fim.lay_out([1, 2], [3]) == [suffix, 3, prefix, 1, 2]
    assert of_names("[PREFIX]", "[SUFFIX]") is None  # in every model with this vocabulary


@pytest.mark.parametrize(
    "words", [("fim_pre", "fim_suf", "fim_mid"), ("prefix", "suffix", "middle")]
)
def test_what_the_file_names_goes_first(words):
    names = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>", "x", "y", "z")
    fields = {f"{word}_token_id": 259 + i for i, word in enumerate(words)}
    assert of_names(*names, **fields).lay_out([1], [2]) == [259, 1, 260, 2, 261]


def test_the_middle_ends_where_another_file_or_part_would_begin():
    names = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<file_sep>", "<fim_pad>", "<other>")
    assert sorted(of_names(*names).ends) == [A, B, C, 259, 260]
    assert 261 in of_names(*names, fim_rep_token_id=261).ends


def test_an_id_that_cannot_be_is_an_error():
    with pytest.raises(FormatError, match=r"tokenizer\.ggml\.fim_pre_token_id"):
        of_names("a", fim_pre_token_id=999)


def test_a_folder_s_added_tokens_are_known_by_their_names(tmp_path):
    names = ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"]
    save(tiny_tokenizers.byte_level(specials=[*tiny_tokenizers.SPECIALS, *names]), tmp_path)
    tokenizer = Tokenizer.from_gguf(
        tokenizer_metadata(tmp_path, JsonObject({"eos_token_id": 2}, "config.json"), 400)
    )
    [prefix], [suffix], [middle] = (tokenizer.encode(name, special=True) for name in names)
    assert tokenizer.fim.lay_out([9], [10, 11]) == [prefix, 9, suffix, 10, 11, middle]


def test_the_tokens_of_a_project_are_known():
    names = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<file_sep>", "<reponame>")
    middle = of_names(*names)
    assert (middle.file, middle.repository) == (259, 260)
    assert (of_names(*names[:3]).file, of_names(*names[:3]).repository) == (None, None)
    named = of_names(*names, fim_sep_token_id=97, fim_rep_token_id=98)
    assert (named.file, named.repository) == (97, 98)
