"""Patterns with look-around: the texts of each, held against Python's backtracking engine."""

import json
import re
from itertools import product

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from cutaway.errors import InputError
from cutaway.text.grammar import Grammar
from cutaway.text.grammar.compiler import accepts
from cutaway.text.grammar.json_values import string_fits
from cutaway.text.grammar.patterns.look_around import (
    as_single_pattern,
    patterns_of,
    without_look_around,
)

PUBLIC = [  # of schemas that the world has
    (r"^(?!aws:)[a-z:]+$", "aws:b"),
    (r"^(?!\s*$).+$", " ab"),
    (r"(?!^[0-9]+$)([a-z0-9]+)", "09a-"),
    (r"^[a-z](?!.*--)[a-z-]*$", "ab-_"),
    (r"^(?=^[a-b]+$).{1,3}$", "abc"),
    (r"(^(?!_{2}))(^[a_]+$)", "a_b"),
    (r"^[ab.]*(?<!\.)$", "a.c"),
    (r"^(?!a)(?![-])(?!.*[-]$)(?!.*[-]{2})[ab-]+$", "ab-c"),
    (r"^((?!aws:)[a-z:]*)$", "aws:"),
    (r"^(?!^\s+$)((?![b<])([a-d]))+$", "ab <"),
    (r"^(?!D-|d-)([\da-d]+)([-]*[\da-d])*$", "Dd-1"),
    (r"^(?=.*[a-c])(?=.*[A-C])(?=.*\d)[^ ]{3,}", "aA1 "),
    (r"^a(?!b)[a-b]*$|^b_\w*[ab]$", "ab_"),
    (r"^[a]?((?!-)([a-b-]*[a])\.)+[ab]+$", "ab-."),
    (r"^(?!a$|ab$)[a-c][a-c0-9]*$", "abc0"),
    (r"^/(?!/)(?!.*/$)[a-b.]+(/[a-b.]+)*$", "/a."),
    (r"\b(a|ab)\b", "ab -"),
    (r"^(\bab\b|[0-9a]+)$", "ab0-"),
    (r"(?=.{1,2}$)[a-b](-*[ab])*", "ab-"),
    (r"^(?:(?!ab)[abc])+$", "abcd"),
    (r"^(?!aws:)[a-z:]{1,5}$", "aws:b"),
    (r"^(?!ab.*).{2,4}$", "abc"),
    (r"^a(?!b)(?:[ab]{2}|c(?!a)){1,2}$", "abc"),
    (r"^(?!memoryStrategyId$|actorId$|sessionId$)[a-z][a-zI]*$", "adI"),
]

_TEXTS = [*map("".join, (text for n in range(5) for text in product("ab-", repeat=n)))]


def python_matches(pattern: str, text: str) -> bool:
    return re.search(pattern, text, re.ASCII) is not None


@pytest.mark.parametrize(("pattern", "letters"), PUBLIC)
def test_texts_are_those_of_a_backtracking_engine(pattern, letters):
    for length in range(6):
        for text in map("".join, product(letters, repeat=length)):
            assert string_fits("pattern", pattern, text) is python_matches(pattern, text), text


@pytest.mark.parametrize(("pattern", "letters"), PUBLIC)
def test_a_single_pattern_has_the_same_texts(pattern, letters):
    single = as_single_pattern(pattern)
    assert single is not None and without_look_around(single) is None
    for text in map("".join, product(letters, repeat=3)):
        assert string_fits("pattern", single, text) is python_matches(pattern, text), text


