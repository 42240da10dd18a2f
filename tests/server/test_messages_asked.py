"""What is asked of /v1/messages: as templates take it, or refused in one sentence."""

import pytest

from cutaway import LLM
from cutaway.features.anthropic.requests import MessagesConversation
from cutaway.server.http.settings import ServerSettings
from support.messages_client import ASK, SAID, Asker, built, events_of
from support.served import serve

CACHED = {"cache_control": {"type": "ephemeral"}}
CALL = {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": "ä"}}
THOUGHT = {"type": "thinking", "thinking": "h", "signature": ""}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "r"}
CALLED = {"id": "t1", "type": "function", "function": {"name": "f", "arguments": '{"a": "ä"}'}}


def text(said, **more):
    return {"type": "text", "text": said, **more}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, []),
        ({"system": ""}, []),
        ({"system": "s"}, [("system", "s")]),
        ({"system": [text("s", **CACHED), text("t")]}, [("system", "s\nt")]),
        ({"system": [text("x-anthropic-billing-header: cch=1;"), text("t")]}, [("system", "t")]),
        ({"messages": [("user", [text("a"), text("b")])]}, [("user", "a\nb")]),
        ({"messages": [("user", "a"), ("user", [text("b")])]}, [("user", "a\nb")]),
        ({"messages": [("user", "a"), ("system", "s")]}, [("user", "a"), ("system", "s")]),
        (
            {"messages": [("user", "a"), ("assistant", "b"), ("assistant", [text("c")])]},
            [("user", "a"), ("assistant", "bc")],
        ),
        (
            {"messages": [("assistant", [text("b"), {**CALL, **CACHED}])]},
            [("assistant", "b", {"tool_calls": [CALLED]})],
        ),
        (
            {"messages": [("assistant", [THOUGHT, CALL])]},
            [("assistant", "", {"tool_calls": [CALLED], "reasoning_content": "h"})],
        ),
        (
            {"messages": [("user", [RESULT, text("a")])]},
            [("tool", "r", {"tool_call_id": "t1"}), ("user", "a")],
        ),
        (
            {"messages": [("user", [
                {"type": "tool_result", "tool_use_id": "1", "content": [text("r"), text("s")]},
                {"type": "tool_result", "tool_use_id": "2"},
                {"type": "tool_result", "tool_use_id": "3", "is_error": True},
            ])]},
            [
                ("tool", "r\ns", {"tool_call_id": "1"}), ("tool", "", {"tool_call_id": "2"}),
                ("tool", "error", {"tool_call_id": "3"}),
            ],
        ),
    ],
)  # fmt: skip
def test_a_conversation_as_templates_take_it(asked, expected):
    turns = [{"role": role, "content": content} for role, content in asked.get("messages", [])]
    ask = {"role": "user", "content": "?"}
    asked = MessagesConversation.model_validate({**asked, "messages": [*turns, ask]})
    if turns and turns[-1]["role"] == "user":  # the last is one with it
        if expected[-1][0] == "user":
            expected = [*expected[:-1], ("user", f"{expected[-1][1]}\n?")]
        else:
            expected = [*expected, ("user", "?")]
    else:
        expected = [*expected, ("user", "?")]
    told = [{"role": r, "content": c, **dict(*more)} for r, c, *more in expected]
    assert asked.conversation() == told


def test_what_claude_code_sends_is_taken(ask):
    asked = {
        "model": "tiny", "max_tokens": 4, "stream": True, "temperature": 1,
        "system": [text("x-anthropic-billing-header: cc=1;"), text("You are.", **CACHED)],
        "messages": [{"role": "user", "content": [text("<system-reminder>"), text("a", **CACHED)]}],
        "metadata": {"user_id": "user_1_session_2"},
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "medium"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "tools": [],
    }  # fmt: skip
    headers = {
        "anthropic-version": "2023-06-01", "x-api-key": "any",
        "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14",
    }  # fmt: skip
    answer = ask.post("/v1/messages?beta=true", json=asked, headers=headers)
    assert answer.status_code == 200, answer.text
    assert built(events_of(answer.text))["usage"]["output_tokens"] <= 4
    del asked["stream"], asked["max_tokens"], asked["temperature"], asked["metadata"]
    assert ask.post("/v1/messages/count_tokens?beta=true", json=asked).status_code == 200


# -- what is refused ---------------------------------------------------------------------------


