"""Faults that were found by asking for everything: each test is named for one."""

import asyncio
import pickle
import socket
import warnings
from importlib import import_module
from pkgutil import walk_packages
from types import SimpleNamespace
from weakref import WeakSet

import openai
import pytest

import cutaway
from cutaway import errors
from cutaway.errors import CutawayError, Name, QueueFullError, TooLongError
from cutaway.server.http.errors import ApiError
from cutaway.server.http.sockets import bind
from cutaway.server.job import TextJob
from support.responses_client import DELTA, make_request

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


def refused(answer, status=400):
    assert answer.status_code == status, answer.text
    return answer.json()["error"]


def test_a_job_whose_end_failed_was_there_for_ever():
    def close():
        raise CutawayError("the replica is gone")

    text, running = SimpleNamespace(watch=SimpleNamespace(start=0.0)), WeakSet()
    texts = SimpleNamespace(generations=[text], close=close)
    job = TextJob(texts, [], None, None, running, keywords=())
    with pytest.raises(CutawayError, match="is gone"):
        job.close()
    assert not running


async def test_an_answer_waited_40_ms_for_the_acknowledgement_of_its_head():
    no_delay = asyncio.get_running_loop().create_future()

    async def take(_, writer):
        made = writer.get_extra_info("socket")
        no_delay.set_result(made.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    [sock] = bind("127.0.0.1", 0)
    async with await asyncio.start_server(take, sock=sock):
        _, writer = await asyncio.open_connection(*sock.getsockname())
        writer.close()
        assert await no_delay


@pytest.mark.parametrize("key", ["9" * 5000, "9" * 20, "01", "-1", "1.0", "٣", ""])
def test_a_bias_for_a_token_id_of_5000_digits_was_a_failure_of_the_server(client, key):
    error = refused(client.post(TEXT, json={"prompt": "a", "logit_bias": {key: 1}}))
    assert error["param"] == "logit_bias"


def test_a_bias_was_lost_where_two_keys_were_one_token(client):
    error = refused(client.post(TEXT, json={"prompt": "a", "logit_bias": {"1": 1, "01": -1}}))
    assert "'01' is no token id" in error["message"]


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        (TEXT, {"prompt": None}, "prompt"),
        ("/detokenize", {"tokens": None}, "tokens"),
        (CHAT, {"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ],
)
def test_null_in_a_needed_field_was_told_with_its_name_twice(client, path, body, field):
    error = refused(client.post(path, json=body))
    assert error["param"] == field
    assert error["message"] == f"{field} is missing; add it"


@pytest.mark.parametrize(("field", "value"), [("best_of", True), ("best_of", [])])
def test_an_inert_field_took_true_for_one(client, field, value):
    error = refused(client.post(TEXT, json={"prompt": "a", field: value}))
    assert (error["param"], error["code"]) == (field, "unsupported_parameter")


@pytest.mark.parametrize(
    ("field", "value"), [("store", 0), ("parallel_tool_calls", 1), ("parallel_tool_calls", 0.0)]
)
def test_an_inert_field_of_a_chat_took_numbers_for_truth(client, field, value):
    body = {"messages": [{"role": "user", "content": "a"}], field: value}
    assert refused(client.post(CHAT, json=body))["param"] == field


@pytest.mark.parametrize("path", ["/health/", "/v1/models//", "/metrics/"])
def test_a_slash_too_many_led_to_where_the_host_header_said(client, path):
    answer = client.get(path, headers={"host": "elsewhere.example"}, follow_redirects=False)
    assert refused(answer, 404)["type"] == "not_found_error"
    assert "location" not in answer.headers


def test_the_schema_promised_that_a_refusal_could_be_read(client):
    part = {"type": "refusal", "text": "no"}
    body = {"messages": [{"role": "assistant", "content": [part]}]}
    assert refused(client.post(CHAT, json=body))["code"] == "unsupported_content"
    document = client.get("/openapi.json").json()
    kinds = document["components"]["schemas"]["TextPart"]["properties"]["type"]["enum"]
    assert "refusal" not in kinds


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "PUT", "TRACE", "QUERY", "NONSENSE"])
@pytest.mark.parametrize(("path", "takes"), [("/health", "GET, HEAD"), (TEXT, "POST")])
def test_other_methods_are_told_which_there_is(client, method, path, takes):
    if method in takes:
        return
    answer = client.request(method, path)
    assert (answer.status_code, answer.headers["allow"]) == (405, takes)
    assert answer.headers["content-type"] == "application/json"
    if method != "HEAD":
        assert answer.json()["error"]["message"] == f"{path} takes {takes}, not {method}"


