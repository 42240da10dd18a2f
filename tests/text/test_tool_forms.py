"""Arguments that are no JSON object: masks let through what parses and meets the schema."""

import json
import random
import re
from functools import cache
from typing import Any

import jsonschema
import pytest
from hypothesis import strategies as st

from cutaway.errors import InputError
from cutaway.text.tools import Dialect, Tool, ToolChoice, grammar
from support.chat_templates import FORMS, dialect, template
from support.examples import few_or_many
from support.tool_grammars import accepts, walk
from support.tool_texts import put_together, read, read_tokens

PLACE = {
    "type": "object",
    "properties": {
        "town": {"type": "string"},
        "country": {"type": "string", "minLength": 2, "maxLength": 9},
        "unit": {"enum": ["C", "F"]},
        "days": {"type": "integer"},
        "exact": {"type": "boolean"},
        "least": {"type": ["number", "null"], "minimum": 0},
        "near": {"type": "array", "items": {"type": "string"}},
        "at": {"type": "object", "properties": {"x": {"type": "number"}}},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}, {"type": "integer"}]},
        "day": {"type": "string", "format": "date"},
        "code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]+$"},
    },
    "required": ["town", "days"],
    "additionalProperties": False,
}
WEATHER, TIME, FREE = Tool("get_weather", "", PLACE), Tool("get_weather_time"), Tool("any", "", {})
TOOLS = (WEATHER, TIME, FREE)
AUTO, REQUIRED = ToolChoice("auto"), ToolChoice("required")
WHOLE: dict[str, Any] = {
    "town": 'Zürich "x" \\ <b>\n\n</div> {1} 2',
    "country": "Schweiz",
    "unit": "C",
    "days": 2,
    "exact": True,
    "least": None,
    "near": ["Bern", "a, b]"],
    "at": {"x": 1.5},
    "note": "3 days",
    "day": "2026-01-31",
    "code": "AB-7",
}

families = pytest.mark.parametrize("name", FORMS)
both = pytest.mark.parametrize("control", [True, False], ids=["control", "text"])


def ids(form: Dialect, text: str) -> list[int]:
    """Tokens as a model writes them: control tokens, all else as bytes."""
    names = "|".join(map(re.escape, form.control))
    pieces = re.split(f"({names})", text) if names else [text]
    return [
        one
        for piece in pieces
        for one in ([form.control[piece]] if piece in form.control else piece.encode())
    ]


def endings(form: Dialect) -> list[list[int]]:
    """What ends values and calls."""
    assert form.form
    closings = {form.form.text[1], form.form.other[1]} - {""}
    return [ids(form, one) for one in sorted(closings)]


def marks_of(name: str) -> set[str]:
    form = dialect(name).form
    return {one.strip() or one for one in (form.texts if form else ()) if one}


@both
@families
def test_a_call_is_written_read_and_comes_back(name: str, control: bool) -> None:
    form = dialect(name, control)
    text = form.write([("get_weather", json.dumps(WHOLE), ""), ("get_weather_time", "{}", "")])
    assert accepts(grammar(form, TOOLS, REQUIRED), ids(form, text))
    data = text.encode()
    whole = put_together(read(form, TOOLS, [data]))
    assert [call[3] for call in whole[1]] == [True, True]
    assert json.loads(whole[1][0][2]) == WHOLE
    assert put_together(read(form, TOOLS, (bytes([b]) for b in data))) == whole


@families
def test_the_template_writes_calls_as_the_dialect_does(name: str) -> None:
    arguments = {"town": "Rome, Italy", "days": 2}
    function = {"name": "get_weather", "arguments": arguments}
    call = {"id": "a", "type": "function", "function": function}
    asked = {"role": "assistant", "tool_calls": [call]}
    text = template(name).render([{"role": "user", "content": "Hi"}, asked], [WEATHER])
    written = dialect(name).write([("get_weather", json.dumps(arguments), "")])
    if name == "gemma-4":  # whose keys are sorted
        written = written.replace("town:", "days:2,town:").replace(",days:2}", "}")
    assert written in text


@both
@families
def test_what_a_grammar_lets_through_parses_and_meets_the_schema(name: str, control: bool) -> None:
    form, rng = dialect(name, control), random.Random(name)
    text = grammar(form, TOOLS, REQUIRED)
    seen = []
    for walks in range(30):
        if walks >= 10 and len({*seen}) == len(TOOLS):
            break
        tokens, whole = walk(text, rng, phrases=endings(form))
        content, calls = put_together(read_tokens(form, TOOLS, tokens))
        assert content == ""
        for called, _, arguments, complete in calls:
            assert complete or not whole
            if complete:
                schema = next(tool for tool in TOOLS if tool.name == called).schema()
                jsonschema.validate(json.loads(arguments), schema)
                seen.append(called)
    assert {*seen} == {"get_weather", "get_weather_time", "any"}


MARKS = sorted({mark for name in FORMS for mark in marks_of(name)})
texts = st.lists(
    st.sampled_from([*MARKS, "a", "é", "\n", " ", "'", '"', "\\", "{", "1", "null"]), max_size=6
)
SAID = {
    "text": {"type": "string"},
    "any": {},
    "some": {"type": ["string", "integer", "null"]},
    "list": {"type": "array", "items": {"type": "string"}},
}
SAY = Tool("say", "", {"properties": SAID})
arguments = st.fixed_dictionaries(
    {},
    optional={
        "text": texts.map("".join),
        "any": st.one_of(texts.map("".join), st.integers(), st.booleans(), st.none()),
        "some": st.one_of(texts.map("".join), st.integers(), st.none()),
        "list": st.lists(texts.map("".join), max_size=2),
    },
)


