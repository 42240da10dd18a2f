"""What /v1/responses refuses, each field by its name; texts that fail, and clients that leave."""

import asyncio

import openai
import pytest

from cutaway.errors import CutawayError
from cutaway.server.job import TextJob
from support.responses_client import DELTA, asked


def text_of(**part):
    return {"input": [{"role": "user", "content": [part]}]}


def said(**item):
    return {"input": [{"role": "user", "content": "a", **item}]}


REFUSED = [
    # what cannot be had here
    ("store", {"store": "yes"}, "true or false"),
    ("previous_response_id", {"previous_response_id": 1}, "a string"),
    ("conversation", {"conversation": "conv_1"}, "give previous_response_id"),
    ("prompt", {"prompt": {"id": "pmpt_1"}}, "no prompts are stored"),
    ("tools[0].type", {"tools": [{"type": "web_search"}]}, "type must be one of function, custom"),
    ("tool_choice", {"tool_choice": "required"}, "tool_choice needs tools"),
    ("max_tool_calls", {"max_tool_calls": 1}, "calls are not run here"),
    ("reasoning.effort", {"reasoning": {"effort": "high"}}, "has no words for thoughts"),
    ("truncation", {"truncation": "auto"}, "nothing is cut here"),
    ("context_management", {"context_management": [{"type": "compaction"}]}, "nothing is cut"),
    ("background", {"background": True}, "nothing is stored"),
    ("service_tier", {"service_tier": "flex"}, "one tier"),
    ("stream_options", {"stream_options": {"include_obfuscation": True}}, "nothing is padded"),
    ("prompt_cache_retention", {"prompt_cache_retention": "24h"}, "while there is room"),
    ("moderation", {"moderation": {}}, "nothing is moderated"),
    ("stop", {"stop": ["a"]}, "/v1/chat/completions has"),
    # fields of others
    ("max_tokens", {"max_tokens": 3}, "did you mean 'max_output_tokens'"),
    ("n", {"n": 2}, "unknown field 'n'"),
    ("messages", {"messages": []}, "unknown field 'messages'"),
    # values
    ("include[0]", {"include": ["file_search_call.results"]}, "'message.output_text.logprobs'"),
    ("top_logprobs", {"top_logprobs": 1}, "needs include"),
    ("top_logprobs", {"top_logprobs": 1001}, "or equal to 1000"),
    ("max_output_tokens", {"max_output_tokens": 0}, "or equal to 1"),
    ("max_output_tokens", {"max_output_tokens": 1.5}, "a whole number"),
    ("temperature", {"temperature": -1}, "0 (greedy)"),
    ("seed", {"seed": -2}, "between 0"),
    ("instructions", {"instructions": ["a"]}, "a string"),
    ("metadata", {"metadata": {str(i): "" for i in range(17)}}, "at most 16"),
    ("metadata", {"metadata": {"k" * 65: ""}}, "at most 64"),
    ("metadata.k", {"metadata": {"k": "v" * 513}}, "at most 512"),
    ("metadata.k", {"metadata": {"k": 1}}, "a string"),
    ("safety_identifier", {"user": "a", "safety_identifier": "b"}, "give one"),
    ("trace", {"track": [1]}, "add trace"),
    # the input
    ("input", {"input": None}, "input is missing"),
    ("input", {"input": 5}, "a string or a list"),
    ("input", {"input": []}, "at least 1 item"),
    ("input[0]", {"input": ["a"]}, "an object"),
    ("input[0]", {"input": [{"type": "computer_call", "name": "f"}]}, "'computer_call'"),
    (
        "input[0].encrypted_content",
        {"input": [{"type": "reasoning", "summary": [], "encrypted_content": "x"}]},
        "only thoughts of this server can be read",
    ),
    ("input[0]", {"input": [{"type": "item_reference", "id": "msg_1"}]}, "'item_reference'"),
    ("input[0].role", {"input": [{"content": "a"}]}, "is missing"),
    ("input[0].role", said(role="tool"), "'developer'"),
    ("input[0].content", said(content=None), "is missing"),
    ("input[0].content", said(content=5), "a string or a list"),
    ("input[0].status", said(status="done"), "'completed'"),
    ("input[0].name", said(name="a"), "unknown field"),
    ("input[0].phase", said(phase="final_answer"), "templates have no place"),
    ("input[0].content[0]", text_of(type="input_image", image_url="x"), "'input_image'"),
    ("input[0].content[0]", text_of(type=["input_text"], text="a"), "output_text can"),
    ("input[0].content[0].text", text_of(type="input_text"), "is missing"),
    ("input[0].content[0].text", text_of(type="output_text", text=5), "a string"),
    ("input[0].content[0].more", text_of(type="input_text", text="a", more=1), "unknown field"),
    (
        "input[0].content[0].annotations",
        text_of(type="output_text", text="a", annotations=[{}]),
        "only text",
    ),
]


