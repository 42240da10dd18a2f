"""Words are those of the published expressions, and no text takes quadratic time."""

import time
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from cutaway.text.tokenizers import byte_level
from cutaway.text.tokenizers.byte_level import WordCuts
from cutaway.text.tokenizers.pretokenizers import PRETOKENIZERS

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
        assert cuts.words(text) == [word for word, _ in by_definition.pre_tokenize_str(text)]

    check()


@pytest.mark.parametrize("patterns", FAMILIES, ids=FAMILIES.values())
def test_words_are_the_same_in_windows(patterns, monkeypatch):
    """In small ones, of which a text has several."""
    cuts, by_definition = WordCuts(patterns), published(patterns)
    monkeypatch.setattr(byte_level, "_WINDOW", 32)
    monkeypatch.setattr(byte_level, "_AHEAD", 16)
    runs = st.lists(
        st.tuples(st.sampled_from(f"{CHARACTERS}AB'sIMGZ(/、ㄱ"), st.integers(1, 70)), min_size=4
    )

    @given(runs.map(lambda runs: "".join(character * count for character, count in runs)))
    def check(text):
        assert cuts.words(text) == [word for word, _ in by_definition.pre_tokenize_str(text)]

    check()


@pytest.mark.parametrize("run", ["1", "a b ", "ab1. ", "\n 2"])
def test_a_long_text_is_cut_as_a_whole(run):
    patterns = PRETOKENIZERS["smollm"].patterns
    text = run * (100_000 // len(run))
    whole = [word for word, _ in published(patterns).pre_tokenize_str(text)]
    assert WordCuts(patterns).words(text) == whole


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
        cuts.words(text)
        return time.process_time() - began

    for run, end in product(RUNS, ends):
        text, part = run * 8000 + end, run * 1000 + end
        if taken(text) > 0.1:  # what is quick is not looked at again
            long, short = (min(taken(each) for _ in range(3)) for each in (text, part))
            assert long < 30 * short, f"{run!r} * 8000 + {end!r}: {long:.2f} s"
