"""/v1/chat/completions asked by OpenAI's own client, and what both endpoints refuse."""

import asyncio

import openai
import pytest
from openai import AsyncOpenAI

from support.openai_words import clean, join, trace_of

SAID = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hä"}]
SAMPLED = {"max_completion_tokens": 12, "seed": 5, "temperature": 1}


@pytest.fixture
def create(openai_client):
    def make(messages=SAID, **fields):
        return openai_client.chat.completions.create(
            model="tiny", messages=messages, **SAMPLED | fields
        )

    return make


FIELDS = [
    {},
    {"n": 3, "logprobs": True},
    {"logprobs": True, "top_logprobs": 3, "max_completion_tokens": 60},
    {"logprobs": True, "top_logprobs": 2, "extra_body": {"logprobs_when": "after"}},
    {"stop": "a", "logprobs": True, "max_completion_tokens": 200},
    {"logit_bias": {"100": 8}, "presence_penalty": 1, "frequency_penalty": -0.5},
    {"extra_body": {"return_token_ids": True, "trace": True}},
    {"user": "somebody", "tool_choice": "none", "parallel_tool_calls": False, "store": False},
]


@pytest.mark.parametrize("fields", FIELDS, ids=str)
def test_a_stream_says_what_the_whole_answer_says(create, fields):
    whole = create(**fields)
    stream = join(create(**fields, stream=True, stream_options={"include_usage": True}))
    assert clean(stream) == clean(whole)


def test_it_is_what_the_engine_answers(create, tiny_alone):
    answer = create(n=2)
    expected = tiny_alone.chat(SAID, n=2, max_tokens=12, seed=5, temperature=1)
    assert [c.message.content for c in answer.choices] == [done.text for done in expected]
    assert [c.cutaway["fingerprint"] for c in answer.choices] == [d.fingerprint for d in expected]
    assert answer.usage.prompt_tokens == len(expected[0].prompt_token_ids)
    assert answer.usage.completion_tokens == sum(len(done.token_ids) for done in expected)
    assert answer.choices[0].message.role == "assistant"


def test_a_stream_tells_usage_once_and_only_when_asked(create):
    plain = list(create(stream=True))
    assert not any(chunk.usage for chunk in plain) and all(chunk.choices for chunk in plain)
    *others, last = create(stream=True, stream_options={"include_usage": True})
    assert not any(chunk.usage for chunk in others) and not last.choices
    assert last.usage.total_tokens == last.usage.prompt_tokens + last.usage.completion_tokens
    assert last.usage.completion_tokens == create().usage.completion_tokens


@pytest.mark.parametrize("at_end", [False, True])
def test_a_stream_tells_usage_in_each_event_when_asked(create, at_end):
    options = {"include_usage": at_end, "continuous_usage_stats": True}
    asked = {"stream_options": options, "extra_body": {"return_token_ids": True}}
    chunks = list(create(stream=True, **asked))
    shown, told = 0, []
    for chunk in chunks:
        shown += sum(len(choice.model_extra.get("token_ids", ())) for choice in chunk.choices)
        told.append(chunk.usage)
        assert chunk.usage.completion_tokens == shown
    assert told[0].completion_tokens == 0 and told[-1] == create().usage and shown > 1
    assert sum(not chunk.choices for chunk in chunks) == at_end


async def test_async_clients_are_served_together(tiny, create):
    async with AsyncOpenAI(base_url=f"{tiny.url}/v1", api_key="any") as client:

        async def one(seed):
            asked = {"model": "tiny", "messages": SAID, **SAMPLED, "seed": seed}
            chunks = await client.chat.completions.create(**asked, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])

        together = await asyncio.gather(*map(one, range(8)))
    assert together == [create(seed=seed).choices[0].message.content for seed in range(8)]


def test_true_bytes_make_the_text(create):
    """Also where a token is part of a character."""
    choice = create(logprobs=True, top_logprobs=2, max_completion_tokens=80).choices[0]
    content = choice.logprobs.content
    whole = b"".join(bytes(entry.bytes or ()) for entry in content)
    assert whole.decode(errors="replace") == choice.message.content
    assert any(len(entry.top_logprobs) == 2 for entry in content)
    split = [bytes(e.bytes) for e in content if e.bytes and e.token == "\ufffd"]
    assert split, "this text has bytes that are no character"
    for entry in content:
        top = [each.logprob for each in entry.top_logprobs]
        assert top == sorted(top, reverse=True) and entry.logprob <= top[0]


def test_a_trace_is_one(create):
    own = {"extra_body": {"trace": True, "candidates": 4}}
    whole, stream = create(**own).choices[0], join(create(**own, stream=True)).choices[0]
    assert trace_of(whole).text == trace_of(stream).text == whole.message.content
    assert {len(step.observed.candidates) for step in trace_of(stream).steps} <= {4, 5, 6}


def test_parts_and_developers_are_read_as_text_and_system(create, tiny):
    parts = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "ä"}]},
    ]
    assert create(parts).choices[0].message.content == create().choices[0].message.content


def test_an_answer_may_take_all_the_room_there_is(create):
    answer = create(max_completion_tokens=None, extra_body={"ignore_eos": True})
    assert answer.usage.total_tokens == 512
    assert answer.choices[0].finish_reason == "length"
    assert answer.cutaway["params_source"]["max_tokens"] == "default"
    assert answer.cutaway["params"]["max_tokens"] == answer.usage.completion_tokens


# -- models --------------------------------------------------------------------------------------


def test_models_have_names(openai_client):
    assert [model.id for model in openai_client.models.list()] == ["tiny"]
    assert openai_client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError) as caught:
        openai_client.models.retrieve("gpt-4o")
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


