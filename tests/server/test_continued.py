"""An answer that goes on from a beginning that the client gives, in every protocol."""

import httpx
import pytest

from cutaway import LLM, AsyncLLM

ASK = {"role": "user", "content": "ab"}
BEGUN = [ASK, {"role": "assistant", "content": "a b\nb"}]
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
DRAWN = {"seed": 5, "temperature": 1.0, "max_tokens": 12}
CHAT = {"continue_final_message": True, "logprobs": True, **DRAWN}
ITEM = {"type": "message", "role": "assistant", "status": "incomplete"}
CUT = {**ITEM, "content": [{"type": "output_text", "text": BEGUN[-1]["content"]}]}


@pytest.fixture(scope="module")
def expected(tiny_alone):
    done = tiny_alone.chat(BEGUN, continue_final_message=True, **DRAWN)
    assert done.text and [*done.prompt_token_ids] == tiny_alone.chat_prompt(
        BEGUN, continue_final_message=True
    )
    return done


def post(tiny, path, **body):
    return httpx.post(tiny.url + path, json=body, timeout=60)


def told(answer):
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(answer):
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    return error if isinstance(error, str) else error["message"]


def test_python_s_new_message_is_whole(expected, tiny_alone):
    [message] = expected.new_messages
    assert message["content"] == BEGUN[-1]["content"] + expected.text
    many = tiny_alone.chat(BEGUN, continue_final_message=True, n=2, **DRAWN)
    assert many[0].text == expected.text


async def test_asyncio(expected, tiny_path):
    async with AsyncLLM(LLM(tiny_path, threads=1, progress=False)) as model:
        done = await model.chat(BEGUN, continue_final_message=True, **DRAWN)
        ids = await model.chat_prompt(BEGUN, continue_final_message=True)
    assert (done.text, done.new_messages) == (expected.text, expected.new_messages)
    assert ids == [*expected.prompt_token_ids]


def test_openai_s_chat(tiny, expected):
    path, fields = "/v1/chat/completions", {"return_token_ids": True, **CHAT}
    for opened in ({}, {"add_generation_prompt": False}):
        answer = told(post(tiny, path, messages=BEGUN, **fields, **opened))
        [choice] = answer["choices"]
        assert choice["prompt_token_ids"] == [*expected.prompt_token_ids]
        assert choice["message"]["content"] == expected.text
        assert len(choice["logprobs"]["content"]) == len(expected.steps)
        assert answer["usage"]["prompt_tokens"] == len(expected.prompt_token_ids)
    streamed = post(tiny, path, messages=BEGUN, stream=True, **CHAT).text
    assert streamed.endswith("data: [DONE]\n\n")


def test_the_trace_has_the_beginning_in_the_prompt(tiny, expected):
    asked = {"messages": BEGUN, "trace": True, **CHAT}
    [choice] = told(post(tiny, "/v1/chat/completions", **asked))["choices"]
    head, *_ = choice["cutaway"]["trace"]
    assert head["prompt_token_ids"] == [*expected.prompt_token_ids]


def test_responses_continue_an_incomplete_answer(tiny, expected):
    fields = {"seed": 5, "temperature": 1.0, "max_output_tokens": 12, "return_token_ids": True}
    answer = told(post(tiny, "/v1/responses", input=[ASK, CUT], **fields))
    assert answer["prompt_token_ids"] == [*expected.prompt_token_ids]
    assert answer["output"][-1]["content"][0]["text"] == expected.text
    ended = {**CUT, "status": "completed"}
    other = told(post(tiny, "/v1/responses", input=[ASK, ended], **fields))
    assert other["prompt_token_ids"] != answer["prompt_token_ids"]


