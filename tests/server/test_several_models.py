"""Several models in one server: each request gets the one that it names, which comes and goes."""

import asyncio
import json
import os
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from threading import Event

import httpx
import pytest

from cutaway import LLM
from cutaway.compute.loading.model import LoadedModel
from cutaway.compute.loading.setup import Setup
from cutaway.engine import Policy
from cutaway.errors import InputError
from cutaway.features.ollama.requests import seconds_of
from cutaway.server.app import create_app
from cutaway.server.model_cache import ModelCache
from cutaway.server.on_demand import OnDemandLLM
from support.adapters import adapter_of
from support.random_llama import write_tiny_llama
from support.served import TEMPLATE, serve_all
from support.waiting import wait_until

SETUP = {"context": 512, "kv_tokens": 512, "threads": 1}
SAMPLED = {"max_tokens": 12, "seed": 5, "temperature": 1.0, "ignore_eos": True}
NAMES = ("a", "b")


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder, metadata = tmp_path_factory.mktemp("several"), {"tokenizer.chat_template": TEMPLATE}
    return {
        name: write_tiny_llama(folder / f"file-{name}.gguf", context=512, seed=i, metadata=metadata)
        for i, name in enumerate(NAMES)
    }


@pytest.fixture(scope="module")
def alone(paths):
    """Each model without a server."""
    return {name: LLM(path, **SETUP, progress=False) for name, path in paths.items()}


def models(paths, limit=None, first=False, adapters=None, **more):
    """On demand.

    limit: how many may be loaded; first: whether the first is at the start; adapters: by model
    """
    setups = [Setup(**SETUP, adapters=(adapters or {}).get(name, {})) for name in paths]
    opened = [
        LoadedModel.open(path, setup, progress=False, weights=False)
        for path, setup in zip(paths.values(), setups, strict=True)
    ]
    if first:
        opened[0].load()
    cache = ModelCache(limit and limit * max(model.memory for model in opened), **more)
    each = [OnDemandLLM(model, cache, Policy(max_waiting=256)) for model in opened]
    return dict(zip(paths, each, strict=True))


@pytest.fixture(params=[None, 1], ids=["both", "one at a time"])
def served(paths, request):
    with serve_all(lambda: models(paths, request.param, first=True)) as served:
        yield served


