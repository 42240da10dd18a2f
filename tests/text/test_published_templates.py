"""The families' published templates write what ``apply_chat_template`` of transformers writes.

What is not the same, and why:

- Tools, where the template has no place for them: the description of the tools, the calls and the
  results are texts of ours; transformers leaves them out or fails.
- Calls whose arguments the template wants as text: transformers is given them as text, too.
- Tools whose calls we do not read: we refuse them in a sentence; here the template is asked alone.
- A template made for tools only, without any: transformers fails as its ``tools`` is None.
"""

import copy
import json
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from cutaway.errors import FormatError, InputError
from cutaway.text import ChatTemplate, sandbox
from cutaway.text.messages import split_messages, to_template_messages
from cutaway.text.tools import parse_tools

pytest.importorskip("transformers", reason="needs transformers: pip install '.[test-transformers]'")
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

FOLDER = Path(__file__).parent.parent / "data" / "chat_templates" / "families"
NAMES = sorted(path.stem for path in FOLDER.glob("*.jinja"))
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}

TOWN = {"type": "string", "description": "where & when"}
UNIT = {"type": "string", "enum": ["C", "F"]}
WEATHER = {"type": "object", "properties": {"town": TOWN, "unit": UNIT}, "required": ["town"]}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": about, "parameters": schema}}
    for name, about, schema in [
        ("get_weather", 'The weather <of> a town\'s "day"', WEATHER),
        ("get_time", "The time", {"type": "object", "properties": {}}),
    ]
]


def said(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def call(identity: str, name: str, arguments: Any) -> dict[str, Any]:
    return {
        "id": identity,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def result(identity: str, name: str, content: str) -> dict[str, Any]:
    return said("tool", content, tool_call_id=identity, name=name)


HI, SYSTEM = said("user", "Hi "), said("system", "Be brief.")
ONE = [call("abcdefgh1", "get_weather", {"town": "Zürich <x>", "days": 2})]
TWO = [*ONE, call("abcdefgh2", "get_time", {})]
RESULTS = [result("abcdefgh1", "get_weather", '{"t": 3}'), result("abcdefgh2", "get_time", "noon")]
TEXTS: dict[str, list[dict[str, Any]]] = {
    "a question": [HI],
    "turns": [HI, said("assistant", " Hello"), said("user", "é 漢\n\n<b>'q'")],
    "system": [SYSTEM, HI, said("assistant", "Hello"), said("user", "Why?")],
    "answer": [HI, said("assistant", "Hello")],
    "thought": [HI, said("assistant", "Hello", reasoning_content="I greet."), said("user", "So?")],
    "thought in the text": [
        HI,
        said("assistant", "<think>\nI.\n</think>\n\nOh"),
        said("user", "?"),
    ],
}
WITH_TOOLS: dict[str, list[dict[str, Any]]] = {
    "tools": [HI],
    "tools and system": [SYSTEM, HI],
    "call": [HI, said("assistant", "", tool_calls=ONE)],
    "result": [HI, said("assistant", "", tool_calls=ONE), RESULTS[0]],
    "results": [SYSTEM, HI, said("assistant", "", tool_calls=TWO), *RESULTS],
    "after": [HI, said("assistant", "Look:", tool_calls=ONE), RESULTS[0], said("assistant", "3 C")],
    "thought": [HI, said("assistant", "", reasoning_content="I.", tool_calls=ONE), RESULTS[0]],
}
BEGINNINGS: dict[str, list[dict[str, Any]]] = {
    about: [*before, said("assistant", content, **more)]
    for about, before, content, more in [
        ("a word", [HI], "Hello", {}),
        ("space", [SYSTEM, HI], " It is: ", {}),
        ("lines", [HI, said("assistant", "Oh"), said("user", "What?")], "\n1. é 漢\n\n2. ", {}),
        ("a mark", [HI], '{"a": <b>\'</s>', {}),
        ("said before", [HI, said("assistant", "Hi"), HI], "Hi", {}),
        ("behind a thought", [HI], "Oh", {"reasoning_content": "I greet."}),
        ("a whole thought", [HI], "<think>\nI.\n</think>\n\nOh", {}),
        ("half a thought", [HI], "<think>\nI", {}),
    ]
}
SWITCHES: list[dict[str, Any]] = [
    {},
    {"enable_thinking": True},
    {"enable_thinking": False},
    {"thinking": True},
    {"thinking": False},
    {"reasoning_effort": "high"},
]


class Day(datetime):
    @classmethod
    def now(cls, tz: Any = None) -> "Day":
        return cls(2026, 3, 4, 5, 6, 7)


@pytest.fixture(autouse=True)
def a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "datetime", Day)
    monkeypatch.setattr(chat_template_utils, "datetime", Day)


@pytest.fixture(scope="module")
def reference() -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, models

    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({})), **TOKENS)


