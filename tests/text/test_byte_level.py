"""Byte-level BPE: the alphabet, merging, and what each pre-tokenizer keeps together."""

import time
from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from cutaway.errors import FormatError, InputError
from cutaway.text import Tokenizer
from cutaway.text.tokenizers.byte_level import WordCuts, byte_alphabet
from cutaway.text.tokenizers.pretokenizers import PRETOKENIZERS
from support.text_vocabularies import CONTROL, NORMAL, USER, byte_level

DIGITS = ["1 2", "12 3", "123 4"]
UNICODE = st.text(st.characters(exclude_categories=["Cs"]))


def names(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.token_name(i) for i in tokenizer.encode(text)]


def test_alphabet_is_256_printable_characters() -> None:
    alphabet = byte_alphabet()
    assert len(set(alphabet)) == 256
    assert all(char.isprintable() and not char.isspace() for char in alphabet)
    assert (alphabet[0x20], alphabet[0x0A], alphabet[0x00]) == ("Ġ", "Ċ", "Ā")
    assert (alphabet[0x41], alphabet[0xE9], alphabet[0xAD]) == ("A", "é", "Ń")


def test_merges_apply_in_rank_order() -> None:
    assert names(Tokenizer.from_gguf(byte_level(["b c", "a b"])), "abc") == ["a", "bc"]
    assert names(Tokenizer.from_gguf(byte_level(["a b", "b c"])), "abc") == ["ab", "c"]


def by_definition(text: str, merges: list[str]) -> list[str]:
    """Merge the pair of the lowest rank, leftmost among equals, until none is left."""
    parts = list(text)
    while True:
        pairs = [f"{a} {b}" for a, b in pairwise(parts)]
        known = [(merges.index(pair), i) for i, pair in enumerate(pairs) if pair in merges]
        if not known:
            return parts
        _, i = min(known)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


@given(st.text("abc", max_size=30), st.data())
def test_merging_is_the_definition(text: str, data: st.DataObject) -> None:
    tokens, merges = list("abc"), list[str]()
    for _ in range(data.draw(st.integers(0, 8))):
        left, right = (data.draw(st.sampled_from(tokens)) for _ in range(2))
        if f"{left} {right}" not in merges:
            merges.append(f"{left} {right}")
            tokens.append(left + right)
    assert names(Tokenizer.from_gguf(byte_level(merges)), text) == by_definition(text, merges)


@pytest.mark.parametrize(
    ("families", "merges", "text", "expected"),
    [
        ("smollm qwen2 tekken", DIGITS, "1234", ["1", "2", "3", "4"]),
        ("llama-bpe dbrx gpt-4o default", DIGITS, "1234", ["123", "4"]),
        ("gpt-2", DIGITS, "1234", ["1234"]),
        ("gpt-2", ["Ġ 1"], " 1", [" 1"]),
        ("smollm llama-bpe qwen2", ["Ġ 1"], " 1", [" ", "1"]),
        ("gpt-2 smollm", ["' S"], "'S", ["'", "S"]),  # their contractions are in lower case only
        ("llama-bpe qwen2", ["' S"], "'S", ["'S"]),
        ("ufakzeka", ["' S"], "'S", ["'S"]),
        ("modern-bert roberta-bpe", ["Ġ 1"], " 1", [" 1"]),
        ("glm4 deepseek-v3 hunyuan-dense minicpm5", DIGITS, "1234", ["123", "4"]),
        ("qwen35 seed-coder kimi-k2", ["a b"], "ab ab", ["ab", " ", "ab"]),
        ("exaone-moe", ["a Ġ", "aĠ b"], "a b", ["a b"]),
        ("afmoe tiny_aya superbpe", ["2 3", "3 4", "23 4"], "1234", ["1", "234"]),
        ("bloom viking", ["a ,", "Ġ a"], "b a,", ["b", " a", ","]),
        ("youtu", ["a B"], "aB", ["a", "B"]),
        ("spark2_5 deepseek-coder", ["Ċ Ċ"], "\n\n", ["<0x0A>"] * 2),
        ("deepseek-llm", ["1 a", "Ġ a"], "1a a", ["1", "a", " a"]),
        ("jais-2", ["Ġ Ġ", "ĠĠ Ġ", "ĠĠ ĠĠ"], "    a", ["  ", " ", " ", "a"]),
    ],
)
def test_each_family_cuts_digits_spaces_and_contractions(
    families: str, merges: list[str], text: str, expected: list[str]
) -> None:
    for pre in families.split():
        assert names(Tokenizer.from_gguf(byte_level(merges, pre=pre)), text) == expected, pre


