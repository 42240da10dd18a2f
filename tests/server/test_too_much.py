"""One client that asks for very much, or in a very large body, holds up nobody."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Semaphore

import httpx
import pytest

from asked_beside import Beside
from cutaway import LLM
from cutaway.api import async_model
from cutaway.server.app import ROUTERS
from cutaway.server.http.settings import ServerSettings
from cutaway.server.limits import MOST_BESIDE, MOST_ROWS
from largest_fields import rows
from request_fields import places
from support.served import serve

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
ASKED = {TEXT: {"prompt": "ab"}, CHAT: {"messages": [{"role": "user", "content": "ab"}]}}


@pytest.mark.parametrize(
    ("path", "param", "fields"),
    [
        (TEXT, "stop", {"stop": ["ab" * 3000]}),
        (TEXT, "stop", {"stop": [f"{i:0>400}" for i in range(20)]}),
        (TEXT, "dry_breakers", {"dry_breakers": [f"{i:0>5}" for i in range(1000)]}),
        (TEXT, "logprobs", {"logprobs": 1000, "n": 8, "max_tokens": 400}),
        (TEXT, "logprobs", {"logprobs": 1000, "max_tokens": 1, "echo": True,
                            "prompt": ["ab" * 100] * 10}),
        (CHAT, "top_logprobs", {"logprobs": True, "top_logprobs": 1000, "n": 4}),
        (TEXT, "track", {"trace": True, "track": [*range(200)], "n": 16, "max_tokens": 400}),
        (TEXT, "candidates", {"trace": True, "candidates": 1000, "n": 8, "max_tokens": 400}),
        (TEXT, "logit_bias", {"n": 128, "logit_bias": {str(i): 1.0 for i in range(8193)}}),
        (TEXT, "n", {"prompt": ["ab"] * 65, "n": 2}),
    ],
)  # fmt: skip
def test_what_is_too_much_is_refused_by_name(client, tiny, path, param, fields):
    answer = client.post(path, json={**ASKED[path], "ignore_eos": True, **fields})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert "at most" in error["message"] or "more than" in error["message"]
    assert tiny.free()


def test_a_text_without_the_kv_cache_computes_so_many_tokens(tiny, client):
    """Each step computes all tokens before its own."""
    prompt, context = "ab" * 8, tiny.llm.room
    rows = sum(range(len(tiny.llm.tokenize(prompt)), context))
    assert rows <= MOST_ROWS < 2 * rows
    asked = {"prompt": prompt, "ignore_eos": True, "kv_cache": False, "max_tokens": context}
    done = client.post(TEXT, json=asked).json()
    assert done["usage"]["total_tokens"] == context
    for more in ({"n": 2}, {"prompt": [prompt, prompt]}):
        error = client.post(TEXT, json={**asked, **more}).json()["error"]
        assert error["param"] == "kv_cache"
        assert f"up to {2 * rows} tokens would be computed" in error["message"]


def test_a_text_before_a_suffix_has_the_kv_cache(client):
    """By Bayes' rule sixteen texts are written, each of which would be computed again and again."""
    asked = {"prompt": "ab", "suffix": "c", "kv_cache": False, "max_tokens": 100}
    error = client.post(TEXT, json=asked).json()["error"]
    assert error["param"] == "kv_cache"
    assert "leave out kv_cache or suffix" in error["message"]


def test_a_server_may_do_without_the_kv_cache(tiny_path):
    asked = {"prompt": "ab" * 8, "n": 4, "max_tokens": 300}
    assert 4 * sum(range(16, 316)) > MOST_ROWS
    with serve(LLM(tiny_path, threads=1, progress=False), kv_cache=False) as served:
        answer = httpx.post(f"{served.url}{TEXT}", json=asked, timeout=60)
        assert answer.status_code == 200, answer.text


def test_what_is_much_is_answered(client):
    stops = ["\x00" + "a" * 62 + chr(1000 + i) for i in range(64)]
    fields = {"logprobs": 20, "n": 4, "max_tokens": 60, "stop": stops, "echo": True}
    answer = client.post(TEXT, json={"prompt": ["ab" * 9] * 32, **fields})
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["choices"]) == 128
    assert MOST_BESIDE >= 8192 * 20 * 4, "an answer that fills a context, as far as OpenAI's tells"


