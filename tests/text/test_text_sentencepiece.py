"""SentencePiece BPE against the plain definition of its merge rule."""

from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.errors import FormatError, InputError
from cutaway.text import Tokenizer
from cutaway.text.tokenizers import bpe
from cutaway.text.tokenizers.bpe import _WORD, merge
from support.text_vocabularies import CONTROL, UNUSED, USER, sentencepiece

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
