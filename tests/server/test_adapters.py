"""Adapters over HTTP: each is a model of its own name, on one engine."""

import json

import httpx
import pytest

from cutaway import LLM, AsyncLLM
from cutaway.errors import InputError
from cutaway.server.app import create_app
from cutaway.server.http.settings import Settings
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
    with serve(llm, Settings(names=["base"]), piped=request.param) as made:
        yield made


@pytest.fixture(scope="module")
def alone(tiny_path, adapters):
    with LLM(tiny_path, lora=adapters["poet"], threads=1) as llm:
        yield llm


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


def test_vectors_and_scores_are_the_adapter_s(served, alone):
    answer = post(served, "/v1/embeddings", model="poet", input="ab ba").json()
    assert answer["data"][0]["embedding"] == alone.embed("ab ba").vectors[0].astype(float).tolist()
    asked = {"text_1": "ab", "text_2": ["a", "b"]}
    theirs, plain = (post(served, "/v1/score", model=m, **asked).json() for m in ("poet", "base"))
    assert theirs["system_fingerprint"] == alone.model.system_fingerprint
    assert theirs["data"] != plain["data"]
    one, two = alone.score("ab", ["a", "b"])
    assert [each["score"] for each in theirs["data"]] == [sum(one.logprobs), sum(two.logprobs)]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/fill", {"text": "a [MASK]"}),
        ("/v1/inside", {"prompt": "ab", "generated": [5], "step": 0}),
        ("/v1/completions", {"prompt": "ab", "suffix": "ba"}),
    ],
)
def test_what_is_of_the_model_itself_refuses_an_adapter_s_name(served, path, fields):
    answer = post(served, path, model="poet", **fields)
    error = answer.json()["error"]
    said = error if isinstance(error, str) else error["message"]
    assert answer.status_code == 400
    assert said.startswith("model: 'poet' is an adapter")


def test_another_name_is_refused_with_all_there_are(served):
    answer = post(served, "/v1/completions", model="cook", prompt="ab")
    assert answer.status_code == 404
    assert "base, tiny, poet, clerk" in answer.json()["error"]["message"]
    answer = post(served, "/v1/completions", prompt="ab", adapter="poet")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "adapter")


def test_an_adapter_cannot_be_called_as_the_model_is(tiny_path, adapters):
    with LLM(tiny_path, adapters={"base": adapters["poet"]}) as llm:
        model = AsyncLLM(llm)
        with pytest.raises(InputError, match="base is the name of the model"):
            create_app(model, Settings(names=["base"]))
        model.close()


def test_an_adapter_for_all_requests_is_loaded_with_the_model(tiny_path, adapters):
    with LLM(tiny_path, adapters=adapters) as llm, pytest.raises(InputError, match="as lora"):
        AsyncLLM(llm, adapter="poet")


def test_scores_and_decisions_are_those_of_the_adapter(served, alone):
    answers = ["b", " ab"]
    body = {"text_1": "ab", "text_2": answers}
    poet, base = (
        [one["score"] for one in post(served, "/v1/score", model=name, **body).json()["data"]]
        for name in ("poet", "base")
    )
    assert poet == [one.total for one in alone.score("ab", answers)]
    assert poet != base
    question = {"type": "predicate", "instructions": "b?"}
    poet, base = (
        post(served, "/v1/decisions", model=name, input="a", questions=[question]).json()
        for name in ("poet", "base")
    )
    assert poet["answers"] != base["answers"]
    assert poet["cutaway"]["system_fingerprint"] == alone.model.system_fingerprint


def test_what_is_read_by_a_model_with_an_adapter_for_all_is_its_own(tiny_path, adapters):
    with LLM(tiny_path, lora=adapters["poet"], threads=1) as llm:
        score, vector = llm.score("ab", ["b"])[0].total, llm.embed("ab").vectors[0].tolist()
    with serve(LLM(tiny_path, lora=adapters["poet"], threads=1)) as served:
        answer = post(served, "/v1/score", text_1="ab", text_2="b").json()
        assert answer["data"][0]["score"] == score
        answer = post(served, "/v1/embeddings", input="ab").json()
        assert answer["data"][0]["embedding"] == vector