def test_samples_that_the_server_asks_for_are_counted(tiny_path):
    with serve(LLM(tiny_path, threads=1, progress=False), n=4, max_tokens=1) as served:
        many = httpx.post(f"{served.url}{TEXT}", json={"prompt": ["ab"] * 33})
        assert many.json()["error"]["param"] == "n"
        few = httpx.post(f"{served.url}{TEXT}", json={"prompt": ["ab"] * 32})
        assert len(few.json()["choices"]) == 128


@pytest.mark.parametrize("path", [TEXT, CHAT])
def test_a_prompt_that_must_be_too_long_is_not_read(client, path):
    """Reading 3 MB takes half a minute."""
    text = "ab " * 1_000_000
    asked = {TEXT: {"prompt": text}, CHAT: {"messages": [{"role": "user", "content": text}]}}
    began = time.process_time()
    error = client.post(path, json=asked[path]).json()["error"]
    assert time.process_time() - began < 1
    assert error["code"] == "context_length_exceeded"
    assert error["param"] == {TEXT: "prompt", CHAT: "messages"}[path]
    assert "at least" in error["message"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {"prompt": " " * 3_900_000}, "prompt"),
        ("/tokenize", {"messages": [{"role": "user", "content": "0" * 3_900_000}]}, "prompt"),
        ("/detokenize", {"tokens": [1] * 200_000}, "tokens"),
    ],
)
def test_what_fits_no_context_is_not_tokenized(client, path, body, param):
    """Four of them at once held up the server for 100 s and took 2 GB."""
    began = time.process_time()
    error = client.post(path, json=body).json()["error"]
    assert time.process_time() - began < 1
    assert (error["param"], error["code"]) == (param, "context_length_exceeded")


def test_a_start_of_exercises_has_some_candidates(client):
    many = {"text": "", "token_ids": [1] * 5000, "names": ["a"] * 5000, "logits": [0.0] * 5000}
    asked = {"start": {**many, "seed": 1, "position": 1}}
    began = time.process_time()
    error = client.post("/page/practice", json=asked).json()["error"]
    assert time.process_time() - began < 1
    assert error["message"] == "start.token_ids must have at most 4096 items, not 5000"


@pytest.mark.parametrize("n", [0, -1, 129, 2**70])
def test_n_has_one_range(client, n):
    error = client.post(TEXT, json={"prompt": "ab", "n": n}).json()["error"]
    assert error["message"] == f"n must be between 1 and 128, not {n}"
    assert error["param"] == "n"


@pytest.mark.parametrize("path", [TEXT, CHAT])
def test_more_forced_tokens_than_may_come_were_dropped_without_a_word(client, tiny, path):
    asked = {**ASKED[path], "max_tokens": 4, "forced": [1, 2, 3, 4, 5]}
    error = client.post(path, json=asked).json()["error"]
    assert error["message"] == (
        "forced has 5 token ids, and max_tokens is 4: raise max_tokens, or give fewer"
    )
    assert error["param"] == "forced"
    assert client.post(path, json={**asked, "max_tokens": 5}).status_code == 200


def test_long_texts_are_tokenized_one_after_another_and_short_ones_meanwhile(tiny, monkeypatch):
    """Each takes the interpreter for up to half a minute, from everybody else."""
    began, goes_on = Semaphore(0), Semaphore(0)

    def tokenize(text, **_):
        if len(text) > 9:
            began.release()
            goes_on.acquire()
        return [len(text)]

    def ask(text):
        return httpx.post(f"{tiny.url}/tokenize", json={"prompt": text}, timeout=60).json()

    monkeypatch.setattr(tiny.service.llm, "tokenize", tokenize)
    monkeypatch.setattr(async_model, "LONG", 50)
    with ThreadPoolExecutor(3) as clients:
        asked = [clients.submit(ask, "a" * 100) for _ in range(3)]
        for _ in asked:
            assert began.acquire(timeout=300)
            assert ask("short")["tokens"] == [5]
            assert not began.acquire(timeout=0.1)
            goes_on.release()
        assert [one.result()["tokens"] for one in asked] == [[100]] * 3


