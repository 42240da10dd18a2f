"""What llguidance alone masks wrongly: by masks alone no such text can be written."""

import json
import re
from datetime import date, timedelta
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.errors import InputError
from cutaway.text.grammar import Grammar, json_values
from cutaway.text.grammar.compiler import accepts
from cutaway.text.grammar.patterns.sets import make_quotable
from cutaway.text.grammar.schema_checks import Judge


@pytest.fixture(autouse=True)
def masks_alone(monkeypatch):
    monkeypatch.setattr(Judge, "takes", lambda judge, name, text: True)


def takes(schema, text: str, thought: str = "") -> bool:
    return accepts(text, Grammar("json_schema", json.dumps(schema), thought=thought)).whole


# -- patterns -------------------------------------------------------------------------------------

PATTERNS = [
    '^[^"]+$', r"^[^\\/:*?\"<>|]+$", r"^[^\\]*$", "^[^A-z]$", "^[^!-/]$", r"^[\x00-\x1f]$",
    r'^(a|[^"\n]|\n)*$', r'^([^"\x00]|\x00)$', '[^"]"', r'^[^"\d\]]$', r'[^\]"-]$', r"\P{P}",
]  # fmt: skip
_STRINGS = st.text('"\\aZ_/-]1\n\x00\x1f é', max_size=3)


def _is_found(pattern: str, text: str) -> bool:
    python = pattern.replace(r"\P{P}", r"[^!-#%-*,-/:;?@\[-\]_{}]")
    return re.search(re.sub(r"\$$", r"\\Z", python), text, re.ASCII) is not None


def _places(pattern: str, text: str):
    """Schemas that hold a string to a pattern, each with a text that has it there."""
    said = json.dumps(text, ensure_ascii=False)
    inner = {"type": "string", "pattern": pattern}
    yield inner, said
    yield {"allOf": [inner, {"minLength": 0}]}, said
    yield {"anyOf": [inner, {"type": "null"}]}, said
    yield {"$ref": "#/$defs/p", "$defs": {"p": inner}}, said
    yield (
        {"type": "object", "patternProperties": {pattern: {}}, "additionalProperties": False},
        f"{{{said}: 1}}",
    )
    yield {"type": "object", "propertyNames": inner}, f"{{{said}: 1}}"


@pytest.mark.parametrize("pattern", PATTERNS)
@given(text=_STRINGS)
def test_a_pattern_holds_for_quotes_and_backslashes(pattern, text):
    expected = _is_found(pattern, text)
    for schema, said in _places(pattern, text):
        if "\x00" in text:  # which is taken out of such sets
            assert expected or not takes(schema, said)
        else:
            assert takes(schema, said) is expected, schema


def test_a_pattern_without_such_sets_is_left_as_it_is():
    for pattern in ("^[a-z0-9_.-]+$", r"^\d{4}[A-Z]$", r'^"[\w\s]*\\$', ".*", r"^[^\n]*$", "[^a]"):
        assert make_quotable(pattern) == pattern
    assert make_quotable(make_quotable('^[^"]$')) == make_quotable('^[^"]$') != '^[^"]$'


# -- numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bounds", "inside", "outside"),
    [
        ({"exclusiveMinimum": 0, "maximum": 0.5}, ["0.25", "0.5", "0.001"], ["0", "0.0", "0.51"]),
        ({"exclusiveMinimum": 1, "maximum": 1.5}, ["1.01", "1.5"], ["1", "1.0", "1.6"]),
        ({"minimum": -1.5, "exclusiveMaximum": -1}, ["-1.5", "-1.1"], ["-1", "-1.0", "-1.51"]),
        ({"minimum": -0.5, "exclusiveMaximum": 0}, ["-0.5", "-0.1"], ["-0", "0", "-0.0"]),
        ({"exclusiveMinimum": 10, "maximum": 10.3}, ["10.2", "10.3"], ["10", "10.0", "10.31"]),
        ({"minimum": 10, "exclusiveMinimum": True, "maximum": 10.3}, ["10.2"], ["10"]),
        ({"allOf": [{"exclusiveMinimum": 0}, {"maximum": 0.5}]}, ["0.5"], ["0"]),
        ({"exclusiveMinimum": 0, "anyOf": [{"maximum": 0.5}, {"minimum": 9}]}, ["0.5"], ["0"]),
        ({"exclusiveMinimum": 0}, ["0.1", "5"], ["0", "-1"]),
        (
            {
                "exclusiveMinimum": 99, "exclusiveMaximum": 100,
                "anyOf": [{}, {"exclusiveMinimum": 100, "maximum": 100.5}],
            }, ["99.5", "99.99"], ["99", "100", "99.0"],
        ),
    ],
)  # fmt: skip
def test_an_excluded_bound_is_excluded(bounds, inside, outside):
    for kind in ("number", ["number", "null"]):
        assert all(takes({"type": kind, **bounds}, text) for text in inside)
        assert not any(takes({"type": kind, **bounds}, text) for text in outside)


_LARGE = st.sampled_from([2**53, 2**63, 2**64]).flatmap(lambda n: st.integers(n - 9, n + 9))


@given(_LARGE, st.sampled_from([1, -1]), st.booleans(), st.booleans(), st.integers(-3, 3))
def test_no_integer_beyond_a_large_bound_is_taken(bound, sign, is_low, excluded, off):
    side = "Minimum" if is_low else "Maximum"
    name = f"exclusive{side}" if excluded else side.lower()
    bound *= sign
    value = bound + off
    fits = (value > bound if is_low else value < bound) or (value == bound and not excluded)
    try:
        assert fits or not takes({"type": "integer", name: bound}, str(value))
    except InputError as error:
        assert re.search("Failed to generate regex|numbers beyond 2.63 cannot", str(error))


