"""Patterns in other notations, and of lengths that llguidance cannot decide by itself."""

import json
import re

import pytest

from cutaway.text.grammar import Grammar
from cutaway.text.grammar.compiler import accepts
from cutaway.text.grammar.json_values import string_fits
from cutaway.text.grammar.patterns.sets import translate
from cutaway.text.grammar.patterns.witness import _is_undecided, with_witness


def takes(schema, text: str) -> bool:
    return accepts(json.dumps(text, ensure_ascii=False), Grammar("json_schema", schema)).whole


# -- other notations ------------------------------------------------------------------------------

TRANSLATED = [
    (r"\A[a-z]+\Z", ["ab"], ["ab\n", "aZ", "Ab", ""]),
    (r"^(a)|(b)\Z", ["ac", "cb"], ["bc"]),
    (r"^[\p{Graph}\x20]*$", ["a ~!"], ["a\n", "é"]),
    (r"^[\p{Print}&&[^|:/]]+$", ["a b"], ["a:b", "\x7f"]),
    (r"^\p{Print}$", ["~"], ["\x1f"]),
    (
        r"^[\u0020-\uD7FF\uE000-\uFFFD\uD800\uDBFF-\uDC00\uDFFF\r\n\t]*$",
        ["é\n�"],
        ["\x01", "\uffff"],
    ),
    (r"^[a\uD800-\uDFFF]$", ["a"], ["b"]),
    (r"^[\u0061-\uDBFF]$", ["a", "z", "\ud7ff"], ["0", "\ue000"]),
    (r"^[\uDC00-\uFFFF]$", ["\uffff"], ["a", "\ud7ff"]),
]


@pytest.mark.parametrize(("pattern", "inside", "outside"), TRANSLATED)
def test_patterns_of_other_notations_are_read(pattern, inside, outside):
    schema = json.dumps({"type": "string", "pattern": pattern})
    assert all(takes(schema, text) for text in inside)
    assert not any(takes(schema, text) for text in outside)


@pytest.mark.parametrize("pattern", [r"^[A-Z]\d{3}\.$", r"[\]\\A-Z]", r"\\A", r"^\u00e9[^\uFFFD]$"])
def test_a_pattern_in_the_usual_notation_is_left_as_it_is(pattern):
    assert translate(pattern) == pattern


# -- a text as proof ------------------------------------------------------------------------------

HOST = r"^(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z0-9][a-z0-9-]{0,61}[a-z0-9]$"
ARN = r"^arn:[\w+=\/,.@-]+:[a-zA-Z\-]+:[a-z\-]*:[a-zA-Z0-9]{1,12}:[a-z]+(\/[a-fA-F0-9\-]{36})+$"
ENDPOINT = r"([a-zA-Z0-9\-\_]+\.){2,3}vpce\.[a-zA-Z0-9\-]*\.vpce-svc\-[a-zA-Z0-9\-]{17}$"
UUID = "0" * 36
UNDECIDED = [
    (
        HOST, 0, 128, ["a.bc", f"{'a' * 60}.{'b' * 60}.cd"],
        ["a.b", "a..bc", f"{'a' * 62}.{'b' * 62}.ccc"],
    ),
    (
        ARN, 20, 2048, [f"arn:a:b:c:d:e/{UUID}"],
        [f"arn:a:b:c:d:e{f'/{UUID}' * 56}", "arn:a:b:c:d:e"],
    ),
    (
        ENDPOINT, 47, 255, [f"aa.b-.{'_' * 9}.vpce.eu.vpce-svc-{'a' * 17}"],
        [f"a.b.vpce..vpce-svc-{'a' * 17}"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("pattern", "least", "limit", "inside", "outside"), UNDECIDED)
def test_a_pattern_and_a_length_go_together(pattern, least, limit, inside, outside):
    assert _is_undecided(pattern, least, limit)  # else this test shows nothing
    schema = {"type": "string", "pattern": pattern, "minLength": least, "maxLength": limit}
    for text in (*inside, *outside):
        fits = re.search(pattern, text, re.ASCII) is not None and least <= len(text) <= limit
        assert fits is (text in inside)
        assert takes(json.dumps(schema), text) is fits, text


def test_a_witness_changes_no_texts():
    proven = with_witness(HOST, 0, 128)
    assert proven != HOST
    for text in ("a.bc", "aaa", "a0", "", "a.aa", "-.aa", "a.aaa.a0", "b.c"):
        assert string_fits("pattern", proven, text) is string_fits("pattern", HOST, text)


def test_what_is_decided_and_what_has_no_text_is_left_as_it_is():
    assert with_witness("^[a-z]+$", 1, 5) == "^[a-z]+$"
    assert with_witness(HOST, 0, 3) == HOST  # its shortest text has four