def test_both_parts_of_a_response_are_one_message_afterwards(tiny, tiny_alone, expected):
    fields = {"seed": 5, "temperature": 1.0, "max_output_tokens": 12, "return_token_ids": True}
    first = told(post(tiny, "/v1/responses", input=[ASK, CUT], **fields))
    more = {"previous_response_id": first["id"], "input": "b", **fields}
    said = [ASK, *expected.new_messages, {"role": "user", "content": "b"}]
    answer = told(post(tiny, "/v1/responses", **more))
    assert answer["prompt_token_ids"] == tiny_alone.chat_prompt(said)


def test_anthropic_s_prefill(tiny, expected):
    asked = {"messages": BEGUN, "return_token_ids": True, **DRAWN}
    answer = told(post(tiny, "/v1/messages", **asked))
    assert answer["prompt_token_ids"] == [*expected.prompt_token_ids]
    assert [block["text"] for block in answer["content"]] == [expected.text]
    counted = told(post(tiny, "/v1/messages/count_tokens", messages=BEGUN))
    assert counted["input_tokens"] == len(expected.prompt_token_ids)


@pytest.mark.parametrize("stream", [False, True])
def test_ollama_s_partial_answer(tiny, expected, stream):
    options = {"seed": 5, "temperature": 1.0, "num_predict": 12}
    answer = post(tiny, "/api/chat", messages=BEGUN, options=options, stream=stream)
    lines = [httpx.Response(200, content=line).json() for line in answer.text.splitlines()]
    assert "".join(line["message"]["content"] for line in lines) == expected.text
    assert lines[-1]["prompt_eval_count"] == len(expected.prompt_token_ids)


def test_what_only_writes_the_prompt(tiny, tiny_alone, expected):
    fields = {"messages": BEGUN, "continue_final_message": True}
    assert told(post(tiny, "/tokenize", **fields))["tokens"] == [*expected.prompt_token_ids]
    prompt = told(post(tiny, "/apply-template", **fields))["prompt"]
    assert prompt.endswith(BEGUN[-1]["content"])
    assert prompt == tiny_alone.template.render(BEGUN, continue_final_message=True)


GOES_ON = {"continue_final_message": True, "max_tokens": 1}
CALLED = {"role": "assistant", "content": "", "tool_calls": [CALL]}
OPENED = {"add_generation_prompt": True}
SCHEMA = {"format": {"type": "json_schema", "schema": {"type": "object"}}}
SPACE = {"role": "assistant", "content": "It is "}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": ""}
THOUGHTFUL = {"role": "assistant", "content": [THOUGHT]}
USE = {"type": "tool_use", "id": "c1", "name": "f", "input": {}}
USING = {"role": "assistant", "content": [USE]}


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/v1/chat/completions", {"messages": [ASK], **GOES_ON}, "the last message is of the role"),
        ("/v1/chat/completions", {"messages": [ASK, CALLED], **GOES_ON}, "calls tools"),
        ("/v1/chat/completions", {"messages": BEGUN, **GOES_ON, **OPENED}, "opens no turn"),
        ("/v1/chat/completions", {"messages": BEGUN, "add_generation_prompt": False}, "is opened"),
        ("/v1/completions", {"prompt": "a", **GOES_ON}, "ask /v1/chat/completions"),
        ("/tokenize", {"prompt": "a", "continue_final_message": True}, "is of messages"),
        ("/v1/messages", {"messages": [ASK, SPACE], "max_tokens": 1}, "ends with white space"),
        ("/v1/messages", {"messages": [ASK, THOUGHTFUL], "max_tokens": 1}, "not a thought"),
        ("/v1/messages", {"messages": [ASK, USING], "max_tokens": 1}, "calls tools"),
        ("/v1/messages", {"messages": BEGUN, "max_tokens": 1, "output_config": SCHEMA}, "begins"),
        ("/api/chat", {"messages": [ASK, CALLED | {"tool_calls": [
            {"function": {"name": "f", "arguments": {}}}]}]}, "calls tools"),
    ],
)  # fmt: skip
def test_what_cannot_go_on_is_refused(tiny, path, body, said):
    assert said in refused(post(tiny, path, **body))
