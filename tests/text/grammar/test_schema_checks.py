"""What is checked beside masks: every verdict against jsonschema, of whole and begun values."""

import json
from collections import Counter
from decimal import Decimal

import pytest
from hypothesis import assume, example, given, reject, settings
from hypothesis import strategies as st
from jsonschema import Draft7Validator, Draft202012Validator

from cutaway.errors import CutawayError, InputError
from cutaway.text.grammar import Grammar, llguidance_source
from cutaway.text.grammar.compiler import GrammarCompiler, accepts
from cutaway.text.grammar.json_values import may_be_multiple, may_be_within
from cutaway.text.grammar.partial_json import PartialJson
from cutaway.text.grammar.partial_validator import PartialValidator
from cutaway.text.grammar.schema_checks import (
    WHOLE,
    Judge,
    SchemaCheck,
    judge_of,
    judge_of_rules,
    relax,
)
from support.examples import few_or_many
from support.mock_backend import END, Words
from support.schema_pairs import is_valid, pairs
from support.schemas import schemas, values


def truth(schema, text: bytes):
    """What is known of the schema when so much of a text was read."""
    reader = PartialJson()
    for _ in reader.read(text):
        pass
    return PartialValidator(schema).judge(reader.value) if reader.has_begun else None


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
    made = relax(schema, guided=guided)
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


@settings(max_examples=40)
@given(schema=schemas(), value=values())
def test_only_suspects_are_refused(schema, value):
    """At each place of the text: what follows it, if no pattern suspects it, is allowed."""
    check, text = check_of(schema), json.dumps(value).encode()
    for cut in range(len(text)):
        pattern, token = check.suspects(text[:cut]), text[cut:]
        if pattern is None or pattern.search(token):
            continue
        reader = PartialJson()
        for _ in reader.read(text[:cut]):
            pass
        before = reader.value if reader.has_begun else None
        if before is None or PartialValidator(schema).judge(before) is not False:
            assert check.allows(text[:cut], token)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"not": {}}, "the schema allows no text"),
        ({"not": {"unevaluatedProperties": False}}, "unevaluatedProperties is not supported"),
        ({"not": {"pattern": r"(a)\1"}}, "pattern"),
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


# -- the judge: where masks were wrong, a refused text still could not end ---------------------

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


# -- random schemas and texts ------------------------------------------------------------------

REFUSED = (
    "allows no text", "Unsatisfiable schema", "Failed to generate regex", "not supported",
    "cannot be masked", "not disjoint", "Unimplemented keys", "must be checked token by token",
    "Regex is empty", "Unable to determine if regex is empty",
)  # fmt: skip


@pytest.mark.parametrize("thought", ["", "start: answer"], ids=["alone", "behind a thought"])
@pytest.mark.parametrize(
    ("seed", "count"),
    [(1, 600), *(pytest.param(seed, 58_000, marks=pytest.mark.slow) for seed in (2, 3))],
)
def test_what_can_be_written_is_valid(seed, count, thought, monkeypatch):
    """By masks and by the judge, each alone: so neither has to help the other."""
    counts: Counter[str] = Counter()
    judges = Judge.takes
    for schema, texts in pairs(seed, count):
        grammar = Grammar("json_schema", json.dumps(schema), thought=thought)
        for text in texts:
            monkeypatch.setattr(Judge, "takes", lambda *_: True)
            try:
                masked = accepts(text, grammar).whole
            except InputError as error:
                assert any(said in str(error) for said in REFUSED), error
                counts["refused"] += 1
                break
            monkeypatch.setattr(Judge, "takes", judges)
            valid = is_valid(schema, text)
            assert valid or not masked, (schema, text)
            assert Judge({"": schema}).takes("", text.encode()) is valid, (schema, text)
            counts.update(pairs=1, valid=valid, written=masked)
    print(f"{dict(counts)}")
    assert counts["written"] > 0.7 * counts["valid"] > 0.1 * count


# -- bounds that float64 does not have ------------------------------------------------------------