def post(served, path, body):
    answer = httpx.post(served.url + path, json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def get(served, path):
    return httpx.get(served.url + path).json()


def loaded(served):
    """As a client sees it."""
    return [one["name"] for one in get(served, "/api/ps")["models"]]


MESSAGES = [{"role": "user", "content": "ab"}]
MOST = {"max_tokens": 12, "seed": 5, "temperature": 1.0}
WAYS = {
    "/v1/completions": {"prompt": "ab", **SAMPLED},
    "/v1/chat/completions": {"messages": MESSAGES, **SAMPLED},
    "/v1/responses": {"input": "ab", "max_output_tokens": 12, "seed": 5, "temperature": 1.0},
    "/v1/messages": {"messages": MESSAGES, **MOST},
    "/api/chat": {"messages": MESSAGES, "stream": False,
                  "options": {"num_predict": 12, "seed": 5, "temperature": 1.0}},
    "/api/generate": {"prompt": "ab", "stream": False,
                      "options": {"num_predict": 12, "seed": 5, "temperature": 1.0}},
}  # fmt: skip


def fingerprint(answer):
    ours = answer["choices"][0] if "choices" in answer else answer
    return ours["cutaway"]["fingerprint"]


@pytest.mark.parametrize("path", WAYS)
def test_each_text_is_that_of_the_model_that_was_named(served, alone, path):
    free = path in ("/v1/completions", "/v1/chat/completions")
    options = SAMPLED if free else {**SAMPLED, "ignore_eos": False}
    for _ in range(2):
        for name in NAMES:
            body = {**WAYS[path], "model": name}
            write = alone[name].generate if path == "/v1/completions" else alone[name].chat
            done = write("ab" if path == "/v1/completions" else MESSAGES, **options)
            assert fingerprint(post(served, path, body)) == done.fingerprint
    assert fingerprint(post(served, path, WAYS[path])) == fingerprint(
        post(served, path, {**WAYS[path], "model": "a"})
    )


def test_what_is_not_written_is_of_the_model_too(served, alone):
    for name in NAMES:
        llm = alone[name]
        vectors = post(served, "/v1/embeddings", {"model": name, "input": "ab"})["data"]
        assert vectors[0]["embedding"] == llm.embed("ab").vectors[0].astype(float).tolist()
        filled = post(served, "/v1/fill", {"model": name, "text": "a[MASK]"})
        assert filled == json.loads(json.dumps(llm.fill("a[MASK]", 5).to_dict()))
        step = {"model": name, "prompt": "ab", "generated": [40, 41], "step": 1}
        row = post(served, "/v1/inside", step | {"want": []})["row"]
        assert post(served, "/v1/inside", step | {"want": [], "row": row})["as_run"]
        others = step | {"row": row, "model": "b" if name == "a" else "a"}
        assert httpx.post(f"{served.url}/v1/inside", json=others).status_code == 409
        ids = post(served, "/tokenize", {"model": name, "prompt": "ab"})["tokens"]
        assert ids == llm.tokenize("ab")
        told = post(served, "/detokenize", {"model": name, "tokens": ids})["prompt"]
        assert told == llm.detokenize(ids)
        unnamed = {key: value for key, value in step.items() if key != "model"}
        lesson = post(served, "/page/practice", {"inside": step})
        assert lesson["exercises"]
        assert post(served, "/page/practice", {"inside": unnamed, "model": name}) == lesson
        ways = post(served, "/page/practice", {"ways": True, "model": name})
        assert post(served, "/page/practice", {"ways": True, "model": f"file-{name}"}) == ways
        scores = {"model": name, "text_1": "ab", "text_2": "b"}
        [score] = post(served, "/v1/score", scores)["data"]
        assert score["score"] == llm.score("ab", ["b"])[0].total


def test_who_knows_which_models_there_are(served):
    every = ["a", "file-a", "b", "file-b"]
    assert [one["id"] for one in get(served, "/v1/models")["data"]] == every
    assert get(served, "/v1/models/file-b")["root"] == "file-b"
    tags = get(served, "/api/tags")["models"]
    assert [one["name"] for one in tags] == [f"{name}:latest" for name in every]
    assert len({one["digest"] for one in tags}) == 2
    assert post(served, "/api/show", {"model": "b"})["modelfile"] == "FROM b\n"
    about = get(served, "/page/about")
    assert (about["model"], about["models"]) == ("a", ["a", "b"])
    assert get(served, "/page/about?model=file-b")["weights"] == tags[2]["digest"]
    assert httpx.get(f"{served.url}/page/about?model=c").status_code == 404
    assert get(served, "/ready") == {"status": "ready"}
    assert get(served, "/health") == {"status": "ok"}


def test_which_of_them_are_there_is_told(paths):
    with serve_all(lambda: models(paths, 1, first=True)) as served:
        assert loaded(served) == ["a:latest"]
        before = httpx.get(f"{served.url}/metrics").text
        assert 'cutaway_model_loaded{model="a"} 1.0' in before
        post(served, "/v1/completions", {"prompt": "ab", "model": "b", **SAMPLED})
        assert loaded(served) == ["b:latest"]
        [running] = get(served, "/api/ps")["models"]
        assert running["size"] == served.models.services[1].slot.model.memory
        flags = {one["id"]: one["loaded"] for one in get(served, "/v1/models")["data"]}
        assert flags == {"a": False, "file-a": False, "b": True, "file-b": True}
        page = httpx.get(f"{served.url}/metrics").text
        assert 'cutaway_model_loaded{model="a"} 0.0' in page
        assert 'cutaway_tokens_total{kind="completion",model="b"} 12.0' in page
        assert 'cutaway_tokens_total{kind="completion",model="a"} 0.0' in page
        assert 'cutaway_requests_running{model="a"} 0.0' in page
        assert page.count("\nprocess_resident_memory_bytes ") == 1
        assert 'cutaway_http_requests_total{method="POST",path="/v1/completions"' in page


def test_the_tokenizer_is_of_the_model_that_was_named(tmp_path):
    files = {
        name: write_tiny_llama(
            tmp_path / f"{name}.gguf",
            context=512,
            metadata={"tokenizer.chat_template": name + TEMPLATE},
        )
        for name in NAMES
    }
    with serve_all(lambda: models(files)) as served:
        url = f"{served.url}/tokenizer_info"
        told = [httpx.get(url, params={"model": name}).json() for name in NAMES]
        assert [one["chat_template"] for one in told] == [name + TEMPLATE for name in NAMES]
        assert httpx.get(url).json() == told[0]
        assert httpx.get(url, params={"model": "c"}).status_code == 404


def test_another_name_is_no_model(served):
    for path, body in WAYS.items():
        answer = httpx.post(served.url + path, json={**body, "model": "c"})
        assert answer.status_code == 404
        assert "this server has a, file-a, b, file-b" in answer.text


def test_a_bad_request_loads_nothing(paths):
    with serve_all(lambda: models(paths)) as served:
        body = {"prompt": "ab", "temperature": -1, "model": "b"}
        assert httpx.post(f"{served.url}/v1/completions", json=body).status_code == 400
        post(served, "/tokenize", {"prompt": "ab", "model": "b"})
        assert loaded(served) == []


async def test_many_at_once_of_two_that_do_not_fit_together(paths, alone):
    expected = {
        (name, seed): alone[name].generate("ab", **{**SAMPLED, "seed": seed}).fingerprint
        for name in NAMES for seed in range(6)
    }  # fmt: skip
    with serve_all(lambda: models(paths, 1)) as served:

        async def ask(client, name, seed):
            body = {"prompt": "ab", "model": name, **SAMPLED, "seed": seed}
            answer = await client.post(f"{served.url}/v1/completions", json=body)
            return fingerprint(answer.json())

        async with httpx.AsyncClient(timeout=60) as client:
            found = await asyncio.gather(*(ask(client, *key) for key in expected))
        assert found == list(expected.values())


def test_a_file_that_is_gone_is_told_and_the_others_are_served(paths, tmp_path):
    lost = write_tiny_llama(tmp_path / "lost.gguf", context=512)
    with serve_all(lambda: models({**paths, "lost": lost}, 1)) as served:
        lost.unlink()
        body = {"prompt": "ab", **SAMPLED}
        answer = httpx.post(f"{served.url}/v1/completions", json={**body, "model": "lost"})
        assert answer.status_code == 503
        error = answer.json()["error"]
        assert (error["code"], error["param"]) == ("model_not_loaded", "model")
        assert error["message"].startswith("lost could not be loaded: ")
        assert str(tmp_path) not in error["message"]
        post(served, "/v1/completions", {**body, "model": "b"})


def test_a_file_that_is_cut_in_its_load_is_told_while_a_text_of_another_goes_on(
    paths, alone, tmp_path, monkeypatch
):
    cut = write_tiny_llama(tmp_path / "cut.gguf", context=512)
    load, begun = LoadedModel.load, Event()

    def held(model, on_progress):
        def hear(done):
            if model.path == cut:
                os.truncate(cut, 1000)
                assert begun.wait(300)
            on_progress(done)

        load(model, hear)

    monkeypatch.setattr(LoadedModel, "load", held)
    body = {"prompt": "ab", **SAMPLED, "max_tokens": 300}
    with serve_all(lambda: models({**paths, "cut": cut})) as served, ThreadPoolExecutor() as pool:
        url = f"{served.url}/v1/completions"
        lost = pool.submit(httpx.post, url, json={**body, "model": "cut"}, timeout=60)
        with httpx.stream("POST", url, json={**body, "model": "b", "stream": True}) as text:
            lines = text.iter_lines()
            events = [next(lines)]
            begun.set()
            answer = lost.result()
            events += lines
    assert answer.status_code == 503
    assert answer.json()["error"]["message"] == (
        "cut could not be loaded: cut: the file changed or was cut while it was read; copy it again"
    )
    [last] = [json.loads(line[6:]) for line in events if '"finish_reason":"length"' in line]
    expected = alone["b"].generate("ab", **SAMPLED | {"max_tokens": 300})
    assert fingerprint(last) == expected.fingerprint


# -- how long they stay -----------------------------------------------------------------------


GENERATE = {"prompt": "ab", "stream": False, "options": {"num_predict": 2}}


def wait_until_unloaded(served):
    """Unloading is seen a moment after the answer that it waited for."""
    wait_until(lambda: loaded(served) == [])


def test_keep_alive_says_how_long_a_model_stays(paths):
    with serve_all(lambda: models(paths, idle_s=300)) as served:
        for path, body in {
            "/api/generate": GENERATE,
            "/api/chat": {"messages": MESSAGES, "stream": False, "options": {"num_predict": 2}},
            "/api/embed": {"input": "ab"}, "/api/embeddings": {"prompt": "ab"},
        }.items():  # fmt: skip
            first = post(served, path, body | {"model": "b"})
            if "load_duration" in first:
                assert first["load_duration"] > 0
            assert loaded(served) == ["b:latest"]
            second = post(served, path, body | {"model": "b", "keep_alive": 0})
            assert second.get("load_duration", 0) == 0
            wait_until_unloaded(served)
        post(served, "/api/generate", GENERATE | {"keep_alive": "1h"})
        [running] = get(served, "/api/ps")["models"]
        expires = datetime.fromisoformat(running["expires_at"].replace("Z", "+00:00"))
        assert 3500 < (expires - datetime.now(UTC)).total_seconds() < 3600
        post(served, "/api/generate", GENERATE)
        [running] = get(served, "/api/ps")["models"]
        expires = datetime.fromisoformat(running["expires_at"].replace("Z", "+00:00"))
        assert 200 < (expires - datetime.now(UTC)).total_seconds() < 300
        post(served, "/api/generate", GENERATE | {"keep_alive": -1})
        [running] = get(served, "/api/ps")["models"]
        assert running["expires_at"].startswith("2318")


def test_a_request_for_nothing_loads_and_unloads(paths):
    with serve_all(lambda: models(paths)) as served:
        assert post(served, "/api/generate", {"model": "b"})["done_reason"] == "load"
        assert loaded(served) == ["b:latest"]
        nothing = {"model": "b", "messages": [], "keep_alive": "0s"}
        assert post(served, "/api/chat", nothing)["done_reason"] == "unload"
        wait_until_unloaded(served)
        assert post(served, "/api/chat", nothing)["done_reason"] == "unload"
        assert loaded(served) == []
        post(served, "/v1/completions", {"model": "b", "prompt": "ab", **SAMPLED})
        assert loaded(served) == ["b:latest"]  # it was gone, so that nothing was to be done


def test_what_a_request_says_goes_before_what_is_usual(paths):
    with serve_all(lambda: models(paths, idle_s=0)) as served:
        post(served, "/api/generate", GENERATE)
        wait_until_unloaded(served)
        post(served, "/api/generate", GENERATE | {"keep_alive": "5m"})
        assert loaded(served) == ["a:latest"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(5, 5), (0, 0), (-1, -1), ("5m", 300), ("1h30m", 5400), ("1.5s", 1.5), ("-1m", -60),
     ("300", 300), ("0", 0), ("100ms", 0.1)],
)  # fmt: skip
def test_a_time_is_read_as_ollama_reads_it(text, seconds):
    assert seconds_of(text) == pytest.approx(seconds)