@pytest.mark.parametrize("pattern", [
    "(?=^|a)a", "(?=(?:^|a))a", "(?=(?:(?:^|b)|a))a", "(?=^a|b)[ab]", "(?=a|^)a", "(?=^|^a)a",
    "(?=(?=^|a)a)a", "(?=(?:(?=^)|a))a", "(?=^|a|$)", "(?=^|a)(?=^|b|a)a", "(?=(?:^|a)b)b",
    "(?!^|a)b", "(?=$|b)", "a(?=$|b)", "(?!$|b)a", "(?=a$|b)[ab]", "(?=(?:$|b))b",
    "(?=(?:^|a)(?:b|$))", "(?<=^a|b)-", "(?<=(?:a|b)$)", "(?<!^a|b)-",
    r"(?=\b|a)a", r"(?=^|\b)a", r"(?=^|\ba)a", r"(?=(?:^|\b)a)a", r"(?=^|\B)a", r"(?!^|\b)a",
    "(?=^|b)^a", "(?=^|b)a$", "^(?=^|b)a", "(?=^|a)+a",
    f"(?=^{'{0,1}|^'.join('a' * 35)}|b)b", "(?=(?:^|^a)(?:^|^b)(?:^|^a)(?:^|^b)(?:^|^a)(?:|b)|b)b",
])  # fmt: skip
def test_an_anchor_in_an_alternative_holds_for_that_alternative_alone(pattern):
    for text in _TEXTS[r"\B" in pattern :]:
        assert string_fits("pattern", pattern, text) is python_matches(pattern, text), text


@pytest.mark.parametrize(("pattern", "same"), [
    ("(?<=^|a)b", "(?:^|(?<=a))b"),
    ("(?<=a|^)b", "(?:^|(?<=a))b"),
    ("(?<!^|a)b", "(?!^)(?<!a)b"),
])  # fmt: skip
def test_alternatives_of_a_look_behind_may_have_several_lengths(pattern, same):
    for text in _TEXTS:  # Python itself looks back over one length alone
        assert string_fits("pattern", pattern, text) is python_matches(same, text), text


# -- random patterns ------------------------------------------------------------------------------

_SETS = st.sampled_from(["a", "b", "[ab]", "[^a]", "-", r"\w", ".", "[b-]"])
_PLACES = st.sampled_from(["^", "$", r"\b", r"\B"])


def _join(parts: list[str]) -> str:
    return "".join(parts)


def _any_of(parts: list[str]) -> str:
    return f"(?:{'|'.join(parts)})"


_FIXED = st.lists(_SETS, max_size=2).map(_join)  # what Python may look back over
_BEHIND = st.tuples(st.sampled_from(["(?<=", "(?<!"]), _FIXED).map(lambda t: f"{t[0]}{t[1]})")


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    repeats = st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "*?"])
    return st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(_join),
        st.lists(inner, min_size=2, max_size=3).map(_any_of),
        st.tuples(inner, repeats).map(lambda t: f"(?:{t[0]}){t[1]}"),
        st.tuples(st.sampled_from(["(?=", "(?!"]), inner).map(lambda t: f"{t[0]}{t[1]})"),
    )


_RANDOM = st.recursive(_SETS | _PLACES | _BEHIND, _larger, max_leaves=7)


@given(pattern=_RANDOM)
def test_random_patterns_have_the_texts_of_a_backtracking_engine(pattern):
    try:
        patterns_of(pattern)
    except InputError as error:  # some that look far are too large, which is said
        assert re.search("too many states|it is too long", str(error))
        reject()
    for text in _TEXTS[r"\B" in pattern :]:  # Python alone has no \B in an empty text
        assert string_fits("pattern", pattern, text) is python_matches(pattern, text), text


