"""What a text may be: of two grammars, without a key twice, without a call twice."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway.errors import CutawayError, InputError
from cutaway.text.grammar import Grammar
from cutaway.text.grammar.compiler import GrammarCompiler, accepts, notes_on
from cutaway.text.grammar.matcher import Matcher, has_open_objects
from cutaway.text.grammar.partial_json import PartialJson
from cutaway.text.tools import Tool, ToolChoice, grammar
from support.chat_templates import FORMS, NAMES, dialect
from support.mock_backend import END, Words

COMPILER = GrammarCompiler(Words())
SCHEMAS = [
    {"type": "object"},
    {"enum": ["ab", "a", 12]},
    {"type": "array", "items": {"enum": [1, 12]}, "minItems": 1},
    {"type": "object", "properties": {"a": {"enum": [1, 12, "b"]}}, "required": ["a"],
     "additionalProperties": False},
]  # fmt: skip
CALLS = [
    'start: "<" ("a" | "ab") ">"',
    'start: "{\\"a\\": " ("1" | "123") "}"',
    'start: "[1" ("," "1")* "]" ("!" "?")?',
]
both = given(st.sampled_from(SCHEMAS), st.sampled_from(CALLS), st.data())


def three(schema, calls):
    """Either, the schema alone, the calls alone."""
    text = json.dumps(schema)
    return Grammar("json_schema", text, calls=calls), Grammar("json_schema", text), Grammar(
        "grammar", calls
    )  # fmt: skip


def allowed(grammar, text):
    """What may follow a text under a grammar alone; None where it is not begun under it."""
    matcher = COMPILER.matcher(grammar)
    if matcher.valid([*text]) < len(text):
        return None
    for byte in text:
        matcher.accept(byte)
    bits = np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")
    return {*np.flatnonzero(bits).tolist()}


@settings(max_examples=60)
@both
def test_masks_are_those_of_the_grammars_that_the_text_keeps_to(schema, calls, data):
    either, *alone = three(schema, calls)
    matcher, text = COMPILER.matcher(either), b""
    for _ in range(12):
        each = [allowed(grammar, text) for grammar in alone]
        expected = set().union(*[one for one in each if one is not None])
        mask = matcher.mask()
        bits = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        assert {*bits.tolist()} == expected
        whole = [one and END in one for one in each]
        assert [*matcher.ends] == whole
        assert matcher.may_end == (END in expected)
        assert matcher.is_over == (expected == {END})
        forced = matcher.find_forced_tokens()
        assert not forced or expected == {forced[0]}
        if expected == {END}:
            break
        token = data.draw(st.sampled_from(sorted(expected - {END})))
        other = matcher.fork()
        matcher.accept(token)
        assert np.array_equal(other.mask(), mask)
        text += bytes([token])


@settings(max_examples=150)
@both
def test_a_text_is_accepted_where_one_of_them_accepts_it(schema, calls, data):
    either, *alone = three(schema, calls)
    parts = ["<", "a", "ab", ">", '{"a": ', "1", "123", "12", "}", "{", "[1", ",1", "]", "!", '"b"']
    text = "".join(data.draw(st.lists(st.sampled_from(parts), max_size=5)))
    found, each = accepts(text, either), [accepts(text, grammar) for grammar in alone]
    assert found.whole == any(each)
    places = [one.at for one in each]
    assert found.at == (None if None in places else max(places))
    matcher, ids = COMPILER.matcher(either), [*text.encode()]
    assert matcher.valid(ids) == max(COMPILER.matcher(one).valid(ids) for one in alone)


def test_a_token_that_neither_allows_is_an_error():
    matcher = COMPILER.matcher(three(SCHEMAS[0], CALLS[0])[0])
    assert not matcher.valid([ord("x")])
    with pytest.raises(CutawayError, match="the grammar failed"):
        matcher.accept(ord("x"))


def test_both_are_recorded_and_refused_by_name():
    either, schema, _ = three(SCHEMAS[0], CALLS[0])
    thought = Grammar("json_schema", schema.text, thought=CALLS[0])
    assert len({one.sha256 for one in (either, schema, thought)}) == 3
    with pytest.raises(InputError, match=r"^grammar: .*other"):
        COMPILER.compile(three(SCHEMAS[0], "start: other")[0])
    with pytest.raises(InputError, match=r"^json_schema: .*iri"):
        COMPILER.compile(three({"type": "string", "format": "iri"}, CALLS[0])[0])
    with pytest.raises(InputError, match=r"^json_schema: uniqueItems would have to be checked"):
        COMPILER.compile(three({"type": "array", "uniqueItems": True}, CALLS[0])[0])


@pytest.mark.parametrize("text", ["<a>", "-<ab>", '{"b": 1}', "-{}"])
def test_a_thought_may_precede_both(text):
    thought = 'start: "-" answer | answer'
    text_or_calls = Grammar("json_schema", '{"type":"object"}', thought=thought, calls=CALLS[0])
    assert accepts(text, text_or_calls)
    assert not accepts(f"--{text}", text_or_calls)


# -- no key twice ------------------------------------------------------------------------------

TOKENS = [
    *(bytes([i]) for i in range(256)), b"", b'""', b'":', b'","', b'"a"', b',"a"', b'"a":', b'a"',
    b'},"a":', b'b":1,"a":', b'{"a":{"a":', b'\\u0061"', b'":"","":"',
]  # fmt: skip


class MoreWords(Words):
    vocab_size = len(TOKENS)

    def token_bytes(self, token_id: int) -> bytes:
        return TOKENS[token_id]


MORE_COMPILER = GrammarCompiler(MoreWords())


def judged(text: bytes) -> tuple[set[bytes], set[bytes]]:
    """The tokens that may not follow though they would be JSON, and those with a key again."""
    matcher = MORE_COMPILER.matcher(Grammar("json_schema", "true"))
    for byte in text:
        matcher.accept(byte)
    mask = matcher.fork().mask()
    free = np.empty_like(mask)
    matcher._ways[0].matcher.unsafe_compute_mask_ptr(free.ctypes.data, free.nbytes)
    bits = np.unpackbits(np.array([free, mask]).view(np.uint8), axis=1, bitorder="little")
    tokens = [TOKENS[i] for i in np.flatnonzero(bits[0])]
    return {TOKENS[i] for i in np.flatnonzero(bits[0] & ~bits[1])}, {*filter(repeats(text), tokens)}


def repeats(text: bytes):
    def with_token(token: bytes) -> bool:
        reader = PartialJson()
        for _ in reader.read(text + token):
            pass
        return reader.repeated

    return with_token


@pytest.mark.parametrize(
    ("text", "gone"),
    [
        (b'{"a":1', b',"a"'), (b'{"a":1,', b'"a":'), (b'{"a":1,"', b'a"'), (b'{"a":1,"a', b'"'),
        (b'{"ab":1,"a', b'b":1,"a":'), (b'{"":1,', b'""'), (b'{"":1,"', b'":'), (b'{', None),
        (b'{"', b'":"","":"'), (b'{"a":{"b":1', b'},"a":'), (b'{"b":{"b":1', None),
        (b'[{"a":1},{', None), (rb'{"\n":1,"\u000a', b'"'),
        (b'{"a":1,"b":"', None), (b'{"a":1,"b":"c', None),
    ],
)  # fmt: skip
def test_what_would_write_a_key_again_may_not_follow(text, gone):
    refused, again = judged(text)
    assert refused == again
    assert gone in refused if gone else not refused


@given(st.lists(st.tuples(st.sampled_from(["", "a", "b", "ab"]), st.booleans()), max_size=4))
def test_an_object_is_accepted_if_and_only_if_its_keys_differ(members):
    said = ",".join(f'"{key}":{"{}" if nested else 1}' for key, nested in members)
    found = accepts(f"{{{said}}}", Grammar("json_schema", "true"))
    keys = [key for key, _ in members]
    assert found.whole is (len({*keys}) == len(keys))
    assert found.whole or found.at is not None


def test_a_key_in_another_spelling_is_no_second_key():
    found = accepts(r'{"\n":1,"\u000a":2}', Grammar("json_schema", '{"type":"object"}'))
    assert found.at == 15


def test_where_all_keys_are_there_already_it_is_an_error():
    schema = {"type": "object", "patternProperties": {"^a$": {}}, "additionalProperties": False}
    matcher = MORE_COMPILER.matcher(Grammar("json_schema", json.dumps(schema), compact=True))
    for byte in b'{"a":1,"a':
        matcher.accept(byte)
    with pytest.raises(InputError, match="all keys that may follow are there already"):
        matcher.mask()


@pytest.mark.parametrize(
    ("schema", "is_open"),
    [
        (True, True), ({}, True), ({"type": "object"}, True), ({"type": "string"}, False),
        ({"type": ["null", "object"]}, True), ({"enum": [{}]}, False),
        ({"type": "object", "additionalProperties": False}, False),
        ({"type": "array", "items": {"type": "object"}}, True),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}}, True),
        ({"anyOf": [{"type": "null"}, {}]}, True), ({"type": "array"}, True),
        ({"type": "array", "items": {"type": "null"}}, False),
        ({"properties": {"a": {"type": "null"}}, "additionalProperties": False}, True),
        ({"type": "object", "properties": {"a": {}}, "additionalProperties": False}, True),
    ],
)  # fmt: skip
def test_objects_are_open_where_keys_may_be_any(schema, is_open):
    assert has_open_objects(schema) is is_open


# -- a call that an answer repeats is its last -------------------------------------------------

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = (Tool("get_weather", "", CITY | {"additionalProperties": False}), Tool("now"))
ROME, OSLO = ("get_weather", '{"city": "Rome"}'), ("get_weather", '{"city": "Oslo"}')
NOW = ("now", "{}")

families = pytest.mark.parametrize(
    "name", [name for name in (*NAMES, *FORMS) if dialect(name, False).allows_several]
)


def written(name: str, calls: list[tuple[str, str]], mode: str = "required") -> Matcher:
    """The state of an answer behind its last call, without what closes them all."""
    form = dialect(name, False)
    text = form.write([(*call, f"abcdefgh{i}") for i, call in enumerate(calls)])
    lark = grammar(form, TOOLS, ToolChoice(mode))
    matcher = COMPILER.matcher(Grammar("grammar", lark))
    for byte in text.removesuffix(form.end).encode():
        matcher.mask()  # as an engine asks; llguidance then reads ahead what is forced
        assert not matcher.is_over
        matcher.accept(byte)
    return matcher


@families
@pytest.mark.parametrize("calls", [[ROME, ROME], [NOW, NOW], [ROME, OSLO, ROME], [ROME, NOW, NOW]])
def test_an_answer_is_over_behind_a_call_that_it_has_already(
    name: str, calls: list[tuple[str, str]]
) -> None:
    assert written(name, calls).is_over
    assert written(name, calls).fork().is_over


@families
def test_calls_that_differ_may_go_on(name: str) -> None:
    assert not written(name, [ROME, OSLO, NOW]).is_over


@families
def test_a_model_that_may_also_speak_may_repeat_a_call(name: str) -> None:
    assert not written(name, [ROME, ROME], "auto").is_over


def test_no_note_speaks_of_how_a_grammar_marks_calls() -> None:
    calls = Grammar("grammar", grammar(dialect("qwen3", False), TOOLS, ToolChoice("required")))
    assert notes_on(calls, COMPILER.compile(calls)) == []
