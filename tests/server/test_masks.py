"""Canvases over HTTP: the answers of Python, whole and streamed, and what is refused by name."""

import json
import re
from itertools import chain, groupby
from types import MappingProxyType

import httpx
import pytest

from cutaway import LLM
from cutaway.engine import Pass, Step
from cutaway.engine.canvas import RULES, Rule, most_computed
from cutaway.files import hub
from cutaway.files.weights import GGUFFile
from cutaway.files.weights.gguf_writer import write_gguf
from cutaway.server import limits
from cutaway.server.job import _is_shown
from support.served import serve

ASKED = {"seed": 1, "max_tokens": 12, "temperature": 1.0}
CHAT = [{"role": "user", "content": "ab"}]


@pytest.fixture(scope="module")
def served(tiny_diffusion_path):
    with serve(LLM(tiny_diffusion_path, threads=1, progress=False)) as served:
        yield served


@pytest.fixture(scope="module")
def alone(tiny_diffusion_path):
    return LLM(tiny_diffusion_path, threads=1, progress=False)


@pytest.fixture
def post(served):
    with httpx.Client(base_url=served.url, timeout=60) as client:

        def ask(path, **body):
            return client.post(path, json=body)

        yield ask


def events_of(answer):
    lines = [line for line in answer.text.split("\n\n") if line]
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


@pytest.mark.parametrize(
    "rule", [True, "llada", {"rule": "edit", "block": 4}, {"steps": 3, "order": "random"}]
)
def test_completions_reveal_as_python_does(post, alone, rule):
    answer = post("/v1/completions", prompt="ab", denoise=rule, **ASKED).json()
    expected = alone.generate("ab", denoise=rule, **ASKED)
    [choice] = answer["choices"]
    assert choice["text"] == expected.text
    assert choice["cutaway"]["fingerprint"] == expected.fingerprint
    rows = sum(made.rows for made in expected.passes)
    assert choice["cutaway"]["canvas"] == {"passes": len(expected.passes), "rows": rows}
    assert answer["usage"]["completion_tokens"] == 12
    assert answer["cutaway"]["params"]["denoise"] == expected.params["denoise"]


def test_what_is_in_force_gives_the_same_again(post):
    body = {"prompt": "ab", "denoise": {"rule": "factor", "block": 4}, "max_tokens": 12}
    first = post("/v1/completions", **body).json()
    said = first["cutaway"]["params"]
    again = post("/v1/completions", **body | {k: said[k] for k in ("denoise", "seed")}).json()
    assert again["choices"][0]["text"] == first["choices"][0]["text"]


def test_chats_and_responses_reveal_too(post, alone):
    expected = alone.chat(CHAT, denoise="margin", **ASKED)
    chat = post("/v1/chat/completions", messages=CHAT, denoise="margin", **ASKED).json()
    assert chat["choices"][0]["message"]["content"] == expected.text
    more = {"seed": 1, "temperature": 1.0, "max_output_tokens": 12, "denoise": "margin"}
    answer = post("/v1/responses", input="ab", **more).json()
    assert answer["output"][0]["content"][0]["text"] == expected.text
    assert answer["cutaway"]["canvas"]["passes"] == len(expected.passes)


def test_a_chat_without_a_length_is_a_canvas_of_the_usual_one(post):
    chat = post("/v1/chat/completions", messages=CHAT, denoise={"steps": 1}).json()
    assert chat["usage"]["completion_tokens"] <= 256
    assert chat["cutaway"]["params"]["max_tokens"] == 256


def test_a_suffix_stands_behind_the_canvas(post, alone):
    answer = post("/v1/completions", prompt="ab", suffix="ba", denoise=True, **ASKED).json()
    expected = alone.generate("ab", suffix="ba", denoise=True, **ASKED)
    assert answer["choices"][0]["text"] == expected.text
    assert answer["choices"][0]["cutaway"]["between"]["method"] == "canvas"


def test_text_streams_block_by_block(post):
    body = {"prompt": "ab", "denoise": {"block": 4}, **ASKED}
    events = events_of(post("/v1/completions", **body, stream=True))
    whole = post("/v1/completions", **body).json()
    assert "".join(e["choices"][0]["text"] for e in events) == whole["choices"][0]["text"]
    assert not any("trace" in e["choices"][0].get("cutaway", {}) for e in events)
    ending = events[-1]["choices"][0]["cutaway"]
    assert ending["canvas"] == whole["choices"][0]["cutaway"]["canvas"]


def test_with_trace_each_pass_is_told_as_it_is_made(post):
    body = {"prompt": "ab", "denoise": {"block": 4}, **ASKED, "trace": True}
    events = events_of(post("/v1/completions", **body, stream=True, return_token_ids=True))
    told = [
        record
        for e in events
        for record in e["choices"][0].get("cutaway", {}).get("trace", ())
        if record["kind"] != "tok"
    ]
    kinds = [record["kind"] for record in told]
    assert kinds == ["head", *3 * (4 * ["pass"] + 4 * ["step"]), "end"]
    ids = [i for e in events for i in e["choices"][0].get("token_ids", ())]
    assert len(ids) == 12
    whole = post("/v1/completions", **body).json()["choices"][0]["cutaway"]["trace"]

    def plain(records):
        return [
            {k: v for k, v in record.items() if k != "ms"}
            for record in records
            if record["kind"] == "pass"
        ]

    assert plain(whole) == plain(told)


