"""SentencePiece BPE against the plain definition of its merge rule."""

import json
from base64 import b64encode
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library

from cutaway.errors import FormatError, InputError
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.tokenizer import tokenizer_metadata
from cutaway.text import Tokenizer
from cutaway.text.tokenizers import bpe
from cutaway.text.tokenizers.bpe import _WORD, merge
from support import unigram_tokenizers
from support.many_scripts import lines
from support.text_vocabularies import CONTROL, UNUSED, USER, sentencepiece
from support.unigram_tokenizers import KINDS, METASPACE, SPLIT, document

WORDS = st.text("ab▁c", min_size=2, max_size=5)
SCORES = st.integers(-3, 0).map(float)  # few values, so that ties are common
PIECES = st.dictionaries(WORDS, SCORES, max_size=25)


def by_definition(text: str, scores: dict[str, float]) -> list[str]:
    """Merge the best pair, leftmost among equals, until none is left."""
    parts = list(text)
    while True:
        pairs = [(i, a + b) for i, (a, b) in enumerate(pairwise(parts))]
        known = [(-scores[both], i) for i, both in pairs if both in scores]
        if not known:
            return parts
        _, i = min(known)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


@given(st.text("ab▁cx", max_size=30), PIECES)
def test_merge_is_the_definition(text: str, scores: dict[str, float]) -> None:
    costs = {piece: -score for piece, score in scores.items()}
    assert merge(text, lambda a, b: costs.get(a + b)) == by_definition(text, scores)


@given(st.text("ab c", max_size=30), PIECES)
def test_cutting_at_spaces_changes_nothing(text: str, scores: dict[str, float]) -> None:
    singles = [(char, -9.0) for char in "abc▁"]
    metadata = sentencepiece([*singles, *scores.items()], add_space_prefix=False)
    tokens = metadata["tokenizer.ggml.tokens"]
    ids = Tokenizer.from_gguf(metadata).encode(text, add_bos=False)
    assert [tokens[i] for i in ids] == by_definition(text.replace(" ", "▁"), scores)


def test_words_of_a_text_are_found_one_after_another(monkeypatch) -> None:
    """All at once a million of them held up a server's other threads for a third of a second."""
    singles = [(char, -9.0) for char in "ab▁"]
    tokenizer, found = Tokenizer.from_gguf(sentencepiece(singles)), []
    pattern = SimpleNamespace(
        finditer=lambda text: (found.append(match) or match for match in _WORD.finditer(text))
    )
    monkeypatch.setattr(bpe, "_WORD", pattern)
    words = tokenizer._words(["a b " * 9])
    assert len(next(iter(words))) == 2
    assert len(found) == 1
    assert len([*words]) == 18 and len(found) == 19


LETTERS = [(char, -9.0) for char in "▁helowrd"]
HELLO = [*LETTERS, ("he", -1.0), ("ll", -2.0), ("hell", -3.0), ("▁he", -4.0), ("▁hell", -5.0)]


def names(tokenizer: Tokenizer, text: str, *, special: bool = False) -> list[str]:
    ids = tokenizer.encode(text, special=special, add_bos=False)
    return [tokenizer.token_name(i) for i in ids]


def test_higher_scores_merge_first() -> None:
    # "▁he" is a piece, but "he" merges first and "hell" before "▁he" can.
    tokenizer = Tokenizer.from_gguf(sentencepiece(HELLO))
    assert names(tokenizer, "hello") == [" hell", "o"]
    swapped = [*LETTERS, ("▁h", -1.0), ("he", -2.0), ("ll", -3.0)]
    assert names(Tokenizer.from_gguf(sentencepiece(swapped)), "hello") == [" h", "e", "ll", "o"]


def test_gemma_4_merges_by_its_merges_whatever_the_scores() -> None:
    metadata = sentencepiece(HELLO) | {
        "tokenizer.ggml.model": "gemma4", "tokenizer.ggml.merges": ["l l", "h e", "he ll", "▁ h"],
    }  # fmt: skip
    tokenizer = Tokenizer.from_gguf(metadata)
    assert names(tokenizer, "hello") == ["hell", "o"]  # and no space in front
    assert names(tokenizer, " he") == [" ", "he"]
    with pytest.raises(FormatError, match="scores is missing"):
        Tokenizer.from_gguf({k: v for k, v in metadata.items() if "merges" not in k})


def test_ties_go_to_the_left() -> None:
    tokenizer = Tokenizer.from_gguf(
        sentencepiece([("aa", 0.0), ("a", 0.0)], add_space_prefix=False)
    )
    assert names(tokenizer, "aaa") == ["aa", "a"]


def test_space_prefix_follows_the_metadata() -> None:
    assert names(Tokenizer.from_gguf(sentencepiece(HELLO)), "he") == [" he"]
    plain = Tokenizer.from_gguf(sentencepiece(HELLO, add_space_prefix=False))
    assert names(plain, "he") == ["he"]
    assert plain.encode("", add_bos=False) == []


def test_space_prefix_again_after_a_special_token() -> None:
    tokenizer = Tokenizer.from_gguf(sentencepiece(HELLO))
    text = "he</s>he</s> he"
    assert names(tokenizer, text, special=True) == [" he", "</s>", " he", "</s>", " ", " he"]
    assert tokenizer.decode(tokenizer.encode(text, special=True), special=True) == "<s>" + text