_LARGE = st.sampled_from([2**53 + 1, 2**63, 2**64 + 3, 10**19]).flatmap(
    lambda n: st.integers(n - 3, n + 3).flatmap(lambda m: st.sampled_from([m, -m]))
)


_DIGITS = st.from_regex(r"-?(0|[1-9][0-9]?)", fullmatch=True)
_SMALL = st.integers(-120, 120)


@given(text=_DIGITS, bounds=st.tuples(_SMALL, _SMALL))
def test_digits_that_may_become_a_number_within_bounds(text, bounds):
    least, limit = min(bounds), max(bounds)
    numbers = map(str, range(least, limit + 1))
    expected = any(n.startswith(text) for n in numbers) or (text == "-0" and least <= 0 <= limit)
    assert may_be_within(text, least, limit) is expected
    assert may_be_within(text, None, None)


@pytest.mark.parametrize("schema", [
    {"type": "integer", "minimum": 2**64}, {"type": "integer", "maximum": -(2**64)},
    {"type": "integer", "minimum": 2**53 + 1}, {"type": "integer", "multipleOf": 2**40},
    {"type": "number", "multipleOf": 0.07},
])  # fmt: skip
def test_a_number_of_thousands_of_digits_is_judged(schema):
    """Python's int() takes 4,300 digits at most."""
    grammar, digits = Grammar("json_schema", json.dumps(schema)), "7" * 5000
    for text in (digits, f"-{digits}", f"{digits}.0", f"{digits}.07"):
        expected = Judge({"": schema}).takes("", text.encode()) and not (
            "." in text and schema["type"] == "integer"
        )
        assert accepts(text, grammar).whole is expected


def test_digits_of_a_number_of_any_length_may_go_on():
    digits = "7" * 5000
    assert may_be_within(digits, 2**64, None) and may_be_within(f"-{digits}", None, 2**64)
    assert not may_be_within(digits, None, 2**64) and not may_be_within(f"-{digits}", 0, 2**64)
    assert may_be_multiple(f"{digits}.", Decimal("0.07"))
    assert not may_be_multiple(f"{digits}.1", Decimal(7))


@example(bounds=(2**53, 2**53 + 2), off=1, excluded=True)
@example(bounds=(-(2**53) - 2, -(2**53)), off=-1, excluded=True)
@given(bounds=st.tuples(_LARGE, _LARGE), off=st.integers(-2, 2), excluded=st.booleans())
def test_integers_keep_to_large_bounds_exactly(bounds, off, excluded):
    least, limit = min(bounds), max(bounds)
    names = ("exclusiveMinimum", "exclusiveMaximum") if excluded else ("minimum", "maximum")
    schema = {"type": "integer", names[0]: least, names[1]: limit, "not": {"multipleOf": 10**30}}
    if least + 2 * excluded > limit:
        return
    for value in (least + off, limit + off):
        fits = least + excluded <= value <= limit - excluded and value != 0
        assert accepts(str(value), Grammar("json_schema", json.dumps(schema))).whole is fits


def test_a_bound_beyond_64_bits_is_enforced():
    for least in (2**63, 2**64 + 1, 10**25 + 7):
        grammar = Grammar("json_schema", json.dumps({"type": "integer", "minimum": least}))
        for value in (least - 1, least, least + 1, 10 * least):
            assert accepts(str(value), grammar).whole is (value >= least)


@given(
    text=st.from_regex(r"-?(0|[1-9][0-9]?)(\.[0-9]{0,3})?", fullmatch=True),
    of=st.sampled_from(["0.07", "0.75", "3", "0.5", "20", "1.25"]),
)
def test_digits_that_may_become_a_multiple(text, of):
    multiples = [format(Decimal(of) * n, ".4f") for n in range(30_000 // max(int(Decimal(of)), 1))]
    digits = text.removeprefix("-")
    expected = "." not in digits or any(number.startswith(digits) for number in multiples)
    assert may_be_multiple(text, Decimal(of)) is expected