def test_passes_are_shown_only_in_a_trace(alone):
    with alone.stream("ab", denoise={"block": 4}, **ASKED) as stream:
        events = [*stream.events()]
    for traced in (True, False):
        shown = [event for event in events if _is_shown(event, traced=traced)]
        passes = sum(isinstance(event, Pass) for event in shown)
        assert sum(isinstance(event, Step) for event in shown) == 12
        assert (passes, len(shown)) == ((12, 24) if traced else (0, 12))


def test_a_response_tells_of_passes_too(post):
    body = {"input": "ab", "denoise": {"block": 4}, "max_output_tokens": 12, "trace": True}
    lines = post("/v1/responses", **body, stream=True).text.split("\n\n")
    events = [json.loads(line.partition("data: ")[2]) for line in lines if line]
    told = [event["cutaway"]["trace"] for event in events if "trace" in event.get("cutaway", {})]
    kinds = [[r["kind"] for r in records if r["kind"] in ("pass", "step")] for records in told]
    assert [*chain(*kinds)] == 3 * (4 * ["pass"] + 4 * ["step"])


@pytest.mark.parametrize(
    ("more", "param", "sentence"),
    [
        ({"denoise": "psychic"}, "denoise", "rule must be one of confidence"),
        ({"denoise": {"thresold": 1}}, "denoise", "unknown setting 'thresold'"),
        ({"denoise": {"threshold": 2}}, "denoise", "threshold must be between 0 and 1"),
        ({"denoise": [1]}, "denoise", "must be a rule's name or its settings"),
        ({"denoise": {"forced_cells": [[0, 99, 5]]}}, "", "the canvas has 12 cells"),
        ({"grammar": "start: /a/"}, "grammar", "leave out grammar or denoise"),
        ({"regex": "a"}, "regex", "leave out regex or denoise"),
        ({"json_schema": True}, "json_schema", "leave out json_schema or denoise"),
        ({"speculate": "ngram"}, "speculate", "leave out speculate or denoise"),
        ({"forced": [70]}, "forced", "leave out forced or denoise"),
        ({"bad_words": ["a"]}, "bad_words", "leave out bad_words or denoise"),
        ({"min_tokens": 2}, "min_tokens", "leave out min_tokens or denoise"),
        ({"heal": True}, "heal", "leave out heal or denoise"),
        ({"echo": True, "logprobs": 1}, "echo", "needs a text that is written from left to right"),
        ({"max_tokens": 600}, "prompt", "maximum context length is 512"),
        ({"n": 128, "max_tokens": 400}, "max_tokens", "ask for fewer cells, samples or steps"),
        (
            {"denoise": {"remask": "sigma", "steps": 1_000_000}},
            "max_tokens", "ask for fewer cells, samples or steps",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_the_name_of_its_field(post, more, param, sentence):
    answer = post("/v1/completions", **{"prompt": "ab", "denoise": True, **ASKED, **more})
    error = answer.json()["error"]
    assert answer.status_code == 400, answer.text
    assert sentence in error["message"]
    assert error["param"] == (param or None)


def test_tools_are_refused_by_name(post):
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    answer = post("/v1/chat/completions", messages=CHAT, tools=[tool], denoise=True)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools")


def test_without_a_rule_a_canvas_is_named(post):
    for path, body in (
        ("/v1/completions", {"prompt": "ab"}), ("/v1/chat/completions", {"messages": CHAT}),
    ):  # fmt: skip
        for more in ({}, {"denoise": False}):
            answer = post(path, **body, **more)
            assert answer.status_code == 400
            assert "use cutaway denoise or cutaway fill" in answer.json()["error"]["message"]


def test_a_server_may_reveal_for_clients_that_know_of_no_canvas(tiny_diffusion_path, alone):
    llm = LLM(tiny_diffusion_path, threads=1, progress=False)
    with serve(llm, denoise="margin", max_tokens=12) as served:
        asked = {"messages": CHAT, "seed": 1, "temperature": 1.0}
        url = f"{served.url}/v1/chat/completions"
        answer = httpx.post(url, json=asked, timeout=60).json()
        expected = alone.chat(CHAT, denoise="margin", **ASKED)
        assert answer["choices"][0]["message"]["content"] == expected.text
        assert answer["cutaway"]["params_source"]["denoise"] == "server"
        refused = httpx.post(url, json={**asked, "grammar": "start: /a/"}, timeout=60)
        assert refused.json()["error"]["param"] == "grammar"


@pytest.fixture(scope="module")
def noise():
    with serve(LLM("toy-noise", threads=1, progress=False)) as served:
        yield served


def test_the_page_s_defaults_of_a_model_of_noise_are_what_runs(noise, served):
    about = httpx.get(f"{noise.url}/page/about").json()
    body = {"prompt": "Mr. ", "denoise": True, "max_tokens": 4}
    answer = httpx.post(f"{noise.url}/v1/completions", json=body, timeout=60).json()
    ran = answer["cutaway"]["params"]
    assert ran["denoise"]["start"] == "noise"
    for name in ("temperature", "top_p"):
        assert about["defaults"][name] == ran[name] == 1
    assert about["canvas"]["rule"] == {"rule": "diffusion-gemma", "noise": ran["denoise"]["noise"]}
    masked = httpx.get(f"{served.url}/page/about").json()
    assert masked["canvas"]["rule"] == {"rule": "confidence", "noise": "reuse"}
    assert about["canvas"]["choices"] == {"rule": ["diffusion-gemma"], "start": ["noise"]}
    assert masked["canvas"]["choices"] == {"rule": [*RULES], "start": ["mask", "noise"]}
    assert masked["defaults"]["temperature"] == 0.7


def test_the_page_s_defaults_of_a_server_that_names_a_temperature():
    with serve(LLM("toy-noise", threads=1, progress=False), temperature=0.5) as served:
        about = httpx.get(f"{served.url}/page/about").json()
    assert (about["defaults"]["temperature"], about["defaults"]["top_p"]) == (0.5, 1)


def test_a_chat_of_noise_streams_block_by_block(tmp_path):
    path, template = tmp_path / "chats.gguf", "{% for m in messages %}{{ m.content }}{% endfor %}"
    with GGUFFile(hub.resolve("toy-noise")) as toy:
        toy.metadata = MappingProxyType({**toy.metadata, "tokenizer.chat_template": template})
        write_gguf(path, toy)
    body = {"messages": [{"role": "user", "content": "Mr. "}], "denoise": {"block": 4}}
    body |= {"max_tokens": 12, "seed": 1, "trace": True}
    llm = LLM(path, threads=1, progress=False)
    expected = llm.chat(body["messages"], denoise={"block": 4}, max_tokens=12, seed=1)
    with serve(llm) as served:
        url = f"{served.url}/v1/chat/completions"
        events = events_of(httpx.post(url, json=body | {"stream": True}, timeout=60))
    choices = [choice for event in events for choice in event["choices"]]
    assert "".join(choice["delta"].get("content", "") for choice in choices) == expected.text
    told = [r for choice in choices for r in choice.get("cutaway", {}).get("trace", ())]
    kinds = [record["kind"] for record in told if record["kind"] in ("pass", "step")]
    runs = [(kind, len([*run])) for kind, run in groupby(kinds)]
    assert [kind for kind, _ in runs] == 3 * ["pass", "step"]
    assert [count for kind, count in runs if kind == "step"] == [4, 4, 4]
    assert kinds.count("pass") == len(expected.passes)


def test_who_asks_hears_what_the_model_sees(served, tiny):
    for url, attention in ((served.url, "bidirectional"), (tiny.url, "causal")):
        assert httpx.get(f"{url}/v1/models").json()["data"][0]["attention"] == attention
        assert httpx.get(f"{url}/page/about").json()["attention"] == attention


@pytest.mark.parametrize(
    "rule",
    [
        Rule(), Rule(steps=3), Rule(block=5), Rule(threshold=0.9), Rule(steps=90),
        Rule(remask="lowest", steps=9), Rule(remask="sigma", steps=40, block=4),
        Rule(remask="edit", edit_threshold=0.0, block=4), Rule(remask="edit", edit_threshold=0.0),
    ],
)  # fmt: skip
def test_no_canvas_looks_at_more_cells_than_is_counted(alone, rule):
    done = alone.generate("ab", denoise=rule, **ASKED | {"max_tokens": 30})
    assert sum(len(made.cells) for made in done.passes) <= most_computed(rule, 30, "bidirectional")


@pytest.mark.parametrize(
    "rule",
    [
        {"rule": "diffusion-gemma", "start": "mask", "max_passes": 4000,
         "stability_threshold": None, "confidence_threshold": None},
        {"remask": "sigma", "steps": 2**20 - 20},
    ],
)  # fmt: skip
def test_passes_that_compute_too_many_tokens_are_refused(post, rule, monkeypatch):
    """A bidirectional model computes the whole prompt again in each pass."""
    monkeypatch.setattr(limits, "MOST_CANVAS_ROWS", 1 << 17)
    answer = post("/v1/completions", prompt="ab " * 30, denoise=rule, **ASKED | {"max_tokens": 1})
    assert answer.status_code == 400
    assert "prompt and canvas again in each" in answer.json()["error"]["message"]


def test_a_pass_over_too_many_logits_is_refused(post, monkeypatch):
    monkeypatch.setattr(limits, "MOST_LOGITS", 1000)
    answer = post("/v1/completions", prompt="ab", denoise=True, **ASKED)
    assert answer.status_code == 400
    assert "may have 1000 logits: give a block of at most" in answer.json()["error"]["message"]
    size = 1000 // int(re.search("of (\\d+) tokens", answer.text)[1])
    answer = post("/v1/completions", prompt="ab", denoise={"block": size}, **ASKED)
    assert answer.status_code == 200