def test_unknown_characters_become_bytes() -> None:
    tokenizer = Tokenizer.from_gguf(sentencepiece(HELLO))
    ids = tokenizer.encode("é", add_bos=False)
    assert [tokenizer.token_name(i) for i in ids] == [" ", "<0xC3>", "<0xA9>"]
    assert [tokenizer.token_bytes(i) for i in ids] == [b" ", b"\xc3", b"\xa9"]
    assert tokenizer.decode(ids) == "é"


def test_a_space_without_a_piece_is_the_byte_of_a_space() -> None:
    tokenizer = Tokenizer.from_gguf(sentencepiece([("a", 0.0)], add_space_prefix=False))
    assert names(tokenizer, "a a") == ["a", "<0x20>", "a"]


def test_without_byte_tokens_the_unknown_token_stands_in() -> None:
    metadata = sentencepiece(HELLO, byte_tokens=False)
    with pytest.raises(InputError, match="'é'"):
        Tokenizer.from_gguf(metadata).encode("hé")
    tokenizer = Tokenizer.from_gguf(metadata | {"tokenizer.ggml.unknown_token_id": 0})
    assert names(tokenizer, "hé") == [" ", "h", "<unk>"]
    assert tokenizer.token_bytes(0) == b""


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁")), st.booleans())
def test_round_trip(text: str, prefix: bool) -> None:
    tokenizer = _ROUND_TRIP[prefix]
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode(tokenizer.encode(text, special=True), special=True) in (
        text,
        "<s>" + text,
    )


@given(st.text("held \n<s>é"), st.booleans(), st.booleans())
def test_no_text_has_fewer_tokens_than_its_length_says(
    text: str, prefix: bool, special: bool
) -> None:
    tokenizer = _ROUND_TRIP[prefix]
    assert tokenizer.min_tokens(text) <= len(tokenizer.encode(text, special=special, add_bos=False))


_ROUND_TRIP = {
    prefix: Tokenizer.from_gguf(
        sentencepiece(
            [*HELLO, ("▁▁", -6.0)], [("\n\n", USER), ("   ", USER)], add_space_prefix=prefix
        )
    )
    for prefix in (False, True)
}


def test_user_defined_tokens_match_as_a_whole_even_in_ordinary_text() -> None:
    tokenizer = Tokenizer.from_gguf(sentencepiece(HELLO, [("hello", USER)], add_space_prefix=False))
    assert names(tokenizer, "hellohe") == ["hello", "he"]


def test_control_unused_and_byte_tokens_are_never_spelled_by_text() -> None:
    pieces = [*LETTERS, ("<", 0.0), ("/", 0.0), ("s", 0.0), (">", 0.0), ("</", 0.0), ("</s", 0.0)]
    extra = [("wor", UNUSED), ("wo", CONTROL)]
    tokenizer = Tokenizer.from_gguf(sentencepiece(pieces, extra, add_space_prefix=False))
    assert names(tokenizer, "</s>") == ["</s", ">"]
    assert names(tokenizer, "wor") == ["w", "o", "r"]
    assert names(tokenizer, "wor", special=True) == ["wo", "r"]
    assert tokenizer.token_bytes(tokenizer.vocab_size - 2) == b""
    assert tokenizer.token_name(tokenizer.vocab_size - 2) == "wor"


def test_a_piece_that_is_no_utf8_keeps_its_bytes() -> None:
    tokenizer = Tokenizer.from_gguf(sentencepiece([("a\udcff▁", 0.0)], [("\udcfe", CONTROL)]))
    assert tokenizer.token_bytes(259) == b"a\xff "
    assert tokenizer.token_name(259) == "a<0xFF> "
    assert tokenizer.token_name(260) == "<0xFE>"
    assert tokenizer.decode([260, 259], special=True) == "\ufffda\ufffd "


@pytest.mark.parametrize(
    ("field", "value"),
    [("scores", [0.0]), ("scores", ["a"]), ("token_type", [1, 2]), ("add_space_prefix", 1)],
)
def test_fields_that_contradict_the_vocabulary_are_named(field: str, value: object) -> None:
    metadata = sentencepiece(HELLO) | {f"tokenizer.ggml.{field}": value}
    with pytest.raises(FormatError, match=rf"tokenizer\.ggml\.{field}"):
        Tokenizer.from_gguf(metadata)


def test_scores_are_required() -> None:
    metadata = sentencepiece(HELLO)
    del metadata["tokenizer.ggml.scores"]
    with pytest.raises(FormatError, match=r"scores is missing"):
        Tokenizer.from_gguf(metadata)


def test_a_malformed_byte_token_is_refused() -> None:
    metadata = sentencepiece(HELLO)
    metadata["tokenizer.ggml.tokens"][3] = "<0xZZ>"
    with pytest.raises(FormatError, match="<0xZZ>"):
        Tokenizer.from_gguf(metadata)


# -- text unigram ----------------------------------------------------------------------------------

# Unigram tokenizers: the tokens that the `tokenizers` library gives, and llama.cpp's rules.


@pytest.fixture(scope="session")
def trained():
    pytest.importorskip(
        "sentencepiece", reason="needs sentencepiece: pip install '.[test-transformers]'"
    )
    return unigram_tokenizers.train()


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


def unigram_by_definition(text, scores):
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
    assert sum(scores[one] for one in found) == unigram_by_definition(text, scores)[0]


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
