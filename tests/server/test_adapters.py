"""Adapters over HTTP: each is a model of its own name, on one engine; some come and go."""

import json
import threading

import httpx
import pytest

from cutaway import LLM, AsyncLLM, InputError
from cutaway.server.app import create_app
from cutaway.server.http.settings import ServerSettings
from cutaway.trace import Trace
from support.adapters import adapter_of
from support.served import serve

HOW = {"max_tokens": 8, "seed": 5, "ignore_eos": True}
SAID = [{"role": "user", "content": "ab"}]


@pytest.fixture(scope="module")
def adapters(tiny_path, tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters")
    names = {"poet": 1, "clerk": 2}
    return {n: adapter_of(tiny_path, folder / f"{n}.gguf", seed=s) for n, s in names.items()}


@pytest.fixture(scope="module", params=[False, True], ids=["here", "without weights"])
def served(tiny_path, adapters, request):
    llm = LLM(tiny_path, adapters=adapters, threads=1)
    with serve(llm, ServerSettings(names=["base"]), piped=request.param) as made:
        yield made


@pytest.fixture(scope="module")
def alone(tiny_path, adapters):
    with LLM(tiny_path, lora=adapters["poet"], threads=1) as llm:
        yield llm


@pytest.fixture(scope="module")
def for_all(tiny_path, adapters):
    with serve(
        LLM(tiny_path, lora=adapters["poet"], threads=1), ServerSettings(names=["base"])
    ) as made:
        yield made


def post(served, path, **fields):
    return httpx.post(served.url + path, json=fields, timeout=60)


def test_each_is_a_model_of_its_own_name(served):
    data = httpx.get(f"{served.url}/v1/models").json()["data"]
    assert [(one["id"], one["root"], one.get("parent")) for one in data] == [
        ("base", "tiny", None), ("tiny", "tiny", None),
        ("poet", "tiny+poet", "base"), ("clerk", "tiny+clerk", "base"),
    ]  # fmt: skip
    assert httpx.get(f"{served.url}/v1/models/poet").json() == data[2]
    tags = httpx.get(f"{served.url}/api/tags").json()["models"]
    assert [one["details"]["parent_model"] for one in tags] == ["", "", "base", "base"]
    assert len({one["digest"] for one in tags}) == 3
    assert (
        post(served, "/api/show", model="poet").json()["modelfile"] == "FROM base\nADAPTER poet\n"
    )
    about = httpx.get(f"{served.url}/page/about", params={"model": "poet"}).json()
    assert (about["model"], about["models"]) == ("poet", ["base", "poet", "clerk"])
    assert about["weights"] == tags[2]["digest"]


def test_the_bits_are_those_of_a_model_that_was_loaded_with_it(served, alone):
    found = {}
    for name in ("poet", "base", "clerk", "poet"):
        answer = post(served, "/v1/completions", model=name, prompt="ab ba", **HOW).json()
        found[name] = answer["choices"][0]["cutaway"]["fingerprint"], answer["system_fingerprint"]
        assert answer["model"] == name
    done = alone.generate("ab ba", **HOW)
    assert found["poet"] == (done.fingerprint, alone.model.system_fingerprint)
    assert len({one for pair in found.values() for one in pair}) == 6


def test_in_every_form_of_request(served, alone):
    greedy = {"max_tokens": 8, "temperature": 0}
    done = alone.chat(SAID, **greedy)
    how = {"model": "poet", "messages": SAID}
    chat = post(served, "/v1/chat/completions", **how, **greedy).json()
    assert chat["choices"][0]["message"]["content"] == done.text
    said = post(served, "/v1/messages", **how, **greedy).json()
    assert [block["text"] for block in said["content"]] == [done.text]
    options = {"num_predict": 8, "temperature": 0}
    told = post(served, "/api/chat", **how, stream=False, options=options).json()
    assert (told["model"], told["message"]["content"]) == ("poet", done.text)
    answer = post(served, "/v1/responses", model="poet", input="ab", max_output_tokens=8).json()
    fingerprints = {chat["system_fingerprint"], said["system_fingerprint"]}
    assert fingerprints | {answer["system_fingerprint"]} == {alone.model.system_fingerprint}


def test_a_trace_says_so(served, alone):
    answer = post(served, "/v1/completions", model="poet", prompt="ab", trace=True, **HOW).json()
    lines = "".join(f"{json.dumps(x)}\n" for x in answer["choices"][0]["cutaway"]["trace"])
    head = Trace.parse(lines.encode()).head
    assert (head.model, head.weights) == ("tiny+poet", alone.model.identity.weights)


BY_NAME = {
    "/v1/fill": {"text": "a [MASK] b"},
    "/v1/inside": {"prompt": "ab", "generated": [5, 6], "step": 1},
    "/v1/inside/ablate": {"prompt": "ab ba", "generated": [5], "step": 0},
    "/v1/completions": {"prompt": "ab", "suffix": "ba", "seed": 1, "max_tokens": 6},
    "/v1/embeddings": {"input": ["ab", "b"]},
    "/v1/score": {"text_1": "ab", "text_2": ["a", "b"]},
    "/v1/rerank": {"query": "ab", "documents": ["a", "b"]},
    "/v1/decisions": {
        "input": "a", "questions": [{"type": "predicate", "instructions": "b?"}],
    },
    "/api/embed": {"input": "ab"},
    "/api/embeddings": {"prompt": "ab"},
    "/api/generate": {"prompt": "ab", "stream": False, "options": {"seed": 1, "num_predict": 6}},
    "/v1/messages": {"messages": SAID, "max_tokens": 6, "temperature": 0},
    "/page/near": {"first": "ab ba", "second": "b"},
    "/page/practice": {"inside": {"prompt": "ab", "generated": [5, 6], "step": 1}},
}  # fmt: skip
CHANCE = {
    "id", "created", "created_at", "model", "total_duration", "load_duration", "eval_duration",
    "prompt_eval_duration", "usage",
}  # fmt: skip
BITS = {"fingerprint", "system_fingerprint"}


def told(answer):
    """But what differs from one time to the next."""
    if isinstance(answer, list):
        return [*map(told, answer)]
    if isinstance(answer, dict):
        kept = {key: told(value) for key, value in answer.items() if key not in CHANCE}
        own = kept.get("cutaway", {})
        return kept | {"cutaway": {key: own[key] for key in own.keys() & BITS}}
    return answer


@pytest.mark.parametrize("path", BY_NAME)
def test_wherever_a_model_is_named(served, for_all, path):
    answers = [
        post(server, path, model=name, **BY_NAME[path])
        for server, name in ((served, "poet"), (for_all, "base"), (served, "base"))
    ]
    assert {answer.status_code for answer in answers} == {200}
    by_name, expected, plain = (told(answer.json()) for answer in answers)
    assert by_name == expected != plain


def test_another_name_is_refused_with_all_there_are(served):
    answer = post(served, "/v1/completions", model="cook", prompt="ab")
    assert answer.status_code == 404
    assert "base, tiny, poet, clerk" in answer.json()["error"]["message"]
    answer = post(served, "/v1/completions", prompt="ab", adapter="poet")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "adapter")


