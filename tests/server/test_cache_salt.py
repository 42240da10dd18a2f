"""`cache_salt` over HTTP: the prefix cache answers no guesses about texts of another salt."""

import logging

import httpx
import pytest

from cutaway import LLM
from cutaway.server.http.settings import ServerSettings
from support.served import serve

SECRET = "kestrel-of-one-client"
SAID = "a bé ab été, " * 8  # more than two blocks of the tiny model's tokens
TEXT = {"max_tokens": 1}
ASKED = {
    "/v1/completions": {**TEXT, "prompt": SAID},
    "/v1/chat/completions": {**TEXT, "messages": [{"role": "user", "content": SAID}]},
    "/v1/messages": {**TEXT, "messages": [{"role": "user", "content": SAID}]},
    "/v1/responses": {"max_output_tokens": 1, "input": SAID},
}
READ = {
    "/v1/score": {"text_1": SAID, "text_2": "ab"},
    "/v1/rerank": {"query": SAID, "documents": ["ab"]},
    "/v1/decisions": {
        "input": SAID,
        "questions": [
            {"type": "choice", "instructions": "?", "choices": [{"value": "a"}, {"value": "b"}]}
        ],
    },
    "/v1/embeddings": {"input": SAID},
}  # fmt: skip


@pytest.fixture
def client(tiny_path):
    with (
        serve(LLM(tiny_path, threads=1)) as served,
        httpx.Client(base_url=served.url, timeout=60) as client,
    ):
        yield client


def asked(client, path, salt=None):
    body = {**(ASKED | READ)[path], **({} if salt is None else {"cache_salt": salt})}
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    assert SECRET not in answer.text
    return answer.json()


def cached(client, path, salt=None):
    usage = asked(client, path, salt)["usage"]
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or usage
    return details.get("cached_tokens", details.get("cache_read_input_tokens"))


@pytest.mark.parametrize("path", ASKED)
def test_a_guess_finds_nothing_of_a_text_with_another_salt(client, path):
    before = cached(client, path, SECRET)
    assert [cached(client, path, salt) for salt in (None, "another")] == [before, before]
    assert cached(client, path, SECRET) >= before + 64


@pytest.mark.parametrize("path", READ)
def test_nor_of_a_text_that_was_only_read(client, path):
    with_salt, hits = asked(client, path, SECRET), hits_of(client)
    without = asked(client, path)
    assert hits_of(client) == hits
    asked(client, path, SECRET)
    assert path == "/v1/embeddings" or hits_of(client) > hits
    for answer in (with_salt, without):
        answer.pop("id", None), answer.pop("created", None), answer.pop("usage")
    assert with_salt == without


def hits_of(client):
    [line] = [
        line
        for line in client.get("/metrics").text.splitlines()
        if line.startswith("cutaway_prefix_cache_hit_tokens_total")
    ]
    return float(line.split()[-1])


@pytest.mark.parametrize("path", [*ASKED, *READ])
def test_a_bad_one_is_refused_by_name_and_not_shown(client, path):
    for bad in ("", SECRET * 20, 7):
        answer = client.post(path, json={**(ASKED | READ)[path], "cache_salt": bad})
        assert answer.status_code == 400 and "cache_salt" in answer.text
        assert SECRET not in answer.text


def test_no_trace_no_log_and_no_receipt_has_it(tiny_path, caplog, tmp_path):
    caplog.set_level(logging.DEBUG)
    settings = ServerSettings(log_prompts=True)
    with serve(LLM(tiny_path, threads=1), settings) as served:
        body = {**ASKED["/v1/completions"], "cache_salt": SECRET, "trace": True}
        answer = httpx.post(f"{served.url}/v1/completions", json=body, timeout=60)
    assert answer.json()["choices"][0]["cutaway"]["trace"]
    assert SECRET not in answer.text
    assert SAID.split(maxsplit=1)[0] in caplog.text and SECRET not in caplog.text
