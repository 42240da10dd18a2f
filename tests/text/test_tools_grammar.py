"""What a grammar of tools lets through: the model's own calls, and no broken ones."""

import json
import random
import re
from collections import Counter
from pathlib import Path

import jsonschema
import pytest

from cutaway.errors import InputError
from cutaway.text import ChatTemplate
from cutaway.text.tools import Dialect, Tool, ToolChoice, grammar
from support.chat_templates import FOLDER, NAMES, byte_tokenizer, dialect
from support.schema_pairs import arguments, is_valid
from support.tool_grammars import accepts, ids, matcher, walk
from support.tool_texts import put_together, read_tokens

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CLOSED = CITY | {"additionalProperties": False}
WEATHER, TIME = Tool("get_weather", "", CLOSED), Tool("get_weather_time")
FREE = Tool("anything", "", {})
TOOLS = (WEATHER, TIME, FREE)
AUTO, REQUIRED = ToolChoice("auto"), ToolChoice("required")
TIME_ONLY = ToolChoice("required", frozenset(["get_weather_time"]), is_named=True)

ROME = ("get_weather", '{"city": "Rom\\n<tool_call> [TOOL_CALLS]"}', "abcdefgh1")
NOW = ("get_weather_time", "{}", "abcdefgh2")

both = pytest.mark.parametrize("control", [True, False], ids=["control", "text"])
families = pytest.mark.parametrize("name", NAMES)


def can_write(form: Dialect, text: str, choice: ToolChoice = AUTO, parallel: bool = True) -> bool:
    return accepts(grammar(form, TOOLS, choice, parallel), ids(text, form))


@families
def test_a_key_of_the_arguments_cannot_be_written_with_an_escape(name: str) -> None:
    form = dialect(name, False)
    for key, may in (("other", True), (r"\u0063ity", False)):
        text = form.write([("open", f'{{"city": "Rome", "{key}": 1}}', "abcdefgh1")])
        lark = grammar(form, [Tool("open", "", CITY)], REQUIRED)
        assert accepts(lark, ids(text, form)) is may


@both
@families
def test_the_templates_own_calls_pass(name: str, control: bool) -> None:
    form = dialect(name, control)
    text = form.write([ROME])
    assert can_write(form, text)
    assert can_write(form, text, REQUIRED)
    assert can_write(form, text, REQUIRED, parallel=False)
    assert can_write(form, form.write([NOW]), TIME_ONLY)
    assert can_write(form, "Just words, {curly} and <angled>.")


@both
@families
def test_two_calls_pass_where_the_dialect_and_the_client_want_them(
    name: str, control: bool
) -> None:
    form = dialect(name, control)
    text = form.write([ROME, NOW])
    assert can_write(form, text) is form.allows_several
    assert can_write(form, text, REQUIRED) is form.allows_several
    assert not can_write(form, text, AUTO, parallel=False)
    assert not can_write(form, text, REQUIRED, parallel=False)


@both
@families
def test_what_is_no_call_does_not_pass(name: str, control: bool) -> None:
    form = dialect(name, control)
    assert not can_write(form, "Just words", REQUIRED)
    assert not can_write(form, form.write([ROME]), TIME_ONLY)
    for wrong in ('{"town": "Rom"}', '{"city": 1}', "{}", '{"city": "Rom", "x": 1}', "[]"):
        assert not can_write(form, form.write([("get_weather", wrong, "abcdefgh1")])), wrong
    assert not can_write(form, form.write([("nobody", "{}", "abcdefgh1")]))
    assert not can_write(form, form.write([ROME])[:-1])


@both
@families
def test_content_may_precede_calls_where_they_begin_with_a_tag(name: str, control: bool) -> None:
    form = dialect(name, control)
    text = "Let me see.\n" + form.write([ROME])
    assert can_write(form, text)  # without a tag, as content
    assert not can_write(form, text, REQUIRED)
    if form.trigger:
        assert not can_write(form, f"A broken one: {form.trigger}x")
        assert not can_write(form, form.write([ROME]) + " and so on")


def test_a_tool_of_an_empty_schema_takes_any_object() -> None:
    form = dialect("qwen2.5")
    for given in ("{}", '{"a": [1, {"b": null}]}'):
        assert can_write(form, form.write([("anything", given, "")]))
    assert not can_write(form, form.write([("anything", "[]", "")]))


@pytest.mark.parametrize("name", ["qwen2.5", "qwen3-coder"])
def test_a_grammar_of_tools_is_of_limited_length(name: str) -> None:
    """Each list without repetitions is written out: 326 of five values."""
    lists = {"type": "array", "items": {"enum": [*"abcde"]}, "uniqueItems": True}
    properties = {f"p{i}": lists for i in range(4)}
    tools = [Tool(f"f{i}", "", {"properties": properties}) for i in range(500)]
    assert grammar(dialect(name), tools[:10], AUTO)
    with pytest.raises(InputError, match=r"^the grammar of the calls takes more than 8,000,000"):
        grammar(dialect(name), tools, AUTO)


def test_no_tool_is_an_error() -> None:
    with pytest.raises(InputError, match="allows no tool"):
        grammar(dialect("qwen2.5"), TOOLS, ToolChoice("none"))


@pytest.mark.parametrize("name", ["qwen3-coder", "qwen3.5", "nemotron-3-nano", "step-3.5"])
def test_a_value_may_have_the_closing_mark_within_a_line(name: str) -> None:
    """Only the mark with its line breaks ends a value."""
    form = dialect(name, False)
    for city in ("a</parameter>b", "<parameter=x>1</parameter>", "</function></tool_call>"):
        text = form.write([("get_weather", json.dumps({"city": city}), "")])
        assert can_write(form, text, REQUIRED)
        _, [call] = put_together(read_tokens(form, TOOLS, ids(text, form)))
        assert json.loads(call[2]) == {"city": city}


