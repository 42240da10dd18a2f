"""Adapters that are loaded and unloaded while a server runs; other texts keep their bits."""

import threading

import httpx
import pytest

from cutaway import LLM, AsyncLLM, InputError
from cutaway.server.http.settings import ServerSettings
from support.adapters import adapter_of
from support.served import serve

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
HOW = {"max_tokens": 8, "seed": 5, "ignore_eos": True}
LONG = {"prompt": "ba ab", "max_tokens": 400, "seed": 7, "ignore_eos": True}


@pytest.fixture(scope="module")
def adapters(tiny_path, tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters")
    names = {"poet": 1, "clerk": 2}
    return {n: adapter_of(tiny_path, folder / f"{n}.gguf", seed=s) for n, s in names.items()}


@pytest.fixture
def served(tiny_path):
    settings = ServerSettings(names=["base"], allow_adapters=True)
    with serve(LLM(tiny_path, threads=1), settings) as made:
        yield made


def post(served, path, **fields):
    return httpx.post(served.url + path, json=fields, timeout=60)


def error(answer, status):
    assert answer.status_code == status, answer.text
    return answer.json()["error"]["message"]


def bits(served, **fields):
    answer = post(served, "/v1/completions", **fields)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["cutaway"]["fingerprint"]


def listed(served):
    return [one["id"] for one in httpx.get(f"{served.url}/v1/models").json()["data"]]


def test_it_is_loaded_listed_used_and_unloaded(served, tiny_path, adapters):
    with LLM(tiny_path, lora=adapters["poet"], threads=1) as alone:
        expected = alone.generate("ab ba", **HOW).fingerprint
    for _ in range(2):  # the second finds its prefix in the cache
        answer = post(served, LOAD, lora_name="poet", lora_path=str(adapters["poet"]))
        assert answer.json() == {"adapters": ["poet"]}
        assert listed(served) == ["base", "tiny", "poet"]
        assert bits(served, model="poet", prompt="ab ba", **HOW) == expected
        assert post(served, UNLOAD, lora_name="poet").json() == {"adapters": []}
        assert "model 'poet' is not here" in error(
            post(served, "/v1/completions", model="poet", prompt="a"), 404
        )
    assert listed(served) == ["base", "tiny"]


def test_texts_that_run_keep_their_bits(served, adapters):
    expected, found = bits(served, **LONG), []
    texts = [threading.Thread(target=lambda: found.append(bits(served, **LONG))) for _ in range(3)]
    for text in texts:
        text.start()
    for name in ("poet", "clerk"):
        assert post(served, LOAD, lora_name=name, lora_path=str(adapters[name])).is_success
        bits(served, model=name, prompt="ab ba", **HOW)
        assert post(served, UNLOAD, lora_name=name).is_success
    for text in texts:
        text.join()
    assert found == [expected] * 3 and bits(served, **LONG) == expected


def test_two_names_of_one_file_are_unloaded_apart(served, adapters):
    for name in ("one", "other"):
        assert post(served, LOAD, lora_name=name, lora_path=str(adapters["poet"])).is_success
    expected = bits(served, model="one", prompt="ab ba", **HOW)
    assert post(served, UNLOAD, lora_name="one").json() == {"adapters": ["other"]}
    assert bits(served, model="other", prompt="ab ba", **HOW) == expected


def test_it_stays_while_a_text_is_written_with_it(tiny_path, adapters):
    with LLM(tiny_path, threads=1, progress=False) as llm:
        llm.load_adapter("poet", adapters["poet"])
        with llm.stream("ab", adapter="poet", max_tokens=300, ignore_eos=True) as text:
            next(text)
            with pytest.raises(InputError, match="1 texts are being written with poet"):
                llm.unload_adapter("poet")
            assert len([*text]) == 299
        view = llm.with_adapter("poet")
        llm.unload_adapter("poet")
        with pytest.raises(InputError, match="unknown adapter 'poet'"):
            llm.generate("ab", adapter="poet")
        with pytest.raises(InputError, match="adapter: it is not loaded"):
            view.generate("ab")
        with pytest.raises(InputError, match="has one already"):
            view.load_adapter("a", adapters["poet"])


async def test_asyncio(tiny_path, adapters):
    async with AsyncLLM(LLM(tiny_path, threads=1, progress=False)) as llm:
        before = await llm.generate("ab ba", **HOW)
        await llm.load_adapter("poet", adapters["poet"])
        with_it = await llm.generate("ab ba", adapter="poet", **HOW)
        assert with_it.fingerprint != before.fingerprint
        await llm.unload_adapter("poet")
        assert (await llm.generate("ab ba", **HOW)).fingerprint == before.fingerprint


def test_what_cannot_be_is_refused(served, adapters, tiny_path):
    path = str(adapters["poet"])
    assert post(served, LOAD, lora_name="poet", lora_path=path).is_success
    for fields, status, said in [
        ({"lora_name": "poet", "lora_path": path}, 400, "the name of a model or of an adapter"),
        ({"lora_name": "base", "lora_path": path}, 400, "the name of a model or of an adapter"),
        ({"lora_name": "a", "lora_path": f"{path}.no"}, 400, "a.gguf"),
        ({"lora_name": "a", "lora_path": str(tiny_path)}, 400, "general.type"),
        ({"lora_name": "", "lora_path": path}, 400, "1 to 200 characters"),
        ({"lora_name": "a", "lora_path": path, "load_inplace": True}, 400, "unload the earlier"),
        ({"lora_name": "a", "lora_path": path, "x": 1}, 400, "unknown field 'x'"),
    ]:
        assert said.replace("a.gguf", "poet.gguf.no") in error(post(served, LOAD, **fields), status)
    assert "not here" in error(post(served, UNLOAD, lora_name="a"), 404)
    assert "is a model" in error(post(served, UNLOAD, lora_name="base"), 400)


@pytest.mark.parametrize("path", ["a" * 5000, "~nobody-here/a", "a\0b", "a" * 5000 + ":2"])
def test_a_path_that_can_be_none_is_a_sentence(served, path):
    refused = error(post(served, LOAD, lora_name="x", lora_path=path), 400)
    assert "there is no file or folder" in refused
    assert len(refused) < 400


def test_it_is_off_unless_the_flag_is_given(tiny_path, adapters):
    with serve(LLM(tiny_path, threads=1)) as served:
        for path in (LOAD, UNLOAD):
            fields = {"lora_path": str(adapters["poet"])} if path == LOAD else {}
            answer = post(served, path, lora_name="tiny", **fields)
            assert "--allow-adapters" in error(answer, 404)
