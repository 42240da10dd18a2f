"""Unigram tokenizers: the tokens that the `tokenizers` library gives, and llama.cpp's rules."""

import json
from base64 import b64encode

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library

from cutaway.errors import FormatError
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.tokenizer import tokenizer_metadata
from cutaway.text import Tokenizer
from support import unigram_tokenizers
from support.many_scripts import lines
from support.unigram_tokenizers import KINDS, METASPACE, SPLIT, document


@pytest.fixture(scope="session")
def trained():
    pytest.importorskip(
        "sentencepiece", reason="needs sentencepiece: pip install '.[test-transformers]'"
    )
    return unigram_tokenizers.trained()


def opened(made, folder):
    (folder / "tokenizer.json").write_text(json.dumps(made))
    size = len(made["model"]["vocab"])
    return tokenizer_metadata(folder, JsonObject({}, "config.json"), size + 2, sees_all=True)


@pytest.fixture(scope="session", params=KINDS)
def both(request, trained, tmp_path_factory):
    made = document(*trained, **KINDS[request.param])
    metadata = opened(made, tmp_path_factory.mktemp("unigram"))
    return Library.from_str(json.dumps(made)), Tokenizer.from_gguf(metadata)


def same(both, text):
    theirs, ours = both
    wanted = theirs.encode(text, add_special_tokens=False).ids
    assert ours.encode(text, special=True, add_bos=False) == wanted, repr(text)


def test_tokens_are_those_of_the_library(both):
    for text in lines(600):
        same(both, text)


@settings(max_examples=300, deadline=None)
@given(
    text=st.lists(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
        | st.sampled_from(["<mask>", "</s>", " ", "  ", "▁", "<unk>", "<0x41>", "é"]),
        max_size=8,
    ).map("".join)
)
def test_any_text_has_the_library_s_tokens(both, text):
    same(both, text)


@pytest.mark.slow
def test_a_hundred_thousand_lines_of_many_scripts(both):
    for text in lines(100_000 // len(KINDS), seed=len(both[0].get_vocab())):
        same(both, text)


def test_texts_are_framed_and_special_tokens_are_no_text(both):
    theirs, ours = both
    text = "der Hund <s> läuft"
    assert ours.encode(text, special=True) == theirs.encode(text).ids
    assert not {0, 1, 2, 3} & {*ours.encode("abc</s>abc", add_bos=False)} - {3}
    assert ours.encode("abc</s>abc")[-1] == 2
    assert ours.encode("abc </s>")[1:-1] == ours.encode("abc </s>", add_bos=False)


def test_texts_come_back(both):
    _, ours = both
    text = "abba cafe"
    assert ours.decode(ours.encode(text, add_bos=False)) == text
    assert ours.encode(text, goes_on=True)[0] != ours.encode(text, add_bos=False)[0]


def test_llama_cpp_s_fields_alone(trained, tmp_path):
    """Without the library's steps: spaces are merged and one is put before each word."""
    made = document(*trained, SPLIT)
    metadata = {k: v for k, v in opened(made, tmp_path).items() if not k.startswith("cutaway.u")}
    ours = Tokenizer.from_gguf(metadata)
    theirs = Library.from_str(json.dumps(made))
    for text in lines(400, seed=4):
        if not {"\u200b", "\u200d", "\ufeff"} & {*text}:  # which are spaces to one of the two
            wanted = theirs.encode(text, add_special_tokens=False).ids
            assert ours.encode(text, add_bos=False) == wanted, repr(text)


def by_definition(text, scores):
    """The best sum over all cuts."""
    best = {0: (0.0, [])}
    for end in range(1, len(text) + 1):
        ways = [
            (best[start][0] + scores[text[start:end]], [*best[start][1], text[start:end]])
            for start in range(end)
            if start in best and text[start:end] in scores
        ]
        if ways:
            best[end] = max(ways, key=lambda one: one[0])
    return best[len(text)]


@given(
    st.text("ab", min_size=1, max_size=12),
    st.dictionaries(st.text("ab", min_size=2, max_size=4), st.integers(-9, -1), max_size=9),
)
def test_the_cut_is_the_best_of_all(text, more):
    scores = {"a": -5, "b": -6, **more}
    vocabulary = ["<unk>", *scores]
    metadata = {
        "tokenizer.ggml.model": "t5", "tokenizer.ggml.tokens": vocabulary,
        "tokenizer.ggml.scores": np.array([0.0, *scores.values()], np.float32),
        "tokenizer.ggml.token_type": np.array([2, *[1] * len(scores)], np.int32),
        "tokenizer.ggml.unknown_token_id": 0, "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.ggml.add_eos_token": False,
    }  # fmt: skip
    ids = Tokenizer.from_gguf(metadata).encode(text)
    found = [vocabulary[i] for i in ids]
    assert "".join(found) == text
    assert sum(scores[one] for one in found) == by_definition(text, scores)[0]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"vocab": {"a": 1}}, r"vocab is .* a list of pieces, each with its score"),
        ({"vocab": [["a", 0.0], ["a", 0.0]]}, "a list of pieces that differ from each other"),
        ({"unk_id": None}, "unk_id is .* the id of a piece, 0 to"),
        ({"unk_id": 10**9}, "unk_id is .* the id of a piece, 0 to"),
    ],
)
def test_a_damaged_model_is_refused_by_field(tmp_path, change, sentence):
    made = document([["▁a", -1.0]], None, METASPACE)
    made["model"] |= change
    with pytest.raises(FormatError, match=sentence):
        opened(made, tmp_path)


@pytest.mark.parametrize(
    ("charsmap", "step", "sentence"),
    [
        (None, {"type": "Magic"}, "the tokenizer's normalizer or pre_tokenizer: "),
        ("", METASPACE, "precompiled_charsmap is damaged"),
        ("AAA", METASPACE, "precompiled_charsmap: "),
        (b64encode(bytes([255] * 4000)).decode(), METASPACE, "precompiled_charsmap is damaged"),
    ],
)
def test_a_damaged_step_is_refused(tmp_path, charsmap, step, sentence):
    made = document([["▁a", -1.0]], charsmap, step)
    with pytest.raises(FormatError, match=sentence):
        Tokenizer.from_gguf(opened(made, tmp_path))