# -- refusals ------------------------------------------------------------------------------------

TOO_LONG = "a " * 600
BOTH = [
    ("model", {"model": "gpt-4o"}, openai.NotFoundError),
    ("temperature", {"temperature": -1}, openai.BadRequestError),
    ("top_p", {"top_p": 0}, openai.BadRequestError),
    ("n", {"n": 0}, openai.BadRequestError),
    ("n", {"n": 1000}, openai.BadRequestError),
    ("stop", {"stop": [""]}, openai.BadRequestError),
    ("stop", {"stop": [1]}, openai.BadRequestError),
    ("stop", {"stop": ["a"] * 65}, openai.BadRequestError),
    ("seed", {"seed": -2}, openai.BadRequestError),
    ("logit_bias", {"logit_bias": {"a": 1}}, openai.BadRequestError),
    ("logit_bias", {"logit_bias": {"99999": 1}}, openai.BadRequestError),
    ("presence_penalty", {"presence_penalty": 3}, openai.BadRequestError),
    ("max_tokens", {"max_tokens": -1}, openai.BadRequestError),
    ("max_tokens", {"max_tokens": "5"}, openai.BadRequestError),
    ("preset", {"extra_body": {"preset": "mine"}}, openai.BadRequestError),
    ("trace", {"extra_body": {"candidates": 3}}, openai.BadRequestError),
    ("track", {"extra_body": {"track": [99999], "trace": True}}, openai.BadRequestError),
    ("speculate", {"extra_body": {"speculate": "draft"}}, openai.BadRequestError),
    ("speculate", {"extra_body": {"speculate": "draft:x"}}, openai.BadRequestError),
    ("temprature", {"extra_body": {"temprature": 1}}, openai.BadRequestError),
    ("logprobs_when", {"extra_body": {"logprobs_when": "now"}}, openai.BadRequestError),
]
COMPLETIONS = [
    ("prompt", {"prompt": TOO_LONG}, openai.BadRequestError),
    ("prompt", {"prompt": [99999]}, openai.BadRequestError),
    ("prompt", {"prompt": []}, openai.BadRequestError),
    ("prompt", {"prompt": [["a"]]}, openai.BadRequestError),
    ("best_of", {"best_of": 2}, openai.BadRequestError),
    ("max_tokens", {"max_tokens": 0}, openai.BadRequestError),
    ("logprobs", {"logprobs": -1}, openai.BadRequestError),
    ("logprobs", {"logprobs": 1001}, openai.BadRequestError),
]
BAD_TOOL = {"type": "function", "function": {"name": "a b"}}
PICTURE = {"type": "image_url", "image_url": {"url": "data:"}}
CHAT = [
    ("messages", {"messages": [{"role": "user", "content": TOO_LONG}]}, openai.BadRequestError),
    ("messages", {"messages": []}, openai.BadRequestError),
    ("messages[0].role", {"messages": [{"role": "x", "content": ""}]}, openai.BadRequestError),
    ("messages[0].content[0]", {"messages": [{"role": "user", "content": [PICTURE]}]},
     openai.BadRequestError),
    ("tools[0].function.name", {"tools": [BAD_TOOL]}, openai.BadRequestError),
    ("tool_choice", {"tool_choice": "required"}, openai.BadRequestError),
    ("top_logprobs", {"top_logprobs": 2}, openai.BadRequestError),
    ("top_logprobs", {"logprobs": True, "top_logprobs": 1001}, openai.BadRequestError),
    ("top_logprobs", {"logprobs": True, "top_logprobs": -1}, openai.BadRequestError),
    ("max_tokens", {"max_tokens": 3, "max_completion_tokens": 4}, openai.BadRequestError),
    ("modalities", {"modalities": ["audio"]}, openai.BadRequestError),
]  # fmt: skip


def check(caught, param):
    """OpenAI's form: each of the four, and one sentence that names the field."""
    error = caught.value
    assert error.body.keys() == {"message", "type", "param", "code"}
    assert (error.param, error.body["param"]) == (param, param)
    words = ("content",) if param == "messages" else ()
    assert any(word in error.body["message"] for word in (param, *words))
    assert "\n" not in error.body["message"]
    assert error.response.headers["x-request-id"] == error.request_id


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("param", "fields", "kind"), [*BOTH, *CHAT])
def test_chat_refuses(openai_client, tiny, param, fields, kind, stream):
    with pytest.raises(kind) as caught:
        openai_client.chat.completions.create(
            **{"model": "tiny", "messages": SAID, "stream": stream} | fields
        )
    check(caught, param)
    assert tiny.free()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("param", "fields", "kind"), [*BOTH, *COMPLETIONS])
def test_completions_refuse(openai_client, tiny, param, fields, kind, stream):
    with pytest.raises(kind) as caught:
        openai_client.completions.create(
            **{"model": "tiny", "prompt": "ab", "stream": stream} | fields
        )
    check(caught, param)
    assert tiny.free()


def test_options_of_a_stream_are_refused_without_one(openai_client):
    with pytest.raises(openai.BadRequestError) as caught:
        openai_client.completions.create(
            model="tiny", prompt="ab", stream_options={"include_usage": True}
        )
    check(caught, "stream_options")


def test_what_nobody_can_mean_is_no_refusal(openai_client):
    """Fields of others whose value asks for nothing."""
    asked = {"suffix": "", "best_of": 1, "user": "x", "temperature": None}
    openai_client.completions.create(model="tiny", prompt="ab", max_tokens=1, **asked)