@pytest.mark.parametrize(("param", "fields", "said"), REFUSED)
def test_what_cannot_be_is_refused_by_name(client, param, fields, said):
    answer = client.post("/v1/responses", json={"input": "a", "max_output_tokens": 1, **fields})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param
    assert said in error["message"]
    assert param.split(".")[-1].split("[")[0] in error["message"]


def test_the_parts_of_a_message_are_one_text(client):
    parts = [{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "b"}]
    told = [
        client.post("/v1/responses", json={
            "input": [{"role": "developer", "content": content}], "seed": 1,
            "max_output_tokens": 1, "return_token_ids": True,
        }).json()["prompt_token_ids"]
        for content in (parts, "ab")
    ]  # fmt: skip
    assert told[0] == told[1]


@pytest.mark.parametrize(
    ("param", "messages"),
    [
        ("messages", None),
        ("messages[0].content[0].text", [{"role": "user", "content": [{"type": "text"}]}]),
        (
            "messages[0].content[0].more",
            [{"role": "user", "content": [{"type": "text", "text": "a", "more": 1}]}],
        ),
    ],
)
def test_places_in_a_chat_are_told_the_same_way(client, param, messages):
    error = client.post("/v1/chat/completions", json={"messages": messages}).json()["error"]
    assert error["param"] == param
    assert param in error["message"]


# -- texts that fail, and clients that leave ----------------------------------------------------


@pytest.fixture
def failing(monkeypatch):
    """Jobs that fail when they are read for the second time."""
    reads, read = [], TextJob.read

    async def fail(job):
        reads.append(job)
        if len(reads) == 2:
            raise CutawayError("the text has failed")
        return await read(job)

    monkeypatch.setattr(TextJob, "read", fail)


def test_a_stream_that_fails_says_how_far_it_came_and_raises(strict_client, failing, tiny):
    events = []
    with pytest.raises(openai.APIError, match="the text has failed") as error:
        for event in strict_client.responses.create(**asked(), stream=True):
            events.append(event)
    assert error.value.code == "text_failed"
    *_, last = events
    assert last.type == "response.failed"
    assert last.response.error.code == "server_error"
    assert last.response.error.message == "the text has failed"
    deltas = [event.delta for event in events if event.type == DELTA]
    assert last.response.output[0].status == "incomplete"
    assert last.response.output_text == "".join(deltas)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    tiny.until_free()


def test_an_answer_that_fails_is_an_error(strict_client, failing):
    with pytest.raises(openai.InternalServerError, match="the text has failed"):
        strict_client.responses.create(**asked())


def test_who_leaves_a_stream_frees_its_blocks(strict_client, tiny, monkeypatch):
    read = TextJob.read

    async def wait(job):  # so that the job cannot end but by the client that leaves
        return await (asyncio.Event().wait() if job.texts[0].steps else read(job))

    monkeypatch.setattr(TextJob, "read", wait)
    with strict_client.responses.create(**asked(max_output_tokens=400), stream=True) as stream:
        for event in stream:
            if event.type == DELTA:
                break
        assert tiny.service.jobs
    tiny.until_free()
