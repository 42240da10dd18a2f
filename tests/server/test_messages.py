"""/v1/messages and /v1/messages/count_tokens: the same text as everywhere, in Anthropic's form."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway import LLM
from cutaway.errors import CutawayError
from cutaway.features.anthropic.endpoints import Blocks
from cutaway.server.http.settings import ServerSettings
from cutaway.server.job import TextJob
from cutaway.text.tools import Content
from support.messages_client import ASK, SAID, Asker, built, lasting
from support.served import serve


@pytest.mark.parametrize("seed", [116, 118, 254])  # line feeds; a long text; letters of 4 bytes
def test_the_text_is_the_one_that_chats_have(ask, tiny_alone, seed):
    said = [{"role": "system", "content": "b"}, *SAID]
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
    fields = {"messages": SAID, **fields}
    events, whole = ask.streamed(**fields), ask.whole(**fields)
    records = [r for e in events for r in e.get("cutaway", {}).get("trace", [])]
    streamed = built(events)
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
    assert ask.counted(**same) == lasting(whole)["read"]


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
    assert sum(read[0]) == sum(read[1]) == ask.counted(messages=long)


def test_json_by_a_schema(ask):
    schema = {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2}
    config = {"format": {"type": "json_schema", "schema": schema}}
    whole = ask.whole(**{**ASK, "max_tokens": 200, "output_config": config})
    assert whole["content"][0]["text"].strip().startswith("[")
    assert whole["stop_reason"] == "end_turn"
    assert whole["cutaway"]["schema_in_prompt"]
    counted = [ask.counted(messages=SAID, output_config=c) for c in (config, None)]
    assert counted[0] > counted[1]
    assert lasting(whole)["read"] == counted[0]


def test_what_a_model_cannot_be_asked_for_is_noted(ask):
    asked = {**ASK, "output_config": {"effort": "high"}}
    asked["thinking"] = {"type": "enabled", "budget_tokens": 20}
    thinking, effort = ask.whole(**asked)["cutaway"]["notes"]
    assert thinking == "thinking: this model's template has no tokens for it"
    assert effort.startswith("output_config.effort: ")
    assert ask.whole(**ASK, thinking={"type": "disabled"})["cutaway"]["notes"] == []


def test_a_stream_that_fails_ends_with_the_error(ask, monkeypatch):
    reads, read = [], TextJob.read

    async def fail(job):
        reads.append(job)
        if len(reads) == 3:
            raise CutawayError("the text has failed")
        return await read(job)

    monkeypatch.setattr(TextJob, "read", fail)
    *before, last = ask.streamed(**{**ASK, "max_tokens": 400})  # many reads
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
        events = ask.streamed(**ASK)
    assert events[:2] == [{"type": "ping"}] * 2
    assert lasting(built(events))["output_tokens"] > 0


def test_a_text_after_a_text_is_one_block():
    blocks = Blocks()
    kinds = [kind for kind, _ in blocks.take([Content("a"), Content("b")])]
    assert kinds == ["content_block_start", "content_block_delta", "content_block_delta"]
    assert [kind for kind, _ in blocks.close()] == ["content_block_stop"]
    assert [*blocks.close()] == []
    assert blocks.each == [{"type": "text", "text": "ab", "citations": None}]