def test_what_is_no_time_is_refused(paths):
    with serve_all(lambda: models(paths)) as served:
        answer = httpx.post(f"{served.url}/api/generate", json=GENERATE | {"keep_alive": "soon"})
        assert answer.status_code == 400
        assert answer.json()["error"].startswith("keep_alive must be seconds")


# -- one model, as ever --------------------------------------------------------------------------


def test_one_model_is_served_as_ever(tiny):
    assert loaded(tiny) == [f"{tiny.service.names.first}:latest"]
    post(tiny, "/api/generate", GENERATE | {"keep_alive": 0})
    post(tiny, "/api/generate", {"keep_alive": "soon"})
    [running] = get(tiny, "/api/ps")["models"]
    assert running["expires_at"] == "2318-01-01T00:00:00Z"
    assert "loaded" not in get(tiny, "/v1/models")["data"][0]
    assert "models" not in get(tiny, "/page/about")
    page = httpx.get(f"{tiny.url}/metrics").text
    assert "cutaway_model_loaded" not in page
    assert "\ncutaway_requests_running 0.0\n" in page


# -- adapters --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def loras(paths, tmp_path_factory):
    """One for each model: those of each other would fit, too."""
    folder = tmp_path_factory.mktemp("adapters")
    called = dict(zip(NAMES, ("poet", "clerk"), strict=True))
    return {
        model: {name: adapter_of(paths[model], folder / f"{name}.gguf", seed=i)}
        for i, (model, name) in enumerate(called.items())
    }


