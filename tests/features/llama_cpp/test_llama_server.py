"""llama-server's forms: a gap in a file, templates, properties, slots, loading by request."""

import json
from contextlib import contextmanager

import httpx
import pytest

from cutaway import LLM
from cutaway.compute.loading.model import LoadedModel
from cutaway.compute.loading.setup import Setup
from cutaway.server.model_cache import ModelCache
from cutaway.server.on_demand import OnDemandLLM
from support.random_llama import write_tiny_llama
from support.served import TEMPLATE, serve, serve_all

PRE, SUF, MID, REPOSITORY, FILE = range(248, 253)
MARKS = {"pre": PRE, "suf": SUF, "mid": MID}
PROJECT = {"rep": REPOSITORY, "sep": FILE}
GAP = {"input_prefix": "ab", "input_suffix": " ba"}
ASKED = {**GAP, "seed": 5, "n_predict": 12}
OURS = {"seed": 5, "max_tokens": 12}
SAID = [{"role": "system", "content": "a"}, {"role": "user", "content": "<s>b"}]


def model_with(folder, marks):
    metadata = {f"tokenizer.ggml.fim_{name}_token_id": i for name, i in marks.items()}
    return write_tiny_llama(folder / "tiny.gguf", metadata=metadata, context=512)


@contextmanager
def client_of(served):
    with httpx.Client(base_url=served.url, timeout=60) as client:
        yield client


@pytest.fixture(scope="module", params=[MARKS, MARKS | PROJECT], ids=["a file", "a project"])
def trained(request, tmp_path_factory):
    """The client of a model that has tokens for a gap, the model, and whether for files, too."""
    path = model_with(tmp_path_factory.mktemp("gap"), request.param)
    with (
        serve(LLM(path, threads=1)) as served,
        client_of(served) as client,
        LLM(path, threads=1, progress=False) as alone,
    ):
        yield client, alone, FILE in request.param.values()


def good(answer):
    assert answer.status_code == 200, answer.text
    return answer.json()


# -- /infill --------------------------------------------------------------------------------------


def by_definition(llm, files, project, begun=""):
    """The prompt's ids, written down as llama-server's documentation has them."""

    def spelled(text):
        return llm.tokenizer.encode(text, goes_on=True)

    bos, *before = llm.tokenize("ab")
    laid = [bos]
    if project:
        laid += [REPOSITORY, *spelled("myproject\n")]
    for name, text in files:
        laid += [FILE, *spelled(f"{name}\n{text}")] if project else []
        laid += [] if project else spelled(f"\n\n--- snippet ---\n\n{text}")
    if project:
        laid += [FILE, *spelled("filename\n")]
    return [*laid, PRE, *before, SUF, *spelled(" ba"), MID, *spelled(begun)]


@pytest.mark.parametrize("begun", ["", "a"])
@pytest.mark.parametrize("files", [[], [("x.py", "one\n"), ("tmp", "two")]])
def test_a_gap_has_what_python_writes_after_the_same_prompt(trained, files, begun):
    client, alone, project = trained
    extra = [{"text": text} | ({"filename": name} if name != "tmp" else {}) for name, text in files]
    told = good(client.post("/infill", json={
        **ASKED, "input_extra": extra, "prompt": begun, "return_token_ids": True,
        "return_tokens": True,
    }))  # fmt: skip
    prompt = by_definition(alone, files, project, begun)
    assert told["prompt_token_ids"] == prompt
    expected = alone.generate(prompt, **OURS, stop_token_ids=[*alone.tokenizer.fim.ends])
    assert told["content"] == expected.text
    assert told["tokens"] == told["token_ids"] == list(expected.token_ids)
    assert told["cutaway"]["fingerprint"] == expected.fingerprint
    assert told["tokens_evaluated"] == len(prompt)
    assert told["tokens_predicted"] == len(expected.token_ids)
    assert (told["stop"], told["truncated"]) == (True, False)


def test_without_other_files_it_is_the_suffix_of_completions(trained):
    client, alone, project = trained
    if project:
        pytest.skip("a project's prompt has names in it")
    told = good(client.post("/infill", json=ASKED))
    assert told["content"] == alone.generate("ab", suffix=" ba", **OURS).text


