"""Keywords that are checked: every verdict against jsonschema, of whole values and begun ones."""

import json

import pytest
from hypothesis import HealthCheck, assume, given, reject, settings
from hypothesis import strategies as st
from jsonschema import Draft7Validator, Draft202012Validator

from cutaway.errors import CutawayError, InputError
from cutaway.text.grammar.partial_json import PartialJson
from cutaway.text.grammar.partial_validator import PartialValidator
from cutaway.text.grammar.schema_checks import SchemaCheck, relaxed
from support.examples import few_or_many
from support.schemas import schemas, values


def truth(schema, text: bytes):
    """What is known of the schema when so much of a text was read."""
    reader = PartialJson()
    for _ in reader.read(text):
        pass
    return PartialValidator(schema).judge(reader.value) if reader.begun else None


def check_of(schema) -> SchemaCheck:
    try:
        return SchemaCheck(schema)
    except InputError as error:
        assert "allows no text" in str(error)
        reject()


@few_or_many(250, 2500, schemas(), values())
def test_whole_values_are_judged_as_jsonschema_judges_them(schema, value):
    validator = Draft7Validator if "dependencies" in json.dumps(schema) else Draft202012Validator
    assert PartialValidator(schema).judge(value) is validator(schema).is_valid(value)


@few_or_many(250, 2500, schemas(), values(), st.data())
def test_what_is_known_of_a_begun_value_stays_so(schema, value, data):
    text = json.dumps(value, indent=data.draw(st.sampled_from([None, 1]))).encode()
    cut = data.draw(st.integers(0, len(text)))
    known = truth(schema, text[:cut])
    assert known is None or known is PartialValidator(schema).judge(value)


@few_or_many(60, 300, schemas(), values(), st.data())
def test_a_text_passes_token_by_token_if_and_only_if_it_is_valid(schema, value, data):
    check, text = check_of(schema), json.dumps(value).encode()
    at, passed = 0, True
    while at < len(text) and passed:
        size = data.draw(st.integers(1, 6))
        passed = check.allows(text[:at], text[at : at + size])
        at += size
    assert (passed and check.allows(text, b"")) is PartialValidator(schema).judge(value)


@few_or_many(60, 300, schemas(), values(), st.booleans())
def test_what_is_relaxed_allows_what_the_schema_allows(schema, value, guided):
    assume(PartialValidator(schema).judge(value))
    made = relaxed(schema, guided=guided)
    assert PartialValidator(made).judge(value)
    assert not {"not", "oneOf", "uniqueItems", "contains", "if"} & {*_keywords(made)}


def _keywords(schema):
    if isinstance(schema, dict):
        for name, value in schema.items():
            yield name
            if name in ("properties", "$defs"):
                for one in value.values():
                    yield from _keywords(one)
            elif name not in ("enum", "const", "required"):
                for one in value if isinstance(value, list) else [value]:
                    yield from _keywords(one)


@settings(max_examples=40, suppress_health_check=[HealthCheck.filter_too_much])
@given(schema=schemas(), value=values(), data=st.data())
def test_only_suspects_are_refused(schema, value, data):
    check, text = check_of(schema), json.dumps(value).encode()
    cut = data.draw(st.integers(0, len(text)))
    pattern, token = check.suspects(text[:cut]), text[cut:]
    assume(pattern is not None and token and not pattern.search(token))
    reader = PartialJson()
    for _ in reader.read(text[:cut]):
        pass
    before = reader.value if reader.begun else None
    assume(before is None or PartialValidator(schema).judge(before) is not False)
    assert check.allows(text[:cut], token)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"not": {}}, "the schema allows no text"),
        ({"not": {"unevaluatedProperties": False}}, "unevaluatedProperties is not supported"),
        ({"not": {"pattern": "(?=a)b"}}, "pattern"),
        ({"not": {"format": "iri"}}, "format 'iri'"),
        ({"not": {"$ref": "#/$defs/none"}}, r"\$ref '#/\$defs/none' names nothing"),
        ({"not": {"$ref": "http://elsewhere"}}, r"\$ref 'http://elsewhere' names nothing"),
        ({"not": {"$ref": "#/$defs/a"}, "$defs": {"a": {"$ref": "#/$defs/a"}}}, "back to themsel"),
    ],
)
def test_what_can_not_be_checked_is_refused_by_name(schema, said):
    with pytest.raises(InputError, match=said):
        SchemaCheck(schema)


def test_a_pattern_that_would_take_python_for_ever_takes_no_time():
    check = SchemaCheck({"not": {"pattern": "^(a+)+$"}})
    assert check.allows(b'"' + b"a" * 200 + b"b", b'"')
    assert not check.allows(b'"' + b"a" * 200, b'"')


def test_a_schema_that_doubles_at_each_ref_takes_no_longer_for_it():
    names = {f"a{i}": {"anyOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(60)}
    schema = {"$ref": "#/$defs/a0", "$defs": {**names, "a60": {"not": {"const": 5}}}}
    check = SchemaCheck(schema)
    assert not check.allows(b"5", b"") and check.allows(b"6", b"")


@pytest.mark.parametrize("text", [b"]", b'{"a" 1 2', b"nul,", b'["\\x"', b"[" * 65])
def test_what_is_no_json_is_told(text):
    with pytest.raises(CutawayError):
        for _ in PartialJson().read(text + b" "):
            pass


@pytest.mark.parametrize(
    "rules", [{"uniqueItems": True}, {"contains": {"const": -1}}, {"not": {"items": {"const": 0}}}]
)
def test_a_token_is_judged_by_what_it_adds(rules, monkeypatch):
    """Not by all that is before it: else an array's every token took as long as its beginning."""
    judged = []
    holds = PartialValidator.holds

    def counted(self, schema, value):
        judged.append(value)
        return holds(self, schema, value)

    check = SchemaCheck({"type": "array", "items": {"type": "integer"}, **rules})
    text, counts = b"[", []
    monkeypatch.setattr(PartialValidator, "holds", counted)
    for number in range(100, 400):
        judged.clear()
        token = b"%d," % number
        assert check.allows(text, token)
        text += token
        counts.append(len(judged))
    assert max(counts) < 20