@pytest.mark.parametrize("limit", [None, 1], ids=["both", "one at a time"])
def test_each_model_has_its_own_adapters_whenever_it_comes(paths, loras, limit):
    """They go with it, and are there again with it."""
    expected = {}
    for model, named in loras.items():
        for name, lora in named.items():
            with LLM(paths[model], lora=lora, **SETUP, progress=False) as llm:
                done = llm.generate("ab", **SAMPLED)
                vector = llm.embed("ab").vectors[0].astype(float).tolist()
                expected[name] = done.fingerprint, llm.model.system_fingerprint, vector
    with serve_all(lambda: models(paths, limit, adapters=loras)) as served:
        data = get(served, "/v1/models")["data"]
        parents = {one["id"]: one.get("parent") for one in data}
        assert {name: parents[name] for name in expected} == {"poet": "a", "clerk": "b"}
        for _ in range(2):
            for name, (fingerprint_, system, vector) in expected.items():
                body = {"model": name, "prompt": "ab", **SAMPLED}
                answer = post(served, "/v1/completions", body)
                assert (fingerprint(answer), answer["system_fingerprint"]) == (fingerprint_, system)
                found = post(served, "/v1/embeddings", {"model": f"{name}:latest", "input": "ab"})
                assert found["data"][0]["embedding"] == vector
                post(served, "/v1/fill", {"model": name, "text": "a [MASK]"})
        assert len(loaded(served)) == (limit or 2)


async def test_two_adapters_of_one_name_are_refused(paths, loras):
    both = models(paths, adapters=dict.fromkeys(NAMES, loras["a"]))
    try:
        with pytest.raises(InputError, match="poet is the name of a model or of another"):
            create_app(both)
    finally:
        for llm in both.values():
            await llm.aclose()


def test_no_load_makes_the_tables_of_a_vocabulary(paths):
    """It would hold the interpreter, and with it all other texts: they are there from the start."""
    made = models(paths)
    with serve_all(lambda: made) as served:
        tables = {name: vars(llm.model.grammars).get("tokenizer") for name, llm in made.items()}
        assert all(tables.values()) and not any(llm.model.is_loaded for llm in made.values())
        for name in made:
            post(served, "/v1/completions", {"model": name, "prompt": "ab", "regex": "[ab]+"})
        assert tables == {name: llm.model.grammars.tokenizer for name, llm in made.items()}