# -- the parser reads whatever a grammar lets through ---------------------------------------------

CODE = Tool("code", format="text")
DIGITS = Tool("digits", format="regex", definition=r'[0-9]{2,4}"?')
SUM = Tool("sum", format="lark", definition='start: N ("+" N)*\nN: /[0-9]{1,3}/')


@both
@families
@pytest.mark.parametrize("choice", [AUTO, REQUIRED, TIME_ONLY], ids=["auto", "required", "named"])
def test_what_a_grammar_lets_through_is_read(name: str, control: bool, choice: ToolChoice) -> None:
    form, rng = dialect(name, control), random.Random(f"{name} {control} {choice}")
    schemas = {tool.name: tool.schema() for tool in TOOLS}
    text = grammar(form, TOOLS, choice)
    ended = 0
    for _ in range(12):
        tokens, whole = walk(text, rng)
        content, calls = put_together(read_tokens(form, TOOLS, tokens))
        if choice != AUTO:
            assert content == ""
        if not whole:
            continue
        ended += 1
        assert choice == AUTO or calls
        written = bytes(token for token in tokens if token < 256).decode()
        assert written.startswith(content)
        assert calls or content == written
        for called, _, said, complete in calls:
            assert complete
            jsonschema.validate(json.loads(said), schemas[called])
    assert ended


@both
@families
def test_custom_tools_are_forced_and_read(name: str, control: bool) -> None:
    form, rng = dialect(name, control), random.Random(name)
    patterns = {"code": r"(?s:.*)", "digits": DIGITS.definition, "sum": r"\d{1,3}(\+\d{1,3})*"}
    tools = (CODE, DIGITS, SUM)
    text = grammar(form, tools, REQUIRED)
    seen = set()
    for _ in range(40):
        tokens, whole = walk(text, rng)
        content, calls = put_together(read_tokens(form, tools, tokens))
        assert content == ""
        if whole:
            for called, _, said, complete in calls:
                assert complete
                assert re.fullmatch(patterns[called], said)
                seen.add(called)
    assert seen == {"code", "digits", "sum"}


# -- strict tools under every template ---------------------------------------------------------
# The arguments are written as the template writes them, and read as the call parser reads them.

TEMPLATES = sorted([*FOLDER.glob("*.jinja"), *(FOLDER / "families").glob("*.jinja")])
FEW, MANY = 4, 200  # schemas of each template, with eight texts each


@pytest.mark.parametrize("count", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
@pytest.mark.parametrize("path", TEMPLATES, ids=[f"{p.parent.name}/{p.stem}" for p in TEMPLATES])
def test_arguments_that_can_be_written_are_valid(path: Path, count: int) -> None:
    form = ChatTemplate(path.read_text(), "<s>", "</s>")
    try:
        dialect = form.dialect(byte_tokenizer(False))
    except InputError:
        assert path.stem == "functiongemma"  # which has a form that is not supported
        return
    call_id = "0" if path.stem.startswith("kimi-k2") else "abcdefgh1"  # Kimi's are numbers
    rng, counts = random.Random(f"{path.stem} {count}"), Counter[str]()
    for _ in range(count):
        schema, some = arguments(rng)
        try:
            text = grammar(dialect, [Tool("f", "", schema)], ToolChoice("required"))
            begun = matcher(text)
        except (InputError, AssertionError):  # one that allows nothing, or is not supported
            counts["refused"] += 1
            continue
        for written in (some() for _ in range(8)):
            tokens, running = ids(dialect.write([("f", written, call_id)]), dialect), begun
            running = running.deep_copy()
            if running.try_consume_tokens(tokens) == len(tokens) and running.is_accepting():
                _, [call] = put_together(read_tokens(dialect, [Tool("f", "", schema)], tokens))
                assert is_valid(schema, call[2]), (schema, call[2])
                counts["taken"] += 1
            counts.update(pairs=1, valid=is_valid(schema, written))
    print(f"{path.stem}: {dict(counts)}")
    assert counts["taken"] or count == FEW


@pytest.mark.parametrize("stem", ["step-3.5", "hunyuan-3", "kimi-k2"])
@pytest.mark.parametrize(("pattern", "text", "fits"), [
    (r"^\w\d$", "a1", True), (r"^\w\d$", "é1", False), (r"^\w\d$", "a١", False),
    (r"^[\w-]/\W$", "-/é", True), (r"^[^\d]$", "١", True), (r"^\D$", "1", False),
])  # fmt: skip
def test_classes_of_characters_are_ascii_with_and_without_quotes(
    stem: str, pattern: str, text: str, fits: bool
) -> None:
    path = FOLDER / "families" / f"{stem}.jinja"
    dialect = ChatTemplate(path.read_text(), "<s>", "</s>").dialect(byte_tokenizer(False))
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}}
    schema |= {"required": ["a"], "additionalProperties": False}
    running = matcher(grammar(dialect, [Tool("f", "", schema)], ToolChoice("required")))
    tokens = ids(dialect.write([("f", json.dumps({"a": text}, ensure_ascii=False), "0")]), dialect)
    taken = running.try_consume_tokens(tokens) == len(tokens) and running.is_accepting()
    assert taken == fits == is_valid(schema, json.dumps({"a": text}))