@pytest.mark.parametrize("path", ASKED)
def test_others_are_answered_while_options_are_read(tiny, monkeypatch, path):
    began, goes_on = Semaphore(0), Semaphore(0)
    parse = tiny.service.llm.parse

    def slow(*args, **kwargs):
        began.release()
        assert goes_on.acquire(timeout=300)
        return parse(*args, **kwargs)

    monkeypatch.setattr(tiny.service.llm, "parse", slow)
    with ThreadPoolExecutor(1) as clients:
        body = {**ASKED[path], "max_tokens": 1}
        asked = clients.submit(httpx.post, f"{tiny.url}{path}", json=body, timeout=60)
        assert began.acquire(timeout=300)
        try:
            assert httpx.get(f"{tiny.url}/health", timeout=60).status_code == 200
        finally:
            goes_on.release()
        assert asked.result().status_code == 200


def test_a_suffix_is_read_beside_the_event_loop_and_a_hopeless_one_not_at_all(
    tiny_path, monkeypatch
):
    lengths, in_turn = [], async_model.AsyncModel.read_in_turn

    async def noted(self, length, *of_a_text):
        lengths.append(length)
        return await in_turn(self, length, *of_a_text)

    monkeypatch.setattr(async_model.AsyncModel, "read_in_turn", noted)
    with serve(LLM(tiny_path, threads=1, progress=False)) as served:
        asked = {"prompt": "ab", "max_tokens": 2, "suffix": "ba" * 11}
        assert httpx.post(f"{served.url}{TEXT}", json=asked).status_code == 200
        assert 22 in lengths
        lengths.clear()
        hopeless = httpx.post(f"{served.url}{TEXT}", json={**asked, "suffix": "a" * 4_000_000})
    assert hopeless.status_code == 400
    assert "tokens" in hopeless.json()["error"]["message"]
    assert lengths == []


# -- every field, header and part at its largest size ------------------------------------------
# What is asked is found in the server's routes, so that a new field is among it by itself
# (bench/request_fields.py). bench/largest_fields.py writes what each makes others wait.


# Processor seconds of the whole server while /health waits: 0.25 is the aim on an idle machine.
MOST_S = 1.0
PATHS = [*sorted({route.path for router in ROUTERS for route in router.routes}), "any"]


@pytest.fixture(scope="module")
def every_place():
    return [*places()]


@pytest.fixture(scope="module")
def asked(tiny_path, tmp_path_factory):
    """What asks a server with all its endpoints, and what asks for its health beside that."""
    settings = ServerSettings(batches=tmp_path_factory.mktemp("batches"))
    with (
        serve(LLM(tiny_path, threads=1, progress=False), settings) as served,
        Beside(served.url, os.getpid(), of_texts=False) as beside,
        httpx.Client(base_url=served.url, timeout=120) as client,
    ):
        yield client, beside


def check(asked, wanted):
    for place, content, status, waited in rows(*asked, wanted):
        said = f"{place.endpoint} {place.name}, {content}"
        assert status < 500, f"{said}: {status}"
        assert waited.health < MOST_S, f"{said}: /health waited for {waited.health:.2f} s"


def test_what_is_asked_has_every_endpoint_and_kind(every_place):
    """And fields at any depth."""
    found = {(place.endpoint, place.name) for place in every_place}
    assert found >= {
        ("POST /v1/chat/completions", "messages[0].content[0].text"),
        ("POST /v1/completions", "denoise.block"),
        ("POST /v1/responses", "input[0].content"),
        ("POST /v1/messages", "tools[0].input_schema"),
        ("POST /api/generate", "options.num_predict"),
        ("POST /page/practice", "start"),
        ("POST /v1/files", "head of file"),
        ("GET /v1/models/{name}", "name"),
        ("any", "header authorization"),
        ("any", "header x-request-id"),
    }
    with_body = {
        route.path
        for router in ROUTERS
        for route in router.routes
        if getattr(route, "body_field", None)
    }
    assert with_body <= {place.endpoint.rpartition(" ")[2] for place in every_place}


def test_health_is_answered_beside_some(asked, every_place):
    """Two contents of each 250th place; the slow test has all of all."""
    check(asked, [place._replace(contents=_first(place)) for place in every_place[::250]])


def _first(place):
    return lambda: iter([*place.contents()][:2])


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
def test_health_is_answered_beside_each(asked, every_place, path):
    check(asked, [place for place in every_place if place.endpoint.rpartition(" ")[2] == path])
