"""Tools, calls and results in the prompt, whether the template knows them or not."""

import json
import random
import re
from functools import cache
from typing import Any

import jsonschema
import pytest

from cutaway.errors import InputError
from cutaway.text import ChatTemplate
from cutaway.text.tools import Dialect, Tool, ToolChoice, grammar, parse_tools
from support.chat_templates import CONTROLS, FOLDER, NAMES, byte_tokenizer, dialect, template
from support.tool_grammars import accepts, walk
from support.tool_texts import put_together, read

CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = Tool("get_weather", "Says how warm it is", CITY)
EVIL = "".join(name for name in CONTROLS if '"' not in name)  # which JSON escapes
USER = {"role": "user", "content": "How warm is it in Rome?"}


def call(arguments: Any = '{"city": "Rome"}', identity: str = "call_1") -> dict[str, Any]:
    function = {"name": "get_weather", "arguments": arguments}
    return {"id": identity, "type": "function", "function": function}


def asked(*calls: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [*calls], **fields}


def result(content: str = "31 degrees", identity: str = "call_1") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": identity, "content": content}


families = pytest.mark.parametrize("name", NAMES)


@families
def test_a_conversation_with_a_call_is_written(name: str) -> None:
    text = template(name).render([USER, asked(call()), result()], [WEATHER])
    assert "Says how warm it is" in text or name == "mistral-args"
    at = text.index("Rome?")
    assert at < text.index('"city": "Rome"', at) < text.index("31 degrees")
    assert text.count("get_weather") >= 1


@families
def test_the_call_is_written_as_the_dialect_writes_it(name: str) -> None:
    text = template(name).render([USER, asked(call(identity="abcdefgh1"))], [WEATHER])
    assert dialect(name).write([("get_weather", '{"city": "Rome"}', "abcdefgh1")]) in text


@families
def test_what_comes_before_a_call_decides_nothing(name: str) -> None:
    """A message without calls reads the same whether the history's calls are null or absent."""
    said = {"role": "assistant", "content": "Warm."}
    plain = template(name).render([USER, said, USER])
    assert template(name).render([USER, said | {"tool_calls": None}, USER]) == plain
    assert template(name).render([USER, said | {"tool_calls": []}, USER]) == plain


@pytest.mark.parametrize("name", ["functiongemma"])
def test_calls_of_an_unknown_form_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"writes calls as <.*NAME.*a form that is not known"):
        template(name).render([USER], [WEATHER])
    with pytest.raises(InputError, match="not known"):
        template(name).dialect(byte_tokenizer())
    assert "Rome" in template(name).render([USER, asked(call("{}")), result()])


def test_a_name_behind_the_arguments_is_refused() -> None:
    source = (
        "{% for m in messages %}<{{ m.content }}>{% for c in m.tool_calls %}"
        '{"a": {{ c.function.arguments | tojson }}, "n": "{{ c.function.name }}"}'
        "{% endfor %}{% endfor %}"
    )
    with pytest.raises(InputError, match="arguments before its name"):
        ChatTemplate(source, "", "").render([USER], [WEATHER])


def test_a_template_without_tools_gets_a_system_message() -> None:
    text = template("smollm2").render([{"role": "system", "content": "Be brief."}, USER], [WEATHER])
    system, rest = text.split("<|im_end|>", 1)
    assert system.startswith("<|im_start|>system\nBe brief.\n\n")
    assert json.dumps(WEATHER.describe()["function"]) in system
    assert '<tool_call>\n{"name": "NAME", "arguments": {' in system
    assert "get_weather" not in rest


def test_a_template_without_system_messages_gets_it_in_the_first_turn() -> None:
    text = template("gemma2").render([USER], [WEATHER])
    assert text.startswith("<s><start_of_turn>user\nYou can call")
    assert "\n\nHow warm is it in Rome?<end_of_turn>" in text


def test_results_of_two_calls_are_one_turn_where_turns_alternate() -> None:
    calls = asked(call(), call(identity="call_2"), content="Let me see.")
    text = template("gemma2").render(
        [USER, calls, result(), result("20", "call_2"), {"role": "assistant", "content": "Warm."}],
        [WEATHER],
    )
    assert text.count("<start_of_turn>user") == 2
    assert "31 degrees\n</tool_response>\n<tool_response>\n20\n" in text
    assert "model\nLet me see.\n<tool_call>" in text


def test_ids_are_made_to_fit_where_the_template_insists() -> None:
    messages = [USER, asked(call(identity="call_longer")), result(identity="call_longer")]
    text = template("mistral-array").render(messages, [WEATHER])
    ids = re.findall(r'"(?:call_)?id": "(.*?)"', text)
    assert len(ids) == 2
    assert ids[0] == ids[1]
    assert re.fullmatch("[A-Za-z0-9]{9}", ids[0])
    kept = [USER, asked(call(identity="abcdefgh1")), result(identity="abcdefgh1")]
    assert template("mistral-array").render(kept, [WEATHER]).count("abcdefgh1") == 2


