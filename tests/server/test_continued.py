"""Answers that go on: from a beginning that the client gives, or where an answer was cut."""

import json

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


# -- replay: whole, the same, and an error where they would not be -----------------------------


CHATS, TEXT = "/v1/chat/completions", "/v1/completions"
ASKED = {
    TEXT: {"prompt": "ab"},
    CHATS: {"messages": [{"role": "user", "content": "ab"}]},
    "/v1/responses": {"input": "ab"},
}
MORE = {"seed": 5, "temperature": 1.2}


def asked(path, **more):
    limit = "max_output_tokens" if "responses" in path else "max_tokens"
    ids = {} if "responses" in path else {"return_token_ids": True}
    return ASKED[path] | MORE | {limit: 30} | ids | more


def replayed(client):
    choice = client.post(TEXT, json=asked(TEXT, ignore_eos=True)).json()["choices"][0]
    return choice["token_ids"]


@pytest.mark.elsewhere
@pytest.mark.parametrize("path", [TEXT, CHATS])
@pytest.mark.parametrize("cut", [0, 1, 20, 30])
def test_an_answer_with_a_replay_is_whole(client, path, cut):
    whole = client.post(path, json=asked(path, ignore_eos=True)).json()
    [choice] = whole["choices"]
    assert len(choice["token_ids"]) == 30
    more = {"ignore_eos": True, "replay": choice["token_ids"][:cut]}
    [again] = client.post(path, json=asked(path, **more)).json()["choices"]
    assert again["token_ids"] == choice["token_ids"]
    assert again.get("text", again.get("message")) == choice.get("text", choice.get("message"))
    assert again["cutaway"]["fingerprint"] == choice["cutaway"]["fingerprint"]


def events(client, path, **more):
    with client.stream("POST", path, json=asked(path, stream=True, **more)) as stream:
        return [json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: {")]


def test_a_stream_with_a_replay_tells_all_of_it_again(client):
    ids = replayed(client)
    whole = events(client, TEXT, ignore_eos=True)
    again = events(client, TEXT, ignore_eos=True, replay=ids[:17])
    assert tokens(again) == tokens(whole) == ids
    ends = [one[-1]["choices"][0]["cutaway"]["fingerprint"] for one in (whole, again)]
    assert ends[0] == ends[1]


def tokens(replayed):
    return [
        i for event in replayed for choice in event["choices"] for i in choice.get("token_ids", [])
    ]


@pytest.mark.parametrize("path", [TEXT, CHATS, "/v1/responses"])
def test_one_that_differs_is_told_where(client, path):
    answer = client.post(path, json=asked(path, replay=[5, 5]))
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (409, "replay")
    assert error["code"] == "replay_differs"
    assert error["message"].startswith("replay: token ")


def test_in_a_stream_an_event_says_so_and_nothing_follows(client):
    ids = replayed(client)
    *_, last = events(client, TEXT, ignore_eos=True, replay=[*ids[:9], ids[9] ^ 1])
    assert last["error"]["code"] == "replay_differs"
    assert last["error"]["message"].startswith("replay: token 10 is ")


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"replay": [1] * 31}, "replay has 31 token ids, and max_tokens is 30"),
        ({"replay": [1], "n": 2}, "replay is of one text: leave out n"),
        ({"replay": [1], "prompt": ["a", "b"]}, "replay is of one text: ask for one prompt"),
        ({"replay": [1], "forced": [2]}, "replay[0] is 1, and forced has 2 there"),
        ({"replay": [9999]}, "replay: token id 9999 is not between 0 and "),
    ],
)
def test_what_cannot_be_is_refused_by_name(client, more, sentence):
    answer = client.post(TEXT, json=asked(TEXT, **more))
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["message"].startswith(sentence)
    assert answer.json()["error"]["param"] == "replay"