def test_a_stream_says_what_the_whole_answer_says(trained):
    client, *_ = trained
    asked = {**ASKED, "n_probs": 2, "return_tokens": True}
    whole = good(client.post("/infill", json=asked))
    lines = client.post("/infill", json={**asked, "stream": True}).text.split("\n\n")
    *events, end = [json.loads(one.removeprefix("data: ")) for one in lines if one]
    assert lines[-1] == "" and not any(one["stop"] for one in events)
    assert "".join(one["content"] for one in events) == whole["content"]
    assert [i for one in events for i in one["tokens"]] == whole["tokens"]
    probable = [p for one in events for p in one.get("completion_probabilities", [])]
    assert probable == whole["completion_probabilities"]
    assert [len(one["top_logprobs"]) for one in probable] == [2] * len(probable)
    same = ("stop_type", "stopping_word", "tokens_predicted", "prompt", "generation_settings")
    assert {k: end[k] for k in same} == {k: whole[k] for k in same}
    assert end["content"] == "" and end["stop"]


@pytest.mark.parametrize(
    ("more", "kind", "word"),
    [
        ({"n_predict": 2, "ignore_eos": True}, "limit", ""),
        ({"logit_bias": {"100": 100}, "stop": ["aaa"]}, "word", "aaa"),
        ({"logit_bias": {str(PRE): 100}}, "eos", ""),
    ],
)
def test_why_it_ended_is_said(trained, more, kind, word):
    client, *_ = trained
    told = good(client.post("/infill", json=ASKED | more))
    assert (told["stop_type"], told["stopping_word"]) == (kind, word)


def test_what_an_editor_sends_is_read_and_what_has_no_effect_is_noted(trained):
    client, *_ = trained
    sent = {
        **ASKED, "id_slot": 0, "n_indent": 4, "samplers": ["top_k", "top_p", "infill"],
        "t_max_prompt_ms": 500, "t_max_predict_ms": 1000, "cache_prompt": True, "top_k": 40,
        "top_p": 0.9, "stop": [], "stream": False,
    }  # fmt: skip
    told = good(client.post("/infill", json=sent))
    notes = [note.partition(":")[0] for note in told["cutaway"]["notes"]]
    assert {"samplers", "n_indent", "t_max_prompt_ms", "t_max_predict_ms"} <= {*notes}
    assert good(client.post("/infill", json={**ASKED, "n_indent": 0}))["cutaway"]["notes"] == []


def test_only_the_fields_that_are_wanted_come(trained):
    client, *_ = trained
    wanted = ["content", "timings/prompt_n", "no_such", "content/none"]
    whole = good(client.post("/infill", json=ASKED))
    told = good(client.post("/infill", json={**ASKED, "response_fields": wanted}))
    assert told.keys() == {"content", "timings/prompt_n"}
    assert told["content"] == whole["content"]


def test_an_editor_can_have_a_prompt_read_before_it_asks(trained):
    client, *_ = trained
    long = {**GAP, "input_prefix": "a long text " * 12, "seed": 1}
    read = good(client.post("/infill", json={**long, "n_predict": 0, "response_fields": [""]}))
    assert read == {}
    told = good(client.post("/infill", json={**long, "n_predict": 1}))
    assert told["tokens_cached"] > 0
    assert told["timings"]["cache_n"] + told["timings"]["prompt_n"] == told["tokens_evaluated"]


REFUSED = [
    ("input_suffix", {"input_suffix": None}, "is missing"),
    ("input_extra[0].name", {"input_extra": [{"text": "", "name": "a"}]}, "unknown field"),
    ("max_tokens", {"max_tokens": 3}, "did you mean 'n_predict'"),
    ("n", {"n": 2}, "unknown field 'n'"),
    ("n_predict", {"n_predict": -3}, "max_tokens must be"),
    ("mirostat", {"mirostat": 2}, "is not supported"),
    ("repeat_penalty", {"repeat_penalty": 1.5, "repetition_penalty": 2.0}, "give one"),
    ("repeat_penalty", {"repeat_penalty": 0}, "between"),
]


