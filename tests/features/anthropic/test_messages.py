"""/v1/messages: the same text as everywhere, in Anthropic's form; and what is asked of it."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway import LLM
from cutaway.features.anthropic.endpoints import Blocks
from cutaway.features.anthropic.requests import MessagesConversation
from cutaway.server.http.settings import ServerSettings
from cutaway.server.job import TextJob
from cutaway.text.tools import Content
from support.messages_client import ASK, MESSAGES, Asker, build_message, events_of, lasting
from support.served import serve


@pytest.mark.parametrize("seed", [116, 118, 254])  # line feeds; a long text; letters of 4 bytes
def test_the_text_is_the_one_that_chats_have(ask, tiny_alone, seed):
    said = [{"role": "system", "content": "b"}, *MESSAGES]
    expected = tiny_alone.chat(said, seed=seed, temperature=1.0, max_tokens=60)
    asked = {**ASK, "seed": seed, "max_tokens": 60, "system": "b", "return_token_ids": True}
    whole = ask.whole(**asked)
    assert whole["content"] == [{"type": "text", "text": expected.text, "citations": None}]
    assert tuple(whole["prompt_token_ids"]) == expected.prompt_token_ids
    assert whole["cutaway"]["fingerprint"] == expected.fingerprint
    del asked["system"]
    chat = ask.post("/v1/chat/completions", json={**asked, "messages": said}).json()["choices"][0]
    assert chat["cutaway"]["fingerprint"] == expected.fingerprint
    assert whole["cutaway"]["seeds"] == [seed]
    assert whole["cutaway"]["params"]["max_tokens"] == 60


FIELDS = st.fixed_dictionaries(
    {"seed": st.integers(0, 2**64 - 1), "max_tokens": st.integers(1, 30)},
    optional={
        "stop_sequences": st.lists(st.sampled_from(["e", "ab", "\n", "th"]), max_size=3),
        "temperature": st.sampled_from([0, 0.7, 3.0]),
        "top_k": st.integers(1, 40),
        "top_p": st.sampled_from([0.5, 1.0]),
        "trace": st.booleans(),
        "return_token_ids": st.booleans(),
        "speculate": st.sampled_from(["off", "ngram"]),
        "thinking": st.sampled_from([{"type": "disabled"}, {"type": "adaptive"}]),
        "system": st.text(max_size=5),
    },
)


@settings(max_examples=30, deadline=None)
@given(FIELDS)
def test_the_whole_answer_is_what_the_events_make(ask, fields):
    fields = {"messages": MESSAGES, **fields}
    events, whole = ask.stream_events(**fields), ask.whole(**fields)
    records = [r for e in events for r in e.get("cutaway", {}).get("trace", [])]
    streamed = build_message(events)
    if fields.get("return_token_ids"):
        streamed["token_ids"] = [i for e in events for i in e.get("token_ids", [])]
        streamed["prompt_token_ids"] = events[-2]["prompt_token_ids"]
    steps = [
        [record["sampled_id"] for record in told if "sampled_id" in record]
        for told in (records, whole["cutaway"].pop("trace", []))
    ]
    streamed["cutaway"].pop("trace", None)
    assert lasting(streamed) == lasting(whole)
    written = whole["usage"]["output_tokens"] if fields.get("trace") else 0
    assert steps[0] == steps[1] and len(steps[0]) == written
    reason = whole["cutaway"]["finish_reason"]
    assert whole["stop_reason"] == {
        "end_token": "end_turn", "max_tokens": "max_tokens", "stop_string": "stop_sequence",
    }[reason]  # fmt: skip
    assert whole["stop_sequence"] == (
        whole["cutaway"]["matched"] if reason == "stop_string" else None
    )
    same = {k: v for k, v in fields.items() if k in ("messages", "system", "thinking")}
    assert ask.count_tokens(**same) == lasting(whole)["read"]


def test_an_answer_ends_where_the_context_does(tiny_path):
    with serve(LLM(tiny_path, threads=1, context=32)) as served, Asker(base_url=served.url) as ask:
        whole = ask.whole(**{**ASK, "max_tokens": 32_000, "seed": 118})
    assert whole["stop_reason"] == "model_context_window_exceeded"
    assert whole["usage"]["output_tokens"] + whole["usage"]["input_tokens"] == 32


def test_what_was_read_before_is_told_apart(ask):
    long = [{"role": "user", "content": "ab" * 60}]
    first, second = [ask.whole(**{**ASK, "messages": long, "max_tokens": 1}) for _ in range(2)]
    read = [
        (m["usage"]["cache_read_input_tokens"], m["usage"]["input_tokens"]) for m in (first, second)
    ]
    assert read[0][0] == 0 and read[1][0] >= 64
    assert sum(read[0]) == sum(read[1]) == ask.count_tokens(messages=long)


def test_json_by_a_schema(ask):
    schema = {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2}
    config = {"format": {"type": "json_schema", "schema": schema}}
    whole = ask.whole(**{**ASK, "max_tokens": 200, "output_config": config})
    assert whole["content"][0]["text"].strip().startswith("[")
    assert whole["stop_reason"] == "end_turn"
    assert whole["cutaway"]["schema_in_prompt"]
    counted = [ask.count_tokens(messages=MESSAGES, output_config=c) for c in (config, None)]
    assert counted[0] > counted[1]
    assert lasting(whole)["read"] == counted[0]


def test_what_a_model_cannot_be_asked_for_is_noted(ask):
    asked = {**ASK, "output_config": {"effort": "high"}}
    asked["thinking"] = {"type": "enabled", "budget_tokens": 20}
    thinking, effort = ask.whole(**asked)["cutaway"]["notes"]
    assert thinking == "thinking: this model's template has no tokens for it"
    assert effort.startswith("output_config.effort: ")
    assert ask.whole(**ASK, thinking={"type": "disabled"})["cutaway"]["notes"] == []


def test_a_stream_that_fails_ends_with_the_error(ask, failing_jobs):
    *before, last = ask.stream_events(**ASK)
    assert before[0]["type"] == "message_start" and before[-1]["type"] == "content_block_delta"
    error = {"type": "api_error", "message": "the text has failed"}
    assert last == {"type": "error", "error": error}


def test_who_waits_is_pinged(tiny_path, monkeypatch):
    reads, read = [], TextJob.read

    async def slow(job):  # what waits too long is asked again
        reads.append(job)
        await asyncio.sleep(10 if len(reads) < 3 else 0)
        return await read(job)

    monkeypatch.setattr(TextJob, "read", slow)
    llm = LLM(tiny_path, threads=1)
    with serve(llm, ServerSettings(keep_alive=0.2)) as served, Asker(base_url=served.url) as ask:
        events = ask.stream_events(**ASK)
    assert events[:2] == [{"type": "ping"}] * 2
    assert lasting(build_message(events))["output_tokens"] > 0


def test_a_text_after_a_text_is_one_block():
    blocks = Blocks()
    kinds = [kind for kind, _ in blocks.take([Content("a"), Content("b")])]
    assert kinds == ["content_block_start", "content_block_delta", "content_block_delta"]
    assert [kind for kind, _ in blocks.close()] == ["content_block_stop"]
    assert [*blocks.close()] == []
    assert blocks.items == [{"type": "text", "text": "ab", "citations": None}]


# -- what is asked: as templates take it, or refused in one sentence ---------------------------


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


@pytest.mark.elsewhere
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
    assert build_message(events_of(answer.text))["usage"]["output_tokens"] <= 4
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
    ({"messages": [*MESSAGES, {"role": "assistant", "content": "b"},
                   {"role": "user", "content": []}]},
     ".content must have at least 1 item, not 0"),
    (user(text("a"), RESULT), "messages[0].content[1].tool_use_id must be the id of a tool_use"),
    ({"messages": [{"role": "user", "content": [RESULT]},
                   {"role": "assistant", "content": [CALL]}, *MESSAGES]},
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
    sentence = ask.refusal(404 if "model" in wrong else 400, **{**ASK, **wrong})
    assert said in sentence and "\n" not in sentence
    fields = {k: v for k, v in ASK.items() if k == "messages"}
    if any(k in wrong for k in ("messages", "system", "tools", "tool_choice", "thinking")):
        assert ask.refusal(path="/v1/messages/count_tokens", **{**fields, **wrong}) == sentence


def test_a_budget_leaves_room_for_an_answer(ask):
    """count_tokens, which has no max_tokens, takes any."""
    thinking = {"type": "enabled", "budget_tokens": 4}
    said = ask.refusal(**{**ASK, "max_tokens": 4}, thinking=thinking)
    assert said.startswith("thinking.budget_tokens must be less than max_tokens, 4,")


def test_a_prompt_that_is_too_long_is_told_in_anthropics_words(ask):
    long = {**ASK, "messages": [{"role": "user", "content": "a" * 600}]}
    assert ask.refusal(**long).startswith("prompt is too long: messages: ")


def test_errors_of_the_server_around_have_the_form_too(tiny_path):
    llm = LLM(tiny_path, threads=1)
    with (
        serve(llm, ServerSettings(api_key="sesame", max_body=2000)) as served,
        Asker(base_url=served.url, timeout=60) as ask,
    ):
        assert "an API key is needed" in ask.refusal(401, **ASK)
        ask.headers["x-api-key"] = "sesam"
        assert "the API key is wrong" in ask.refusal(401, **ASK)
        ask.headers["x-api-key"] = "sesame"
        assert ask.whole(**ASK)
        ask.refusal(413, **{**ASK, "system": "a" * 3000})
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