def test_a_result_is_given_the_name_of_its_tool() -> None:
    source = (
        "{% for t in tools %}{{ t.function.name }}{% endfor %}{% for m in messages %}[{{ m.name }}]"
        '<{{ m.content }}>{% for c in m.tool_calls %}{"name": "{{ c.function.name }}", '
        '"arguments": {{ c.function.arguments | tojson }}}{% endfor %}{% endfor %}'
    )
    text = ChatTemplate(source, "", "").render([USER, asked(call()), result()], [WEATHER])
    assert text.endswith("[get_weather]<31 degrees>")


def test_custom_calls_come_back_as_their_input() -> None:
    custom = {"id": "c", "type": "custom", "custom": {"name": "code", "input": "print(1)"}}
    text = template("qwen3").render([USER, asked(custom)], [Tool("code", format="text")])
    assert '{"name": "code", "arguments": {"input": "print(1)"}}' in text


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([asked(call("{"))], r"messages\[0\]\.tool_calls\[0\]\.function\.arguments is not JSON"),
        ([asked(call('{"a": ' + "[" * 64 + "]" * 64 + "}"))], "arguments is nested deeper than 64"),
        ([asked(call('{"a": 1, "a": 2}'))], "'a' is given twice"),
        ([asked(call({"a": float("nan")}))], "NaN is not JSON"),
        ([asked(call({"a": EVIL.encode()}))], "arguments must be a JSON object"),
        ([asked(call("[]"))], "arguments must be a JSON object"),
        ([asked(call(None))], "arguments must be a JSON object"),
        ([asked(call("[" * 100_000))], "arguments holds more than 32768 lists"),
        ([asked({"id": "x", "type": "custom", "custom": {"name": "c"}})], "input must be a string"),
        ([asked("f")], r"tool_calls\[0\] must be an object"),
        ([asked({"id": "x", "type": "function"})], r"tool_calls\[0\] must be an object"),
        ([asked(call(identity=""))], r"tool_calls\[0\]\.id must be a string that is not empty"),
        ([asked({"id": "x", "function": {"arguments": "{}"}})], "function.name must be a string"),
        ([{**asked(), "tool_calls": "f"}], r"messages\[0\]\.tool_calls must be a list"),
        ([{"role": "assistant"}], r'messages\[0\] needs a "content"'),
        ([asked(), USER], r'messages\[0\] needs a "content"'),
        ([USER, result()], r"messages\[1\]\.tool_call_id must be the id of a call"),
        ([asked(call()), result(identity="call_2")], "not 'call_2'"),
        ([{"role": "tool", "tool_call_id": "x"}], r'messages\[0\] needs a "content"'),
    ],
)
def test_malformed_calls_and_results_are_named(messages: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        template("qwen3").render(messages, [WEATHER])


# -- nothing in a tool, a call or a result opens a turn -------------------------------------------


@families
def test_no_control_token_comes_from_a_tool_a_call_or_a_result(name: str) -> None:
    def ids(text: str) -> list[int]:
        schema = {"type": "object", "properties": {f"k{text}": {"enum": [text], "title": text}}}
        described = {"name": "get_weather", "description": text, "parameters": schema}
        tools = parse_tools([{"type": "function", "function": described}])
        arguments = json.dumps({f"k{text}": [{"a": text}]})
        calls = {"id": "abcdefgh1", "function": {"name": f"f{text}", "arguments": arguments}}
        messages = [USER, asked(calls, content=None), result(text, "abcdefgh1")]
        return template(name).encode(messages, byte_tokenizer(), tools=tools)

    control = [token for token in ids(EVIL) if token > 255]
    assert control == [token for token in ids("harmless") if token > 255]
    assert EVIL in bytes(token for token in ids(EVIL) if token < 256).decode()


def test_the_check_reads_the_tools_too() -> None:
    seen: list[str] = []
    template("qwen3").encode([USER], byte_tokenizer(), seen.append, [WEATHER])
    assert "Says how warm it is" in seen[0]


def test_a_tools_schema_may_nest_as_deep_as_tools_may() -> None:
    schema: Any = {}
    for _ in range(61):
        schema = {"a": schema}
    tools = parse_tools([{"type": "function", "name": "f", "parameters": {"x": schema}}])
    assert template("qwen3").encode([USER], byte_tokenizer(), tools=tools)


# -- each published family: a call is written, read again, and its result is in the prompt -----

FAMILIES = sorted(path.stem for path in (FOLDER / "families").glob("*.jinja"))
OTHERWISE = {
    "firefunction-v2": "the template fails without a variable of its own",
    "gpt-oss": "harmony, which has its own tests",
    "muse-glimmer": "a format of messages, which has its own tests",
}
CITY_AND_DAYS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "its name"},
        "days": {"type": "integer", "description": "how many"},
    },
}
WEATHER_OF_DAYS = Tool("get_weather", "Says how warm it is", CITY_AND_DAYS)
ARGUMENTS = {"city": "Rome, Italy", "days": 2}