@pytest.mark.parametrize(
    "path", ["/", "/health", "/v1/models", "/openapi.json", "/static/page.css"]
)
def test_head_was_405(client, path):
    got, asked = client.get(path), client.head(path)
    assert (asked.status_code, asked.content) == (got.status_code, b"")
    for name in ("content-type", "content-length"):
        assert asked.headers[name] == got.headers[name]
    assert client.get("/health").status_code == 200  # on the same connection


@pytest.mark.parametrize(
    ("target", "status"), [("/health", 200), ("", 200), ("?a=1", 200), ("/v1/models", 200),
                           ("/no such", 404)],
)  # fmt: skip
def test_an_absolute_request_target_was_404(tiny, target, status):
    lines = [
        f"GET {tiny.url}{target.replace(' ', '%20')} HTTP/1.1",
        "Host: other",
        "Connection: close",
    ]
    answer = raw(tiny, "\r\n".join([*lines, "", ""]))
    assert answer.startswith(f"HTTP/1.1 {status} ")
    if status == 404:
        assert "there is no path '/no such'; the paths are /, /" in answer
        assert ", /detokenize, " in answer
        assert ", /openapi.json, " in answer, "both were missing in the list"


def test_two_lengths_of_a_body_left_the_connection_open(tiny):
    lines = [
        f"POST {TEXT} HTTP/1.1", "Host: localhost", "Content-Length: 5",
        "Transfer-Encoding: chunked", "", "0", "", "GET /health HTTP/1.1", "Host: h",
    ]  # fmt: skip
    answer = raw(tiny, "\r\n".join([*lines, "", ""]))
    assert answer.startswith("HTTP/1.1 400 ")
    assert "both Content-Length and Transfer-Encoding" in answer
    assert answer.count("HTTP/1.1") == 1, "what follows may be smuggled"


def raw(served, sent):
    """All that a server answers until it closes the connection."""
    host, _, port = served.url.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=300) as client:
        client.sendall(sent.encode())
        return b"".join(iter(lambda: client.recv(4096), b"")).decode()


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_of_nothing_but_forced_tokens_was_a_failure_of_the_server(client, stream):
    """They all came with one step, and had no time between them."""
    asked = {"prompt": [80], "max_tokens": 3, "forced": [80, 81, 82], "stream": stream}
    answer = client.post(TEXT, json=asked)
    assert answer.status_code == 200, answer.text
    assert '"finish_reason":"max_tokens"' in answer.text
    assert '"decode_tokens_per_s":null' in answer.text


def test_a_limit_given_under_both_its_names_was_refused(client):
    """As clients do that speak to old servers and to new ones."""
    asked = {"messages": [{"role": "user", "content": "a"}], "ignore_eos": True}
    answer = client.post(CHAT, json={**asked, "max_tokens": 2, "max_completion_tokens": 2})
    assert answer.json()["usage"]["completion_tokens"] == 2
    told = refused(client.post(CHAT, json={**asked, "max_tokens": 2, "max_completion_tokens": 3}))
    assert told["param"] == "max_tokens"


