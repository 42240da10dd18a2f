"""Where masks were wrong, a text that its schema refuses still could not end."""

import json

import pytest

from cutaway.errors import CutawayError, InputError
from cutaway.text.grammar import Grammar, llguidance_source
from cutaway.text.grammar.compiler import GrammarCompiler, accepts
from cutaway.text.grammar.schema_checks import WHOLE, Judge, judge_of, judge_of_rules
from support.mock_backend import END, Words

SCHEMA = {"type": "string", "pattern": '^[^"]+$'}
BOUNDED = {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}


@pytest.fixture
def wrong_masks(monkeypatch):
    """llguidance is given schemas as they are."""
    monkeypatch.setattr(llguidance_source, "maskable", lambda schema: schema)
    return GrammarCompiler(Words())


def after(compiler, grammar: Grammar, text: bytes):
    matcher = compiler.matcher(grammar)
    for byte in text:
        matcher.accept(byte)
    return matcher


def may_end(mask) -> bool:
    return bool(mask[END >> 5] >> (END & 31) & 1)


def test_a_text_that_its_schema_refuses_goes_on_until_it_may_end(wrong_masks):
    grammar = Grammar("json_schema", json.dumps(BOUNDED))
    begun = after(wrong_masks, grammar, b"0")
    assert not may_end(begun.mask()) and not begun.may_end and not begun.is_over
    for byte in b".25":
        begun.accept(byte)
    assert may_end(begun.mask()) and begun.may_end
    begun.finish(END)


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        (Grammar("json_schema", json.dumps(SCHEMA)), r'"a\"b"'),
        (Grammar("json_schema", json.dumps(SCHEMA), thought='start: "<t>" answer'), r'<t>"a\"b"'),
        (
            Grammar("json_schema", '{"const":1}', calls=f"start: a\na: %json {json.dumps(SCHEMA)}"),
            r'"a\"b"',
        ),
        (
            Grammar("grammar", f'start: "f(" a ")"\na: %json {json.dumps(SCHEMA)}'), r'f("a\"b")',
        ),
        (
            Grammar(
                "grammar", f'start: ("f(" a ")")*\na: %json {json.dumps(SCHEMA)}',
                thought='start: "<t>" answer',
            ), r'<t>f("b")f("a\"b")',
        ),
    ],
)  # fmt: skip
def test_where_there_is_no_other_way_out_it_is_an_error(wrong_masks, grammar, text):
    if grammar.calls:
        wrong_masks.compile(grammar)
    ended = after(wrong_masks, grammar, text.encode())
    fork = ended.fork()
    for one in (ended, fork):
        assert not one.may_end and not one.is_over
        if "*" in grammar.text:
            assert not may_end(one.mask())
        else:
            with pytest.raises(CutawayError, match="whole, but does not keep to the schema"):
                one.mask()
    right = after(wrong_masks, grammar, text.replace(r"\"", "").encode())
    assert right.may_end and right.fork().may_end and may_end(right.mask())


def test_a_number_behind_a_thought_is_judged_before_it_ends(wrong_masks):
    grammar = Grammar("json_schema", json.dumps(BOUNDED), thought='start: "<t>" answer')
    assert not may_end(after(wrong_masks, grammar, b"<t>0").mask())
    assert may_end(after(wrong_masks, grammar, b"<t>0.1").mask())


@pytest.mark.parametrize(
    ("schema", "text", "taken"),
    [
        ({"$ref": "#/$defs/a"}, "5", True),
        ({"$ref": "#/$defs/a"}, "true", False),
        ({"$ref": "#n"}, "5", True),
        ({"$ref": "#n"}, "true", False),
        ({"$ref": "http://x.org/root#/$defs/a"}, "true", False),
        ({"$ref": "b.json"}, "null", True),
        ({"$ref": "b.json#/$defs/inner"}, "5", False),
        ({"items": {"$ref": "#/$defs/b/$defs/inner"}}, "[null, 1]", False),
    ],
)
def test_references_are_those_of_json_schema(schema, text, taken):
    """A part with an ``$id`` of its own is the root of its own references."""
    inner = {"$id": "b.json", "$ref": "#/$defs/inner", "$defs": {"inner": {"type": "null"}}}
    numbers = {"type": "integer", "$anchor": "n"}
    whole = {"$id": "http://x.org/root", **schema, "$defs": {"a": numbers, "b": inner}}
    assert Judge({WHOLE: whole}).takes(WHOLE, text.encode()) is taken
    assert accepts(text, Grammar("json_schema", json.dumps(whole))).whole is taken


@pytest.mark.parametrize(
    ("draft", "schema", "text"),
    [
        ("http://json-schema.org/draft-04/schema#", {"const": 1}, "2"),
        ("http://json-schema.org/draft-07/schema#", {"prefixItems": [{"type": "null"}]}, "[1]"),
    ],
)
def test_a_keyword_means_nothing_in_a_draft_that_does_not_have_it(draft, schema, text):
    older = Grammar("json_schema", json.dumps({"$schema": draft, **schema}))
    assert accepts(text, older) and not accepts(text, Grammar("json_schema", json.dumps(schema)))


def test_what_no_reader_reads_does_not_end():
    deep = b"[" * 70 + b"]" * 70
    judge = judge_of({"type": "array"})
    assert not judge.takes(WHOLE, deep) and not judge.takes(WHOLE, b"[" * 9999 + b"]" * 9999)
    assert judge.takes(WHOLE, deep[8:-8]) and not judge.takes(WHOLE, b"[1")
    assert judge_of(True).takes(WHOLE, b'{"a": 1}')
    assert not judge_of(True).takes(WHOLE, b'{"a": 1, "\\u0061": 2}')
    assert not Judge({"a": {"type": "null"}}).takes("a", b"1")
    assert Judge({"a": {"type": "null"}}).takes("b", b"1")


def test_only_rules_of_a_schema_alone_are_captured():
    lark = 'start: a b c\na: %json {"type":"null"}\nb: %json {"type":"null"} "x"\nc: %json {}'
    captured, judge = judge_of_rules(lark)
    assert captured == lark.replace("a: %json", "a[capture]: %json")
    assert judge.names == {"a"}
    assert judge_of_rules('start: "a"') == ('start: "a"', None)


def test_a_reference_to_nothing_is_refused_when_the_schema_comes():
    with pytest.raises(InputError, match=r"\$ref"):
        accepts("1", Grammar("json_schema", '{"$ref": "#/none"}'))