published = pytest.mark.parametrize("name", [name for name in FAMILIES if name not in OTHERWISE])


@cache
def family(name: str) -> tuple[ChatTemplate, Dialect]:
    made = ChatTemplate((FOLDER / "families" / f"{name}.jinja").read_text(), "<s>", "</s>")
    found = made._tool_support.dialect
    assert found is not None
    return made, found


def weather_asked(identity: str = "abcdefgh1") -> dict:
    function = {"name": "get_weather", "arguments": ARGUMENTS}
    call = {"id": identity, "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def turn(name: str, identity: str = "abcdefgh1") -> str:
    """What the template writes of a call, with what is around it."""
    text = family(name)[0].render(
        [USER, weather_asked(identity)],
        [WEATHER_OF_DAYS],
        add_generation_prompt=False,
    )
    return text[text.rindex("Rome?") :]


@published
def test_a_call_is_written_and_read(name: str) -> None:
    _, form = family(name)
    text = turn(name)
    first = form.opening[0]
    start = text.index(first) if isinstance(first, str) else text.index(WEATHER_OF_DAYS.name)
    _, calls = put_together(read(form, [WEATHER_OF_DAYS], [text[start:].encode()]))
    assert [call[0] for call in calls] == ["get_weather"]
    assert json.loads(calls[0][2]) == ARGUMENTS
    assert calls[0][3]


@published
def test_the_grammar_lets_the_call_through(name: str) -> None:
    _, form = family(name)
    text = form.write([("get_weather", json.dumps(ARGUMENTS), "functions.get_weather:0")])
    if "functions.get_weather:0" in text and not form.numbers:
        text = text.replace("functions.get_weather:0", "abcdefgh1")
    lark = grammar(form, [WEATHER_OF_DAYS], ToolChoice("required"))
    assert accepts(lark, list(text.encode()))
    assert put_together(read(form, [WEATHER_OF_DAYS], [text.encode()]))[0] == ""


@published
def test_walks_of_the_grammar_are_read_and_meet_the_schema(name: str) -> None:
    _, form = family(name)
    rng, ended = random.Random(name), 0
    text = grammar(form, [WEATHER_OF_DAYS], ToolChoice("required"))
    for walks in range(20):
        if walks >= 8 and ended:
            break
        tokens, whole = walk(text, rng)
        content, calls = put_together(read(form, [WEATHER_OF_DAYS], [bytes(tokens)]))
        assert content == ""
        for called, _, said, complete in calls if whole else ():
            ended += 1
            assert called == WEATHER_OF_DAYS.name
            assert complete
            jsonschema.validate(json.loads(said), CITY_AND_DAYS)
    assert ended


@published
def test_a_result_is_in_the_prompt(name: str) -> None:
    result = {"role": "tool", "tool_call_id": "abcdefgh1", "content": "31 degrees"}
    text = family(name)[0].render([USER, weather_asked(), result], [WEATHER_OF_DAYS])
    assert text.index("Rome?") < text.rindex("Rome, Italy") < text.rindex("31 degrees")


KIMI = (
    "{% for t in tools %}{{ t.function.name }}{% endfor %}"
    "{% for m in messages %}<|im_{{ m.role }}|>{% if m.role == 'tool' %}"
    "## Return of {{ m.tool_call_id }}\n{% endif %}{{ m.content }}"
    "{% if m.tool_calls %}<|tool_calls_section_begin|>{% for c in m.tool_calls %}"
    "<|tool_call_begin|>{{ c['id'] }}<|tool_call_argument_begin|>"
    "{{ c.function.arguments | tojson }}"
    "<|tool_call_end|>{% endfor %}<|tool_calls_section_end|>{% endif %}<|im_end|>{% endfor %}"
)  # Moonshot's form, which writes the id that a message has


@pytest.mark.parametrize("source", [KIMI, None], ids=["ids", "llama.cpp"])
def test_kimi_counts_the_calls_of_a_conversation(source: str | None) -> None:
    made = ChatTemplate(source, "", "") if source else family("kimi-k2")[0]
    result = {"role": "tool", "tool_call_id": "a", "content": "31"}
    again = result | {"tool_call_id": "b"}
    text = made.render(
        [USER, weather_asked("a"), result, weather_asked("b"), again],
        [WEATHER_OF_DAYS],
    )
    places = [text.index(f"begin|>functions.get_weather:{number}<") for number in (0, 1)]
    assert places == sorted(places)
    form = made._tool_support.dialect
    assert form
    assert form.numbers
    if source:
        assert "Return of functions.get_weather:0\n31" in text
        assert "Return of functions.get_weather:1\n31" in text