def test_priority_could_not_be_asked_for(client):
    answer = client.post(TEXT, json={"prompt": "a", "max_tokens": 1, "priority": -3}).json()
    assert answer["cutaway"]["params"]["priority"] == -3
    assert answer["cutaway"]["params_source"]["priority"] == "given"
    error = refused(client.post(TEXT, json={"prompt": "a", "priority": 2**40}))
    assert error["param"] == "priority" and "between" in error["message"]


# -- responses failures ----------------------------------------------------------------------------

# What /v1/responses refuses, each field by its name; texts that fail, and clients that leave.


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


@pytest.mark.elsewhere
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


def test_a_stream_that_fails_says_how_far_it_came_and_raises(strict_client, failing_jobs, tiny):
    events = []
    with pytest.raises(openai.APIError, match="the text has failed") as error:
        for event in strict_client.responses.create(**make_request(), stream=True):
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
    tiny.wait_until_free()


def test_an_answer_that_fails_is_an_error(strict_client, failing_jobs):
    with pytest.raises(openai.InternalServerError, match="the text has failed"):
        strict_client.responses.create(**make_request())


def test_who_leaves_a_stream_frees_its_blocks(strict_client, tiny, monkeypatch):
    read = TextJob.read

    async def wait(job):  # so that the job cannot end but by the client that leaves
        return await (asyncio.Event().wait() if job.texts[0].steps else read(job))

    monkeypatch.setattr(TextJob, "read", wait)
    with strict_client.responses.create(
        **make_request(max_output_tokens=400), stream=True
    ) as stream:
        for event in stream:
            if event.type == DELTA:
                break
        assert tiny.service.jobs
    tiny.wait_until_free()


# -- sent errors -----------------------------------------------------------------------------------

# Errors go from process to process, say the same there, and are caught by their kind.


def kinds():
    """Every error of cutaway's own, wherever it is defined, but for modules of programs that
    are not installed.
    """
    with warnings.catch_warnings(action="ignore"):  # those of Ray's own modules
        for module in walk_packages(cutaway.__path__, "cutaway."):
            if not module.name.endswith("__main__"):
                _import(module.name)
    found, new = set(), {CutawayError}
    while new:
        found |= new
        new = {kind for one in new for kind in one.__subclasses__()} - found
    return {kind for kind in found if kind.__module__.startswith("cutaway")}


def _import(name):
    try:
        import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name.partition(".")[0] not in ("ray", "llm", "lm_eval", "vllm"):
            raise


def sent(error):
    return pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(error))))


def test_every_error_arrives_with_its_sentence():
    every = kinds()
    types = {kind for kind in vars(errors).values() if isinstance(kind, type)}
    assert {kind for kind in types if issubclass(kind, Exception)} <= every
    for kind in every - {ApiError}:
        arrived = sent(kind("top_k: it must be 0 or more"))
        assert type(arrived) is kind
        assert str(arrived) == "top_k: it must be 0 or more"
        assert isinstance(arrived, CutawayError)
    assert {TooLongError, QueueFullError, ApiError} <= every


def test_an_error_arrives_with_the_field_that_it_is_about():
    name = Name("messages", 3, "content", prose=": a part")
    arrived = sent(TooLongError(name, " is longer than ", Name("max_tokens")))
    assert str(arrived) == "messages[3].content: a part is longer than max_tokens"
    assert (arrived.field, arrived.index, arrived.path) == ("messages", 3, name.path)
    assert str(arrived.with_name("input", 4)) == "input[4]: a part is longer than max_tokens"
    assert isinstance(arrived.args[-1], Name)


@pytest.mark.parametrize(
    "more",
    [{}, {"param": "n", "code": "bad"}, {"headers": {"retry-after": "3"}, "code": "queue_full"}],
)
def test_an_answer_to_a_client_arrives_whole(more):
    error = ApiError(429, "try again", **more)
    arrived = sent(error)
    assert type(arrived) is ApiError
    assert vars(arrived) == vars(error)
    assert (str(arrived), arrived.body("/")) == (str(error), error.body("/"))