def source(name: str) -> str:
    return (FOLDER / f"{name}.jinja").read_text()


@cache
def template(name: str) -> ChatTemplate:
    return ChatTemplate(source(name), *TOKENS.values())


def switches(name: str) -> list[dict[str, Any]]:
    text = source(name)
    return [
        {**given, "add_generation_prompt": opened}
        for given in SWITCHES
        if all(variable in text for variable in given)
        for opened in (True, False)
    ]


def theirs(
    reference: PreTrainedTokenizerFast, name: str, messages: Any, tools: Any = None, **given: Any
) -> str | None:
    """What transformers writes; None where it fails."""
    try:
        text = reference.apply_chat_template(
            messages, tools=tools, chat_template=source(name), tokenize=False, **given
        )
    except Exception:  # a template is a program and may fail in any way
        return None
    assert isinstance(text, str)
    return text


def ours(name: str, messages: Any, tools: Any = None, **given: Any) -> str | None:
    try:
        return template(name).render(messages, parse_tools(tools) if tools else (), **given)
    except (FormatError, InputError):
        return None


def bare(name: str, messages: Any, given: dict[str, Any]) -> str | None:
    """What the template writes of calls that we refuse, as we do not read them."""
    described = [tool.describe() for tool in parse_tools(TOOLS)]
    try:
        return template(name).render_prepared(to_template_messages(messages), described, given)
    except (FormatError, InputError):
        return None


NEED_TOOLS = ("command-r-plus-tools", "hermes-2-pro", "hermes-3")


@pytest.mark.parametrize("name", NAMES)
def test_texts_are_the_same(name: str, reference: PreTrainedTokenizerFast) -> None:
    for about, messages in TEXTS.items():
        for given in switches(name):
            text = theirs(reference, name, messages, **given)
            if name in NEED_TOOLS:
                assert text is None
            else:
                assert ours(name, messages, **given) == text, (about, given)


def test_a_template_for_tools_only_writes_a_chat_without_any() -> None:
    for name in NEED_TOOLS:
        assert "Hi" in (ours(name, [HI]) or ""), name


def as_wanted(messages: Any, as_text: bool) -> Any:
    """Messages whose calls have their arguments as text, if the template wants that."""
    made = copy.deepcopy(messages)
    for function in (c["function"] for m in made for c in m.get("tool_calls", ()) if as_text):
        function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
    return made


@pytest.mark.parametrize("name", NAMES)
def test_tools_are_the_same(name: str, reference: PreTrainedTokenizerFast) -> None:
    support = template(name)._tool_support
    written = support.dialect is not None
    if written and support.place != "variable":
        return  # texts of ours
    for about, messages in WITH_TOOLS.items():
        if written and not (support.calls and support.results) and not about.startswith("tools"):
            continue  # texts of ours
        asked = as_wanted(messages, support.text_arguments)
        asked = split_messages(asked, source(name))  # or it would drop a second call, or text
        goes_on = {"continue_final_message": True, "add_generation_prompt": False}
        more = [goes_on] if written and about == "after" else []
        for given in [*switches(name), *more]:
            text = theirs(reference, name, asked, TOOLS, **given)
            made = ours(name, messages, TOOLS, **given) if written else bare(name, messages, given)
            assert made == text, (about, given)


@pytest.mark.parametrize("name", NAMES)
def test_a_message_that_goes_on_is_the_same(name: str, reference: PreTrainedTokenizerFast) -> None:
    for about, messages in BEGINNINGS.items():
        for given in switches(name):
            if given.pop("add_generation_prompt"):
                continue
            tools = [] if name in NEED_TOOLS else None
            text = theirs(reference, name, messages, tools, continue_final_message=True, **given)
            made = ours(name, messages, continue_final_message=True, **given)
            assert made == text, (about, given)