@pytest.mark.parametrize("large", [9007199254740993, 18446744073709551615, -9007199254740993,
                                   -(10**19)])  # fmt: skip
@pytest.mark.parametrize(
    ("around", "written"),
    [
        (lambda n: {"const": n}, "{}"),
        (lambda n: {"enum": ["a", n, 5]}, "{}"),
        (lambda n: {"type": "integer", "enum": [n]}, "{}"),
        (lambda n: {"const": {"id": [n]}}, '{{"id": [{}]}}'),
        (lambda n: {"properties": {"id": {"const": n}}}, '{{"id": {}}}'),
        (lambda n: {"type": "array", "items": {"enum": [n, 1]}}, "[1, {}]"),
    ],
)
def test_a_large_integer_is_written_as_it_is(large, around, written):
    schema = around(large)
    assert takes(schema, written.format(large))
    for other in (large - 1, large + 1, int(float(large)), large * 10):
        found = accepts(written.format(other), Grammar("json_schema", json.dumps(schema)))
        assert not found.whole or other == large
    after_a_thought = "start: answer"
    assert takes(schema, written.format(large), after_a_thought)
    for other in {large - 1, large + 1, int(float(large)), large * 10} - {large}:
        assert not takes(schema, written.format(other), after_a_thought)


def test_while_a_large_integer_is_written_only_its_digits_may_come():
    grammar = Grammar("json_schema", json.dumps({"enum": [9007199254740993, "a"]}))
    assert accepts("9007199254740993", grammar).whole
    assert accepts("9007199254740992", grammar).at == 15
    assert accepts("90071992547409930", grammar).at == 16


def test_bounds_between_which_there_is_only_what_masks_do_not_know_are_refused():
    """Bounds of integers are rules, or checked token by token."""
    bounds = {"exclusiveMinimum": 2**63 - 1, "exclusiveMaximum": 1e19}
    with pytest.raises(InputError, match=r"minimum is 9223372036854775808; numbers beyond 2\^63"):
        takes({"type": "number", **bounds}, str(2**63 - 1))
    for thought in ("", "start: answer"):
        assert takes({"type": "integer", **bounds}, str(2**63), thought)
        assert not takes({"type": "integer", **bounds}, str(2**63 - 1), thought)


def test_a_multiple_that_masks_do_not_know_is_refused_where_nothing_can_be_checked():
    """0.07 · 10 · 10 is 7.000000000000001 in float64."""
    for multiple in (9007199254740993, 0.07):
        with pytest.raises(InputError, match=f"multipleOf is {multiple}, a number that masks"):
            takes({"type": "number", "multipleOf": multiple}, "1", thought='start: "<" answer')


@pytest.mark.parametrize(
    "multiple", [0.01, 0.29, 1.1, 0.001, 3, 2.5, 0.07, 0.14, 0.53, 9007199254740993]
)
def test_a_multiple_is_that_of_its_digits(multiple):
    step = Fraction(repr(multiple))
    for n in (*range(8), 10**6 + 1):
        for moved in (n * step, n * step + Fraction(1, 10_000)):
            text = format(Decimal(moved.numerator) / moved.denominator, "f")
            assert takes({"type": "number", "multipleOf": multiple}, text) is (moved == n * step)


# -- dates and times ------------------------------------------------------------------------------

FORMATS = ("date", "time", "date-time")


@pytest.mark.parametrize("year", ["0000", "0001", "0004", "0100", "0400", "1900", "2000", "2024",
                                  "2025", "9999"])  # fmt: skip
def test_days_are_those_of_the_calendar(year):
    days, pattern = set(), re.compile(json_values.CALENDAR_PATTERNS["date"])
    if year != "0000":
        day = date(int(year), 1, 1)
        while day.isoformat()[:4] == year:
            days.add(day.isoformat())
            if day == date.max:
                break
            day += timedelta(days=1)
    for month in range(14):
        for day in range(33):
            text = f"{year}-{month:02d}-{day:02d}"
            assert (text in days) is json_values.CALENDAR_FITS["date"](text)
            assert (text in days) is (pattern.fullmatch(text) is not None)


@pytest.mark.parametrize(
    ("format", "text", "fits"),
    [
        ("date", "2025-02-29", False), ("date", "2024-02-29", True), ("date", "24-02-29", False),
        ("date-time", "2024-02-29T23:59:60z", True), ("date-time", "2023-02-29t10:00:00Z", False),
        ("time", "23:59:60Z", True), ("time", "22:59:60Z", False),
        ("time", "23:59:60.5+00:00", True),
        ("time", "12:00:60Z", False), ("time", "23:59:61Z", False), ("time", "24:00:00Z", False),
        ("time", "08:30:06-24:00", False), ("time", "08:30:06", False), ("time", "1:30:06Z", False),
    ],
)  # fmt: skip
def test_a_text_of_a_format_is_one(format, text, fits):
    assert takes({"type": "string", "format": format}, f'"{text}"') is fits
    assert takes({"format": format, "pattern": "^2"}, f'"{text}"') is (fits and text[0] == "2")
    assert json_values.CALENDAR_FITS[format](text) is fits
    assert takes({"type": "string", "not": {"format": format}}, f'"{text}"') is not fits


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("01:29:60+01:30", True), ("23:29:60+23:30", True), ("15:59:60-08:00", True),
        ("00:29:60-23:30", True), ("23:59:60+01:00", False), ("23:59:60-01:00", False),
    ],
)  # fmt: skip
def test_a_leap_second_is_at_midnight_of_utc(text, fits):
    """Of which masks allow those that are written in UTC."""
    assert json_values.CALENDAR_FITS["time"](text) is fits
    assert not takes({"type": "string", "format": "time"}, f'"{text}"')