def user(*blocks):
    return {"messages": [{"role": "user", "content": [*blocks]}]}


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aa"}}
JSON = {"type": "json_schema"}
REFUSED = [
    (user(IMAGE), "type 'image' cannot be read here; text, tool_result can"),
    (user({"type": "tool_result", "tool_use_id": "a", "content": [IMAGE]}), "'image'"),
    (user(), "messages[0].content must have at least 1 item, not 0"),
    ({"messages": [*SAID, {"role": "assistant", "content": "b"}, {"role": "user", "content": []}]},
     ".content must have at least 1 item, not 0"),
    (user(text("a"), RESULT), "messages[0].content[1].tool_use_id must be the id of a tool_use"),
    ({"messages": [{"role": "user", "content": [RESULT]},
                   {"role": "assistant", "content": [CALL]}, *SAID]},
     "messages[0].content[0].tool_use_id must be the id of a tool_use block in an earlier message"),
    (user(CALL), "type 'tool_use' cannot be read here; text, tool_result can"),
    ({"messages": [{"role": "assistant", "content": [{"type": "redacted_thinking"}]}]}, "redacted"),
    ({"messages": []}, "messages must have at least 1 item"),
    ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].role must be one of 'user'"),
    ({"system": [IMAGE]}, "'image'"),
    ({"max_tokens": None}, "max_tokens is missing; add it"),
    ({"max_tokens": 0}, "max_tokens must be greater than or equal to 1, not 0"),
    ({"max_tokens": "5"}, 'max_tokens must be a whole number, not'),
    ({"max_completion_tokens": 5}, "unknown field 'max_completion_tokens'"),
    ({"stop_sequences": ["a"] * 65}, "stop_sequences has 65 strings; at most 64"),
    ({"stop_sequences": [""]}, "stop_sequences: stop must not hold an empty string"),
    ({"temperature": -1}, "temperature must be 0 (greedy)"),
    ({"top_k": -5}, "top_k must be 0 or more"),
    ({"tool_choice": {"type": "any"}}, "tool_choice needs tools"),
    ({"tool_choice": {"type": "tool"}}, "tool_choice needs tools"),
    ({"tools": [{"type": "web_search_20250305", "name": "a"}]}, "'web_search_20250305' is not"),
    ({"tools": [{"name": "a"}]}, "tools[0].input_schema is missing; add it"),
    ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name must be 1 to 128 letters"),
    (
        {"tools": [{"name": "a", "input_schema": {"type": "array"}}]},
        "tools[0].input_schema must describe an object",
    ),
    ({"thinking": {"type": "on"}}, "thinking.type must be 'enabled', 'disabled'"),
    (
        {"thinking": {"type": "disabled", "budget_tokens": 5}},
        "thinking.budget_tokens: without thoughts there is no budget",
    ),
    ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "nothing is cut"),
    ({"mcp_servers": [{"name": "a"}]}, "mcp_servers: calls are not run here"),
    ({"service_tier": "priority"}, "service_tier: there is one tier"),
    ({"container": "c"}, "container: nothing is stored here"),
    ({"output_config": {"format": {**JSON, "schema": {"type": 1}}}}, "output_config: "),
    ({"model": "nope"}, "model 'nope' is not here"),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "said"), REFUSED, ids=str)
def test_what_cannot_be_is_refused_in_one_sentence(ask, wrong, said):
    sentence = ask.refused(404 if "model" in wrong else 400, **{**ASK, **wrong})
    assert said in sentence and "\n" not in sentence
    fields = {k: v for k, v in ASK.items() if k == "messages"}
    if any(k in wrong for k in ("messages", "system", "tools", "tool_choice", "thinking")):
        assert ask.refused(path="/v1/messages/count_tokens", **{**fields, **wrong}) == sentence


def test_a_budget_leaves_room_for_an_answer(ask):
    """count_tokens, which has no max_tokens, takes any."""
    thinking = {"type": "enabled", "budget_tokens": 4}
    said = ask.refused(**{**ASK, "max_tokens": 4}, thinking=thinking)
    assert said.startswith("thinking.budget_tokens must be less than max_tokens, 4,")


def test_a_prompt_that_is_too_long_is_told_in_anthropics_words(ask):
    long = {**ASK, "messages": [{"role": "user", "content": "a" * 600}]}
    assert ask.refused(**long).startswith("prompt is too long: messages: ")


def test_errors_of_the_server_around_have_the_form_too(tiny_path):
    llm = LLM(tiny_path, threads=1)
    with (
        serve(llm, ServerSettings(api_key="sesame", max_body=2000)) as served,
        Asker(base_url=served.url, timeout=60) as ask,
    ):
        assert "an API key is needed" in ask.refused(401, **ASK)
        ask.headers["x-api-key"] = "sesam"
        assert "the API key is wrong" in ask.refused(401, **ASK)
        ask.headers["x-api-key"] = "sesame"
        assert ask.whole(**ASK)
        ask.refused(413, **{**ASK, "system": "a" * 3000})
        kinds = {
            answer.status_code: answer.json()["error"]["type"]
            for answer in (
                ask.get("/v1/messages"), ask.get("/v1/messages/batches"),
                ask.post("/v1/messages", content="{}"),
                ask.post("/v1/messages", content="{", headers={"content-type": "application/json"}),
                ask.post("/v1/messages", json={**ASK, "system": "a" * 3000}),
            )
        }  # fmt: skip
        assert kinds == {
            400: "invalid_request_error", 404: "not_found_error", 405: "invalid_request_error",
            413: "request_too_large", 415: "invalid_request_error",
        }  # fmt: skip
        assert "code" in ask.get("/v1/nothing").json()["error"]  # others keep theirs