def test_an_adapter_cannot_be_called_as_the_model_is(tiny_path, adapters):
    with LLM(tiny_path, adapters={"base": adapters["poet"]}) as llm:
        model = AsyncLLM(llm)
        with pytest.raises(InputError, match="base is the name of a model or of another adapter"):
            create_app(model, ServerSettings(names=["base"]))
        model.close()


def test_an_adapter_for_all_requests_is_loaded_with_the_model(tiny_path, adapters):
    with LLM(tiny_path, adapters=adapters) as llm, pytest.raises(InputError, match="as lora"):
        AsyncLLM(llm, adapter="poet")


def test_what_is_read_by_a_model_with_an_adapter_for_all_is_its_own(tiny_path, adapters):
    with LLM(tiny_path, lora=adapters["poet"], threads=1) as llm:
        score, vector = llm.score("ab", ["b"])[0].total, llm.embed("ab").vectors[0].tolist()
    with serve(LLM(tiny_path, lora=adapters["poet"], threads=1)) as served:
        answer = post(served, "/v1/score", text_1="ab", text_2="b").json()
        assert answer["data"][0]["score"] == score
        answer = post(served, "/v1/embeddings", input="ab").json()
        assert answer["data"][0]["embedding"] == vector


# -- loaded and unloaded while a server runs; other texts keep their bits ----------------------


LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
SEEDED = {"max_tokens": 8, "seed": 5, "ignore_eos": True}
LONG = {"prompt": "ba ab", "max_tokens": 400, "seed": 7, "ignore_eos": True}


