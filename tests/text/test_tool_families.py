"""Each published family: a call is written, read again, and its result is in the prompt."""

import json
import random
from functools import cache

import jsonschema
import pytest

from cutaway.text import ChatTemplate
from cutaway.text.tools import Dialect, Tool, ToolChoice, grammar
from support.chat_templates import FOLDER
from support.tool_grammars import accepts, walk
from support.tool_texts import put_together, read

FAMILIES = sorted(path.stem for path in (FOLDER / "families").glob("*.jinja"))
OTHERWISE = {
    "firefunction-v2": "the template fails without a variable of its own",
    "gpt-oss": "harmony, which has its own tests",
}
CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "its name"},
        "days": {"type": "integer", "description": "how many"},
    },
}
WEATHER = Tool("get_weather", "Says how warm it is", CITY)
USER = {"role": "user", "content": "How warm is it in Rome?"}
ARGUMENTS = {"city": "Rome, Italy", "days": 2}

families = pytest.mark.parametrize("name", [name for name in FAMILIES if name not in OTHERWISE])


@cache
def family(name: str) -> tuple[ChatTemplate, Dialect]:
    made = ChatTemplate((FOLDER / "families" / f"{name}.jinja").read_text(), "<s>", "</s>")
    found = made._tool_support.dialect
    assert found is not None
    return made, found


def asked(identity: str = "abcdefgh1") -> dict:
    function = {"name": "get_weather", "arguments": ARGUMENTS}
    call = {"id": identity, "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def turn(name: str, identity: str = "abcdefgh1") -> str:
    """What the template writes of a call, with what is around it."""
    text = family(name)[0].render([USER, asked(identity)], [WEATHER], add_generation_prompt=False)
    return text[text.rindex("Rome?") :]


@families
def test_a_call_is_written_and_read(name: str) -> None:
    _, form = family(name)
    text = turn(name)
    first = form.opening[0]
    start = text.index(first) if isinstance(first, str) else text.index(WEATHER.name)
    _, calls = put_together(read(form, [WEATHER], [text[start:].encode()]))
    assert [call[0] for call in calls] == ["get_weather"]
    assert json.loads(calls[0][2]) == ARGUMENTS
    assert calls[0][3]


@families
def test_the_grammar_lets_the_call_through(name: str) -> None:
    _, form = family(name)
    text = form.write([("get_weather", json.dumps(ARGUMENTS), "functions.get_weather:0")])
    if "functions.get_weather:0" in text and not form.numbers:
        text = text.replace("functions.get_weather:0", "abcdefgh1")
    lark = grammar(form, [WEATHER], ToolChoice("required"))
    assert accepts(lark, list(text.encode()))
    assert put_together(read(form, [WEATHER], [text.encode()]))[0] == ""


@families
def test_walks_of_the_grammar_are_read_and_meet_the_schema(name: str) -> None:
    _, form = family(name)
    rng, ended = random.Random(name), 0
    text = grammar(form, [WEATHER], ToolChoice("required"))
    for walks in range(20):
        if walks >= 8 and ended:
            break
        tokens, whole = walk(text, rng)
        content, calls = put_together(read(form, [WEATHER], [bytes(tokens)]))
        assert content == ""
        for called, _, said, complete in calls if whole else ():
            ended += 1
            assert called == WEATHER.name
            assert complete
            jsonschema.validate(json.loads(said), CITY)
    assert ended


@families
def test_a_result_is_in_the_prompt(name: str) -> None:
    result = {"role": "tool", "tool_call_id": "abcdefgh1", "content": "31 degrees"}
    text = family(name)[0].render([USER, asked(), result], [WEATHER])
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
    text = made.render([USER, asked("a"), result, asked("b"), again], [WEATHER])
    places = [text.index(f"begin|>functions.get_weather:{number}<") for number in (0, 1)]
    assert places == sorted(places)
    form = made._tool_support.dialect
    assert form
    assert form.numbers
    if source:
        assert "Return of functions.get_weather:0\n31" in text
        assert "Return of functions.get_weather:1\n31" in text
