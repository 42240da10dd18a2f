"""Thoughts, text and calls of a model that writes messages, over both endpoints for chats."""

import json
from typing import Any

import httpx

from cutaway import LLM
from cutaway.server.http.settings import ServerSettings
from support.message_texts import marked_ids
from support.served import serve

ASK = [{"role": "user", "content": "a"}]
DAYS = {"type": "object", "properties": {"days": {"enum": [1, 22]}}, "required": ["days"]}
SCHEMA = DAYS | {"additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}


def check_over_http(llm: LLM, text: str, calls: str, *, effort: str) -> dict[str, Any]:
    """Check what is read of two answers that are forced; return the one of Anthropic's endpoint.

    text: the thought "hm" and the text "yes". calls: the thought "hm", and f with 22 days
    """
    ids, call_ids = (marked_ids(llm.tokenizer, answer) for answer in (text, calls))
    with serve(llm, ServerSettings(names=["t"])) as served:

        def post(path: str, **fields) -> httpx.Response:
            body = {"model": "t", "max_tokens": 300, **fields}
            return httpx.post(served.url + path, json=body, timeout=60)

        path = "/v1/chat/completions"
        [choice] = post(path, messages=ASK, forced=ids, reasoning_effort=effort).json()["choices"]
        assert choice["message"]["reasoning_content"] == "hm"
        assert (choice["message"]["content"], choice["finish_reason"]) == ("yes", "stop")
        [choice] = post(path, messages=ASK, tools=[TOOL], forced=call_ids).json()["choices"]
        [call] = choice["message"]["tool_calls"]
        assert choice["finish_reason"] == "tool_calls"
        assert call["function"] == {"name": "f", "arguments": '{"days":22}'}
        stream = post(path, messages=ASK, tools=[TOOL], forced=call_ids, stream=True).text
        lines = (line for line in stream.splitlines() if line.startswith("data: {"))
        events = [json.loads(line[6:]) for line in lines]
        deltas = [choice["delta"] for event in events for choice in event["choices"]]
        pieces = [call for delta in deltas for call in delta.get("tool_calls", ())]
        assert "".join(piece["function"].get("arguments", "") for piece in pieces) == (
            '{"days":22}'
        )
        assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "hm"
        tool = {"name": "f", "input_schema": SCHEMA}
        answer: dict[str, Any] = post(
            "/v1/messages", messages=ASK, tools=[tool], forced=call_ids
        ).json()
        assert [block["type"] for block in answer["content"]] == ["thinking", "tool_use"]
        assert answer["content"][1]["input"] == {"days": 22}
        return answer