@pytest.mark.slow
def test_a_million_texts_of_random_patterns():
    check = settings(max_examples=1_000_000 // len(_TEXTS), deadline=None)
    check(test_random_patterns_have_the_texts_of_a_backtracking_engine)()


# -- where patterns stand -------------------------------------------------------------------------


def takes(schema, text: str) -> bool:
    return accepts(text, Grammar("json_schema", json.dumps(schema))).whole


def test_names_of_an_object_keep_to_a_pattern_with_look_around():
    schema = {"type": "object", "patternProperties": {"^(?!x-)[a-z-]+$": {"type": "integer"}},
              "additionalProperties": False}  # fmt: skip
    assert takes(schema, '{"a-b": 1}')
    assert not takes(schema, '{"x-b": 1}') and not takes(schema, '{"a-b": "1"}')


def test_a_pattern_stands_beside_other_keywords():
    schema = {"type": "string", "pattern": r"^(?=.*[A-Z])(?=.*\d)", "minLength": 3,
              "allOf": [{"pattern": "^[^b]"}]}  # fmt: skip
    assert takes(schema, '"A1b"') and takes(schema, '"1-A"')
    assert not takes(schema, '"A1"') and not takes(schema, '"b1A"') and not takes(schema, '"Aab"')


@pytest.mark.parametrize(("regex", "whole", "not_whole"), [
    ("(?!no)[a-z]+", "yes", "nope"),
    (r"\w+\b!(?<!a!)", "ab!", "ba!"),
    ("(?=.*1).*", "a1b", "ab"),
    ("a/(?!b)./?", "a/c/", "a/b/"),
])  # fmt: skip
def test_a_regex_may_look_around(regex, whole, not_whole):
    for thought in ("", 'start: thought? answer\nthought: "<" /[a-z]*/ ">"'):
        grammar = Grammar("regex", regex, thought=thought)
        assert accepts(whole, grammar).whole and not accepts(not_whole, grammar).whole


# -- what stays, and what is refused --------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["^[a-z]+$", "a|b", r"^(a|b)\d{3}$", "[$^]", r"\^"])
def test_a_pattern_that_looks_nowhere_is_left_as_it_is(pattern):
    assert patterns_of(pattern) == ((pattern,),) and as_single_pattern(pattern) == pattern


def test_a_name_may_be_long_behind_what_it_must_not_begin_with():
    single = as_single_pattern("^(?!aws:)[a-z:]{1,128}$")
    for text, fits in (("a" * 128, True), ("a" * 129, False), ("aws:a", False), ("awsa", True)):
        assert string_fits("pattern", single, text) is fits


@pytest.mark.parametrize(("pattern", "reason"), [
    (r"^(?!.*(a|b)\1)", "refers back to a group"),
    ("^(?!(?i)aws)", "has flags"),
    ("(?<=a(?=b))b", "looks ahead within a look-behind"),
    ("a(?<=a$|a)", "looks ahead within a look-behind"),
    ("b(?<=(?:b|b$))", "looks ahead within a look-behind"),
    (r"b(?<=b$|b\b)", "looks ahead within a look-behind"),
    ("(?=.{1,900}$)ab", "needs too many states"),
    ("^((?!ab)a.{1,40}b|b(?=a.*b).*)+$", "too"),
    (f"(?=a){'b' * 4000}", "is longer than 4000 characters"),
    (f"{'(' * 50}(?=a){')' * 50}", "nested too deep"),
    (f"(?=a)b{'*' * 3000}", "repeats a repetition too often"),
    ("^(?:a(?=b)?){900}$", "needs too many states"),
    ("^(?!a", "does not close a group"),
    ("^(?!a))", "closes a group that is not open"),
])  # fmt: skip
def test_what_cannot_be_written_is_refused_in_a_sentence(pattern, reason):
    with pytest.raises(InputError, match=f"^json_schema: pattern .*{reason}"):
        patterns_of(pattern)


def test_what_a_pattern_costs_is_not_what_it_counts_to():
    assert patterns_of("^a{1000000000}b$") == (("^a{1000000000}b$",),)
    with pytest.raises(InputError, match="needs too many states"):
        patterns_of("^a{1000000000}(?=b)c*$")


def test_a_schema_has_some_patterns_that_look_around():
    patterns = [{"pattern": f"^(?!{'a' * n})"} for n in range(1, 34)]
    assert takes({"type": "string", "allOf": patterns[:8]}, '"b"')
    with pytest.raises(InputError, match="33 different patterns look around; at most 32 may"):
        takes({"anyOf": patterns}, '"b"')


def test_a_pattern_that_no_text_matches_allows_no_text():
    assert patterns_of("^(?!)") == () and as_single_pattern("a^") is None
    with pytest.raises(InputError, match=r"^json_schema"):
        takes({"type": "string", "pattern": "(?!.)a"}, '"a"')
    with pytest.raises(InputError, match=r"^regex: no text matches it"):
        accepts("a", Grammar("regex", "(?!)"))
