"""Tools in /v1/messages: forced, streamed, cut, and answered with what a call gave."""

import json

import pytest
from pydantic_core import from_json

from support.messages_client import Asker, build_message, lasting

pytestmark = pytest.mark.model
WEATHER = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "days": {"type": "integer"}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
    "cache_control": {"type": "ephemeral"},
}
DIAL = {
    "type": "custom",
    "name": "dial",
    "input_schema": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"number": {"type": "string", "pattern": "^[0-9]{3}$"}},
        "required": ["number"],
        "additionalProperties": False,
    },
}
SAID = [{"role": "user", "content": "What is the weather in Paris?"}]
ASK = {"messages": SAID, "tools": [WEATHER, DIAL], "max_tokens": 200, "temperature": 0.7, "seed": 3}
ONE = {"disable_parallel_tool_use": True}


@pytest.fixture(scope="module")
def ask(smollm2):
    with Asker(base_url=smollm2.url, timeout=120) as client:
        yield client


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": {"type": "any", **ONE}},
        {"tool_choice": {"type": "any"}, "max_tokens": 90},
        {"tool_choice": {"type": "auto"}, "max_tokens": 30},
        {"tool_choice": {"type": "tool", "name": "dial", **ONE}},
        {"tool_choice": {"type": "any"}, "max_tokens": 20},
        {"tool_choice": {"type": "none"}, "max_tokens": 10},
        {"max_tokens": 10},
    ],
    ids=str,
)
def test_the_whole_answer_is_what_the_events_make(ask, fields):
    fields = {**ASK, **fields}
    whole, streamed = ask.whole(**fields), build_message(ask.stream_events(**fields))
    for block in [*streamed["content"], *whole["content"]]:
        block.pop("id", None)
        if isinstance(block.get("input"), str):
            block["input"] = from_json(block["input"], allow_partial="trailing-strings")
    assert lasting(streamed) == lasting(whole)
    choice = fields.get("tool_choice", {})
    calls = [block for block in whole["content"] if block["type"] == "tool_use"]
    if choice.get("type") in ("any", "tool"):
        assert calls and not (choice.get("disable_parallel_tool_use") and len(calls) > 1)
        cut = whole["stop_reason"] == "max_tokens"
        assert cut or whole["stop_reason"] == "tool_use"
        assert not choice.get("disable_parallel_tool_use") or not cut
        for call in calls[: len(calls) - cut]:
            names = {"dial": {"number"}, "get_weather": {"city", "days"}}[call["name"]]
            assert set(call["input"]) == names
            assert choice["type"] == "any" or call["name"] == "dial"
    if choice.get("type") == "none":
        assert not calls
    counted = {
        name: fields[name] for name in ("messages", "tools", "tool_choice") if name in fields
    }
    assert ask.count_tokens(**counted) == lasting(whole)["read"]


def test_what_a_call_gave_is_read_as_in_chats(ask):
    [call] = ask.whole(**ASK, tool_choice={"type": "any", **ONE})["content"]
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": "sunny"}
    said = [*SAID, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    asked = {**ASK, "messages": said, "max_tokens": 12, "return_token_ids": True}
    told = ask.whole(**asked)
    function = {"name": call["name"], "arguments": json.dumps(call["input"])}
    chat = {
        "messages": [
            *SAID,
            {"role": "assistant", "tool_calls": [
                {"id": call["id"], "type": "function", "function": function}
            ]},
            {"role": "tool", "tool_call_id": call["id"], "content": "sunny"},
        ],
        "tools": [
            {"type": "function", "function": {
                "name": tool["name"], "description": tool.get("description"),
                "parameters": tool["input_schema"],
            }}
            for tool in (WEATHER, DIAL)
        ],
        "max_tokens": 12, "temperature": 0.7, "seed": 3, "return_token_ids": True,
    }  # fmt: skip
    [choice] = ask.post("/v1/chat/completions", json=chat).json()["choices"]
    assert told["prompt_token_ids"] == choice["prompt_token_ids"]
    assert told["token_ids"] == choice["token_ids"]
    assert told["cutaway"]["fingerprint"] == choice["cutaway"]["fingerprint"]


def test_a_schema_that_cannot_be_had_is_refused_by_its_name(ask):
    bad = {"name": "odd", "input_schema": {"type": "object", "properties": {"a": {"type": 1}}}}
    assert "odd" in ask.refusal(**{**ASK, "tools": [WEATHER, bad]})


def test_an_answer_that_repeats_a_call_asks_for_tools(ask):
    """It ends behind the call that it has already, before its closing mark."""
    answer = ask.whole(**ASK, tool_choice={"type": "any"})
    first, second = (block["input"] for block in answer["content"])
    assert first == second
    assert answer["stop_reason"] == "tool_use"