@families
@few_or_many(12, 40, arguments)
def test_hostile_values_come_back_or_cannot_be_written(name: str, values: dict[str, Any]) -> None:
    form = dialect(name, False)
    assert form.form
    given = {key: values[key] for key in SAID if key in values}  # in the schema's order
    told = form.form.tells_strings
    meant = given if told else {key: _read_alone(key, value) for key, value in given.items()}
    text = form.write([("say", json.dumps(given), "")])
    if accepts(_say(name), list(text.encode())):
        for pieces in ([text.encode()], (bytes([b]) for b in text.encode())):
            content, [[called, _, said, complete]] = put_together(read(form, [SAY], pieces))
            assert (content, called, complete) == ("", "say", True)
            assert json.loads(said) == meant
    else:
        end = form.form.text[1]
        strings = [one for one in given.values() if isinstance(one, str)]
        strings += given.get("list", []) if form.form.nested else []
        assert any(
            (one + end).index(end) < len(one) or (not told and one[:1] == "{") for one in strings
        )


@pytest.mark.parametrize("name", [name for name in FORMS if "\n" in dialect(name).form.text[1]])
def test_a_closing_without_its_line_breaks_is_text(name: str) -> None:
    """As in a file that speaks of tools."""
    form = dialect(name, False)
    assert form.form
    tag = form.form.text[1].strip()
    said = {"text": f"The tag {tag} ends,\n{tag}{tag} too. {tag}"}
    text = form.write([("say", json.dumps(said), "")])
    assert accepts(_say(name), list(text.encode()))
    [[_, _, arguments, whole]] = put_together(read(form, [SAY], [text.encode()]))[1]
    assert whole
    assert json.loads(arguments) == said


def _read_alone(key: str, value: Any) -> Any:
    """What a text without quotes says where it may be another value's."""
    is_other = value == "null" or (isinstance(value, str) and value.isdecimal() and value.isascii())
    return json.loads(value) if key != "text" and is_other else value


@cache
def _say(name: str) -> str:
    return grammar(dialect(name, False), [SAY], REQUIRED)


CODE = Tool("code", format="text")
DIGITS = Tool("digits", format="regex", definition=r'[0-9]{2,4}"?')
SUM = Tool("sum", format="lark", definition='start: N ("+" N)*\nN: /[0-9]{1,3}/')


@both
@families
def test_custom_tools_are_forced_and_read(name: str, control: bool) -> None:
    form, rng = dialect(name, control), random.Random(name)
    patterns = {"code": r"(?s:.*)", "digits": DIGITS.definition, "sum": r"\d{1,3}(\+\d{1,3})*"}
    tools = (CODE, DIGITS, SUM)
    text = grammar(form, tools, REQUIRED)
    seen = set()
    for walks in range(40):
        if walks >= 10 and len(seen) == len(tools):
            break
        tokens, whole = walk(text, rng, phrases=endings(form))
        content, calls = put_together(read_tokens(form, tools, tokens))
        assert content == ""
        if whole:
            for called, _, said, complete in calls:
                assert complete
                assert re.fullmatch(patterns[called], said)
                seen.add(called)
    assert seen == {"code", "digits", "sum"}


@families
def test_pieces_are_the_beginning_of_the_whole(name: str) -> None:
    form = dialect(name)
    data = form.write([("get_weather", json.dumps(WHOLE), "")]).encode()
    [[_, _, whole, _]] = put_together(read(form, TOOLS, [data]))[1]
    seen = set()
    for at in range(len(data)):
        for call in put_together(read(form, TOOLS, [data[:at]]))[1]:
            assert whole.startswith(call[2])
            seen.add(call[2])
    assert len(seen) > len(whole) / 3  # strings come as they are written


def test_gemma_writes_what_is_within_in_its_own_quotes() -> None:
    tree: dict[str, Any] = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "of": {"$ref": "#/$defs/trees"}},
        "required": ["name"],
        "additionalProperties": False,
    }
    trees = {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2}
    defs = {"tree": tree, "trees": trees}
    tool = Tool("plant", "", {"properties": {"tree": {"$ref": "#/$defs/tree"}}, "$defs": defs})
    form = dialect("gemma-4")
    values = {"tree": {"name": "a, {b}", "of": [{"name": "c"}, {"name": "", "of": []}]}}
    text = form.write([("plant", json.dumps(values), "")])
    assert text == (
        '<|tool_call>call:plant{tree:{name:<|"|>a, {b}<|"|>,of:[{name:<|"|>c<|"|>},'
        '{name:<|"|><|"|>,of:[]}]}}<tool_call|>'
    )
    lark = grammar(form, [tool], REQUIRED)
    assert accepts(lark, ids(form, text))
    assert not accepts(lark, ids(form, text.replace("of:[]", "of:[1]")))
    for pieces in ([text.encode()], (bytes([b]) for b in text.encode())):
        [[_, _, said, complete]] = put_together(read(form, [tool], pieces))[1]
        assert complete
        assert json.loads(said) == values


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": ["string", "integer"], "minimum": 3}, '"minimum" beside a string'),
        ({"type": "string", "format": "iri"}, 'the format "iri" is none of date, time'),
        ({"$ref": "#/$defs/x"}, 'the reference "#/\\$defs/x" names nothing'),
    ],
)
def test_what_a_form_cannot_hold_to_is_refused_by_name(schema: Any, said: str) -> None:
    tool = Tool("f", "", {"properties": {"x": schema}})
    with pytest.raises(InputError, match=f"tools: parameters of f: x: {said}"):
        grammar(dialect("qwen3.5"), [tool], AUTO)