def test_o200k_cuts_where_upper_case_begins() -> None:
    merges = ["o B"]
    assert names(Tokenizer.from_gguf(byte_level(merges, pre="tekken")), "fooBar") == list("fooBar")
    assert "oB" in names(Tokenizer.from_gguf(byte_level(merges, pre="qwen2")), "fooBar")


def test_last_space_goes_with_the_word() -> None:
    tokenizer = Tokenizer.from_gguf(byte_level(["Ġ Ġ", "Ġ a"]))
    assert names(tokenizer, "   a") == ["  ", " a"]


def test_only_whole_word_families_skip_merging() -> None:
    extra = [("abc", 1)]  # a token that no merge leads to
    assert names(Tokenizer.from_gguf(byte_level(["a b"], extra, "llama-bpe")), "abc") == ["abc"]
    assert names(Tokenizer.from_gguf(byte_level(["a b"], extra, "qwen2")), "abc") == ["ab", "c"]


def test_a_whole_word_is_never_a_control_token() -> None:
    tokenizer = Tokenizer.from_gguf(byte_level(extra=[("stop", CONTROL)], pre="llama-bpe"))
    assert names(tokenizer, "stop") == list("stop")
    assert tokenizer.encode("stop", special=True, add_bos=False) == [256]


@pytest.mark.parametrize("pre", {words: name for name, words in PRETOKENIZERS.items()}.values())
@given(text=UNICODE)
def test_round_trip(pre: str, text: str) -> None:
    tokenizer = _TOKENIZERS[pre]
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()
    assert tokenizer.min_tokens(text) <= len(ids)


_MERGES = ["Ġ a", "Ġ Ġ", "Ċ Ċ", "1 2", "' s", "Ã ©"]
_TOKENIZERS = {
    pre: Tokenizer.from_gguf(byte_level(_MERGES, [("<think>", USER)], pre)) for pre in PRETOKENIZERS
}


@pytest.mark.parametrize("pre", ["smol", "", "GPT-2", None, 7])
def test_unknown_pre_is_refused_by_name(pre: object) -> None:
    metadata = byte_level() | {"tokenizer.ggml.pre": pre}
    with pytest.raises(FormatError, match=r"tokenizer\.ggml\.pre .*gpt-2.*llama-bpe.*smollm"):
        Tokenizer.from_gguf(metadata)


@pytest.mark.parametrize("pre", ["gemma4", "granite-embed-multi-311m", "sarvam-moe", "whitespace"])
def test_those_of_llama_cpp_that_merge_no_bytes_are_refused_by_name(pre: str) -> None:
    with pytest.raises(FormatError, match=f"'{pre}' is not supported"):
        Tokenizer.from_gguf(byte_level(pre=pre))


def test_roberta_s_texts_end_with_a_token_where_the_file_does_not_say() -> None:
    sep = {"tokenizer.ggml.seperator_token_id": 256}
    for pre, ids in (("roberta-bpe", [0, 256]), ("gpt-2", [0])):
        made = byte_level(extra=[("</s>", CONTROL)], pre=pre) | sep | {
            "tokenizer.ggml.bos_token_id": 0}  # fmt: skip
        assert Tokenizer.from_gguf(made).encode("", add_bos=True) == ids


def test_missing_pre_is_never_a_default() -> None:
    metadata = byte_level()
    del metadata["tokenizer.ggml.pre"]
    with pytest.raises(FormatError, match="pre is missing"):
        Tokenizer.from_gguf(metadata)


@pytest.mark.parametrize("merge", ["ab", "q zz", ""])
def test_merges_that_do_not_fit_are_refused(merge: str) -> None:
    metadata = byte_level(["a b"]) | {"tokenizer.ggml.merges": ["a b", merge]}
    with pytest.raises(FormatError, match=r"tokenizer\.ggml\.merges"):
        Tokenizer.from_gguf(metadata)


def test_of_tokens_with_one_text_a_text_spells_the_last() -> None:
    tokenizer = Tokenizer.from_gguf(byte_level(["a b"], [("ab", NORMAL), ("ab", CONTROL)]))
    assert tokenizer.encode("ab", add_bos=False) == [257]


def test_a_control_token_is_no_part_of_a_merge() -> None:
    metadata = byte_level(extra=[("ab", CONTROL)]) | {"tokenizer.ggml.merges": ["a b"]}
    with pytest.raises(FormatError, match="'a b' is not two tokens"):
        Tokenizer.from_gguf(metadata)