@pytest.fixture(scope="module")
def loadable(tiny_path, tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters")
    names = {"poet": 1, "clerk": 2}
    return {n: adapter_of(tiny_path, folder / f"{n}.gguf", seed=s) for n, s in names.items()}


@pytest.fixture
def open_server(tiny_path):
    settings = ServerSettings(names=["base"], allow_adapters=True)
    with serve(LLM(tiny_path, threads=1), settings) as made:
        yield made


def post_to(open_server, path, **fields):
    return httpx.post(open_server.url + path, json=fields, timeout=60)


def error(answer, status):
    assert answer.status_code == status, answer.text
    return answer.json()["error"]["message"]


def bits(open_server, **fields):
    answer = post_to(open_server, "/v1/completions", **fields)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["cutaway"]["fingerprint"]


def listed(open_server):
    return [one["id"] for one in httpx.get(f"{open_server.url}/v1/models").json()["data"]]


def test_it_is_loaded_listed_used_and_unloaded(open_server, tiny_path, loadable):
    with LLM(tiny_path, lora=loadable["poet"], threads=1) as alone:
        expected = alone.generate("ab ba", **SEEDED).fingerprint
    for _ in range(2):  # the second finds its prefix in the cache
        answer = post_to(
            open_server,
            LOAD,
            lora_name="poet",
            lora_path=str(loadable["poet"]),
        )
        assert answer.json() == {"adapters": ["poet"]}
        assert listed(open_server) == ["base", "tiny", "poet"]
        assert (
            bits(
                open_server,
                model="poet",
                prompt="ab ba",
                **SEEDED,
            )
            == expected
        )
        assert post_to(open_server, UNLOAD, lora_name="poet").json() == {"adapters": []}
        assert "model 'poet' is not here" in error(
            post_to(open_server, "/v1/completions", model="poet", prompt="a"),
            404,
        )
    assert listed(open_server) == ["base", "tiny"]


def test_texts_that_run_keep_their_bits(open_server, loadable):
    expected, found = bits(open_server, **LONG), []
    texts = [
        threading.Thread(target=lambda: found.append(bits(open_server, **LONG))) for _ in range(3)
    ]
    for text in texts:
        text.start()
    for name in ("poet", "clerk"):
        assert post_to(
            open_server,
            LOAD,
            lora_name=name,
            lora_path=str(loadable[name]),
        ).is_success
        bits(
            open_server,
            model=name,
            prompt="ab ba",
            **SEEDED,
        )
        assert post_to(open_server, UNLOAD, lora_name=name).is_success
    for text in texts:
        text.join()
    assert found == [expected] * 3 and bits(open_server, **LONG) == expected


def test_two_names_of_one_file_are_unloaded_apart(open_server, loadable):
    for name in ("one", "other"):
        assert post_to(
            open_server,
            LOAD,
            lora_name=name,
            lora_path=str(loadable["poet"]),
        ).is_success
    expected = bits(
        open_server,
        model="one",
        prompt="ab ba",
        **SEEDED,
    )
    assert post_to(open_server, UNLOAD, lora_name="one").json() == {"adapters": ["other"]}
    assert (
        bits(
            open_server,
            model="other",
            prompt="ab ba",
            **SEEDED,
        )
        == expected
    )


def test_it_stays_while_a_text_is_written_with_it(tiny_path, loadable):
    with LLM(tiny_path, threads=1, progress=False) as llm:
        llm.load_adapter("poet", loadable["poet"])
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
            view.load_adapter("a", loadable["poet"])


async def test_asyncio(tiny_path, loadable):
    async with AsyncLLM(LLM(tiny_path, threads=1, progress=False)) as llm:
        before = await llm.generate("ab ba", **SEEDED)
        await llm.load_adapter("poet", loadable["poet"])
        with_it = await llm.generate("ab ba", adapter="poet", **SEEDED)
        assert with_it.fingerprint != before.fingerprint
        await llm.unload_adapter("poet")
        assert (await llm.generate("ab ba", **SEEDED)).fingerprint == before.fingerprint


def test_what_cannot_be_is_refused(open_server, loadable, tiny_path):
    path = str(loadable["poet"])
    assert post_to(open_server, LOAD, lora_name="poet", lora_path=path).is_success
    for fields, status, said in [
        ({"lora_name": "poet", "lora_path": path}, 400, "the name of a model or of an adapter"),
        ({"lora_name": "base", "lora_path": path}, 400, "the name of a model or of an adapter"),
        ({"lora_name": "a", "lora_path": f"{path}.no"}, 400, "a.gguf"),
        ({"lora_name": "a", "lora_path": str(tiny_path)}, 400, "general.type"),
        ({"lora_name": "", "lora_path": path}, 400, "1 to 200 characters"),
        ({"lora_name": "a", "lora_path": path, "load_inplace": True}, 400, "unload the earlier"),
        ({"lora_name": "a", "lora_path": path, "x": 1}, 400, "unknown field 'x'"),
    ]:
        assert said.replace("a.gguf", "poet.gguf.no") in error(
            post_to(open_server, LOAD, **fields), status
        )
    assert "not here" in error(post_to(open_server, UNLOAD, lora_name="a"), 404)
    assert "is a model" in error(
        post_to(open_server, UNLOAD, lora_name="base"),
        400,
    )


@pytest.mark.parametrize("path", ["a" * 5000, "~nobody-here/a", "a\0b", "a" * 5000 + ":2"])
def test_a_path_that_can_be_none_is_a_sentence(open_server, path):
    refused = error(
        post_to(open_server, LOAD, lora_name="x", lora_path=path),
        400,
    )
    assert "there is no file or folder" in refused
    assert len(refused) < 400


def test_it_is_off_unless_the_flag_is_given(tiny_path, loadable):
    with serve(LLM(tiny_path, threads=1)) as open_server:
        for path in (LOAD, UNLOAD):
            fields = {"lora_path": str(loadable["poet"])} if path == LOAD else {}
            answer = post_to(open_server, path, lora_name="tiny", **fields)
            assert "--allow-adapters" in error(answer, 404)