@pytest.mark.parametrize(("param", "fields", "said"), REFUSED)
def test_what_cannot_be_is_refused_by_name(trained, param, fields, said):
    client, *_ = trained
    answer = client.post("/infill", json=ASKED | fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert said in answer.json()["error"]["message"]


def test_a_model_without_the_tokens_says_what_does_without(client):
    answer = client.post("/infill", json=ASKED)
    assert answer.status_code == 400
    assert "/v1/completions" in answer.json()["error"]["message"]


# -- templates, properties, slots -----------------------------------------------------------------


def test_a_conversation_has_the_prompt_that_is_answered(client, tiny_alone):
    told = good(client.post("/apply-template", json={"messages": SAID}))
    assert told == {"prompt": tiny_alone.template.render(SAID)}
    plain = [{"role": "user", "content": "b"}]
    prompt = good(client.post("/apply-template", json={"messages": plain}))["prompt"]
    ids = good(client.post("/tokenize", json={"prompt": prompt, "add_special_tokens": False}))
    asked = {"messages": plain}
    assert ids["tokens"] == good(client.post("/tokenize", json=asked))["tokens"]


def test_properties_are_the_model_s(client, tiny_alone):
    told = good(client.get("/props"))
    assert told["chat_template"] == tiny_alone.template.source
    assert told["default_generation_settings"]["n_ctx"] == 512
    assert told["default_generation_settings"]["params"]["top_p"] == 0.9
    assert (told["total_slots"], told["is_sleeping"]) == (64, False)
    assert "/" not in told["model_path"]
    assert client.get("/props", params={"model": "none"}).status_code == 404
    assert client.get("/props", params={"other": "a"}).status_code == 400


def test_a_slot_is_in_use_while_a_text_is_written(tiny_path):
    asked = {"prompt": "ab", "max_tokens": 400, "stream": True, "ignore_eos": True, "seed": 3}
    with serve(LLM(tiny_path, threads=1, max_num_seqs=1)) as served, client_of(served) as client:
        [idle] = good(client.get("/slots"))
        assert (idle["is_processing"], idle["n_ctx"]) == (False, 512)
        with client.stream("POST", "/v1/completions", json=asked) as stream:
            next(stream.iter_lines())
            busy = client.get("/slots", params={"fail_on_no_slot": 1})
            slots = good(client.get("/slots"))
        if busy.status_code == 503:  # unless it has been written before this was asked
            assert busy.json()["error"]["code"] == "no_slot"
        if slots[0]["is_processing"]:
            assert slots[0]["params"]["max_tokens"] == 400
            next_token = slots[0]["next_token"]
            assert next_token["n_decoded"] + next_token["n_remain"] == 400
        served.wait_until_free()
        assert good(client.get("/slots", params={"fail_on_no_slot": 1})) == [idle]


def test_slots_do_not_show_what_others_write(client, tiny):
    secret = {"prompt": "ab", "stop": ["secret"], "max_tokens": 400, "stream": True}
    with client.stream("POST", "/v1/completions", json=secret) as stream:
        next(stream.iter_lines())
        assert "secret" not in client.get("/slots").text


# -- loading --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """A server of two models, neither of them loaded."""
    folder, metadata = tmp_path_factory.mktemp("two"), {"tokenizer.chat_template": TEMPLATE}
    setup = Setup(context=64, kv_tokens=64, threads=1)

    def make():
        cache, llms = ModelCache(), {}
        for i, name in enumerate("ab"):
            path = write_tiny_llama(folder / f"{name}.gguf", seed=i, metadata=metadata)
            model = LoadedModel.open(path, setup, progress=False, weights=False)
            llms[name] = OnDemandLLM(model, cache)
        return llms

    with serve_all(make) as served, client_of(served) as client:
        yield client


def loaded(client):
    return {one["id"]: one["loaded"] for one in good(client.get("/v1/models"))["data"]}


def test_a_model_comes_and_goes_by_request(two):
    assert loaded(two) == {"a": False, "b": False}
    assert good(two.get("/props", params={"model": "b"}))["is_sleeping"]
    assert good(two.post("/models/load", json={"model": "b"})) == {"success": True}
    assert loaded(two) == {"a": False, "b": True}
    assert not good(two.get("/props", params={"model": "b"}))["is_sleeping"]
    for _ in range(2):  # nothing is to be done the second time
        assert good(two.post("/models/unload", json={"model": "b"})) == {"success": True}
    assert loaded(two) == {"a": False, "b": False}


def test_a_model_that_is_writing_ends_its_text_first(two):
    asked = {"model": "a", "prompt": "a", "max_tokens": 40, "ignore_eos": True, "stream": True}
    with two.stream("POST", "/v1/completions", json=asked) as stream:
        lines = stream.iter_lines()
        next(lines)
        assert good(two.post("/models/unload", json={"model": "a"})) == {"success": True}
        assert [*lines][-2] == "data: [DONE]"
    assert good(two.post("/models/load", json={"model": "a"}))["success"]


@pytest.mark.parametrize("path", ["/models/load", "/models/unload"])
def test_which_models_can_come_and_go_is_said(client, two, path):
    unknown = two.post(path, json={"model": "none"})
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (404, "model")
    own = good(client.get("/v1/models"))["data"][0]["id"]
    answer = client.post(path, json={"model": own})
    if path.endswith("/load"):
        assert good(answer) == {"success": True}
    else:
        assert "stays loaded" in answer.json()["error"]["message"]
    assert two.post(path, json={}).json()["error"]["param"] == "model"