def test_a_merge_that_stands_twice_has_its_last_rank() -> None:
    metadata = byte_level(["a b", "b c"])
    metadata["tokenizer.ggml.merges"] = ["a b", "b c", "a b"]
    assert names(Tokenizer.from_gguf(metadata), "abc") == ["a", "bc"]


def test_a_word_of_many_pages_merges_as_a_short_one() -> None:
    tokenizer = Tokenizer.from_gguf(byte_level(["b a", "a ba"]))
    assert names(tokenizer, "ab" * 5000) == ["aba", *["ba"] * 4998, "b"]


def test_a_byte_without_a_token_is_refused_not_dropped() -> None:
    metadata = byte_level()
    metadata["tokenizer.ggml.tokens"][4] = "[PAD4]"
    with pytest.raises(InputError, match="0x04"):
        Tokenizer.from_gguf(metadata).encode("a\x04b")


# -- words: those of the published expressions, in linear time ---------------------------------

FAMILIES = {family.patterns: name for name, family in PRETOKENIZERS.items()}
REWRITTEN = ("tiny_aya", "afmoe", "superbpe", "deepseek-llm")
CHARACTERS = "0123٣²一a_é́.,!? \t\n\r\u3000\u00a0"
TEXTS = st.lists(
    st.tuples(st.sampled_from(CHARACTERS), st.integers(1, 8))
    | st.tuples(st.characters(codec="utf-8"))
).map(lambda runs: "".join(run[0] * run[-1] if len(run) > 1 else run[0] for run in runs))


def published(patterns):
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([*cuts, as_bytes])


@pytest.mark.parametrize("name", REWRITTEN)
def test_words_are_those_of_the_published_expressions(name):
    patterns = PRETOKENIZERS[name].patterns
    cuts, by_definition = WordCuts(patterns), published(patterns)

    @given(TEXTS)
    def check(text):
        assert [*cuts.words(text)] == [word for word, _ in by_definition.pre_tokenize_str(text)]

    check()


@pytest.mark.parametrize("patterns", FAMILIES, ids=FAMILIES.values())
def test_words_are_the_same_in_windows(patterns, monkeypatch):
    """In small ones, of which a text has several."""
    cuts, by_definition = WordCuts(patterns), published(patterns)
    monkeypatch.setattr("cutaway.text.tokenizers.byte_level._WINDOW", 32)
    monkeypatch.setattr("cutaway.text.tokenizers.byte_level._AHEAD", 16)
    runs = st.lists(
        st.tuples(st.sampled_from(f"{CHARACTERS}AB'sIMGZ(/、ㄱ"), st.integers(1, 70)), min_size=4
    )

    @given(runs.map(lambda runs: "".join(character * count for character, count in runs)))
    def check(text):
        assert [*cuts.words(text)] == [word for word, _ in by_definition.pre_tokenize_str(text)]

    check()


@pytest.mark.parametrize("run", ["1", "a b ", "ab1. ", "\n 2"])
def test_a_long_text_is_cut_as_a_whole(run):
    patterns = PRETOKENIZERS["smollm"].patterns
    text = run * (100_000 // len(run))
    whole = [word for word, _ in published(patterns).pre_tokenize_str(text)]
    assert [*WordCuts(patterns).words(text)] == whole


RUNS = ("1", "٣", "²", " ", "\u3000", "\n", "a", "é́", "一", ".", "a ", "1 ")


ENDS = ("", "a", "1", "\n")


@pytest.mark.parametrize(
    ("patterns", "ends"),
    [
        *((patterns, (ENDS * 2)[i % 4 : i % 4 + 1]) for i, patterns in enumerate(FAMILIES)),
        *(pytest.param(patterns, ENDS, marks=pytest.mark.slow) for patterns in FAMILIES),
    ],
    ids=[*FAMILIES.values(), *(f"{name}, all ends" for name in FAMILIES.values())],
)
def test_time_grows_with_the_text(patterns, ends):
    """Eight times the text takes some eight times as long; quadratic time would be 64 times."""
    cuts = WordCuts(patterns)

    def taken(text):
        began = time.process_time()
        [*cuts.words(text)]
        return time.process_time() - began

    for run, end in product(RUNS, ends):
        text, part = run * 8000 + end, run * 1000 + end
        if taken(text) > 0.1:  # what is quick is not looked at again
            long, short = (min(taken(each) for _ in range(3)) for each in (text, part))
            assert long < 30 * short, f"{run!r} * 8000 + {end!r}: {long:.2f} s"
