"""Faults that were found by asking for everything: each test is named for one."""

import asyncio
import socket

import pytest

from cutaway.server.http.sockets import bind

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


def refused(answer, status=400):
    assert answer.status_code == status, answer.text
    return answer.json()["error"]


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
    with socket.create_connection((host, int(port)), timeout=20) as client:
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
