"""bench/server_soak.py: a server of a tiny model, clients that leave, and what it must notice."""

import asyncio
import json
import re
from itertools import islice
from types import SimpleNamespace

import httpx
import pytest

pytest.importorskip("cutaway.base._native", reason="the native backend was not built")
pytest.importorskip("fastapi", reason="needs the extra serve")

import server_client
import server_soak
from cutaway.api.llm import LLM
from cutaway.errors import CutawayError
from server_client import WAYS, Question, Said, ask
from server_process import figures, serving
from support.random_llama import write_tiny_llama

TEMPLATE = "{% for m in messages %}<s>{{ m.content }}{% endfor %}</s>"
GOOD = {
    "differing": 0, "running": 0, "waiting": 0, "cut": [], "logged": [], "exit_code": 0,
    "blocks": {"free": 64, "all": 64},
}  # fmt: skip


@pytest.fixture(scope="session")
def chat_path(tmp_path_factory):
    folder, metadata = tmp_path_factory.mktemp("soak"), {"tokenizer.chat_template": TEMPLATE}
    return write_tiny_llama(folder / "tiny.gguf", context=512, metadata=metadata)


def run(path, capsys, *more):
    small = ["--threads", "1", "--kv-tokens", "2048", "--max-tokens", "160"]
    code = server_soak.main(["-m", str(path), "--json", *small, *more])
    return code, json.loads(capsys.readouterr().out)


def test_a_soak_of_everything_leaves_nothing_and_changes_nothing(chat_path, capsys):
    code, found = run(chat_path, capsys, "--seconds", "2", "--check", "40")
    assert {name: found[name] for name in GOOD} == GOOD
    assert code == 0
    assert (found["checked"], found["refused"]) == (40, 0)
    assert min(found["left"].values()) > 0  # among the 64 first, which are asked at any speed
    assert sum(found["cancelled"].values()) > 0
    assert min(found["ttft_s"]["p50"], found["tpot_s"]["p99"]) > 0
    assert len(found["rss_mb"]) == 4
    assert found["processors"]["server"] >= found["processors"]["event loop"] > 0


def test_a_text_that_differs_is_an_error(chat_path, monkeypatch, capsys):
    whole = server_soak.alone

    def spoiled(llm, answer, index):
        ids, text, _ = whole(llm, answer, index)
        return ids, text, "0" * 16

    monkeypatch.setattr(server_soak, "alone", spoiled)
    code, found = run(chat_path, capsys, "--seconds", "0.5", "--check", "2")
    assert (code, found["checked"], found["differing"]) == (1, 2, 2)


@pytest.mark.parametrize(
    "wrong",
    [
        {"differing": 1},
        {"running": 1},
        {"waiting": 1},
        {"cut": ["the stream ended without [DONE]"]},
        {"logged": ["a traceback"]},
        {"exit_code": 1},
        {"exit_code": None},
        {"blocks": {"free": 63, "all": 64}},
    ],
)
def test_whatever_is_wrong_is_an_error(wrong):
    assert server_soak.good(GOOD)
    assert not server_soak.good(GOOD | wrong)


def test_the_same_seed_asks_the_same(chat_path):
    llm = LLM(chat_path, progress=False, threads=1)
    args = SimpleNamespace(seed=3, kv_tokens=512, prompt_tokens=64, max_tokens=32)
    first, second = (list(islice(server_soak.questions(llm, args), 200)) for _ in range(2))
    assert first == second
    assert {q.leaves for q in first} == {None, *WAYS}
    assert {type(q.prompt) for q in first if q.path == "/v1/completions"} == {str, list}
    assert {q.path for q in first} == {"/v1/completions", "/v1/chat/completions"}
    assert {q.stream for q in first} == {True, False}
    assert all(q.stream for q in first if q.leaves not in (None, "at once"))


def test_a_server_that_does_not_start_says_why(tmp_path):
    async def start():
        async with serving("-m", str(tmp_path / "none.gguf")):
            pass

    with pytest.raises(CutawayError, match=r"did not start: .*none\.gguf.* does not exist"):
        asyncio.run(start())


def test_figures_are_named_by_their_labels():
    page = '# TYPE kv gauge\nkv{state="free"} 3\n# TYPE sent counter\nsent_total 2\n'
    assert figures(page) == {"kv free": 3.0, "sent_total": 2.0}


# -- one client ----------------------------------------------------------------------------------

STREAM = [
    {"choices": [{"index": 0, "text": ""}], "cutaway": {"seeds": [1]}},
    {"choices": [{"index": 0, "text": "a", "token_ids": [5, 6]}]},
    {"choices": [{"index": 0, "text": "b", "token_ids": [7]}]},
    {"choices": [{"index": 0, "text": "", "cutaway": {"fingerprint": "f"}}]},
]


def sse(*events, done=True):
    lines = [json.dumps(event) for event in events] + ["[DONE]"] * done
    return "".join(f": keep-alive\n\ndata: {line}\n\n" for line in lines).encode()


def asked(*answers, stream=True, leaves=None, events=1, **options):
    """What a client sees of these answers, one after the other."""
    left = list(answers)

    async def main():
        transport = httpx.MockTransport(lambda _: left.pop(0))
        question = Question("/v1/completions", "Hi", options, stream, leaves, events)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await ask(client, question)

    return asyncio.run(main())


def test_a_stream_is_read():
    answer = asked(httpx.Response(200, content=sse(*STREAM)))
    said = answer.said[0]
    assert (answer.whole, answer.cut, answer.refused) == (True, None, 0)
    assert (said.token_ids, said.text, said.ending) == ([5, 6, 7], "ab", {"fingerprint": "f"})
    assert said.ended >= said.began > answer.asked
    assert [n for _, n in answer.arrived] == [0, 2, 1, 0]


def test_a_whole_answer_of_two_samples_is_read():
    choices = [
        {"index": i, "message": {"content": "ab"}, "token_ids": [i], "cutaway": {"fingerprint": i}}
        for i in (1, 0)
    ]
    answer = asked(httpx.Response(200, json={"choices": choices}), stream=False, n=2)
    assert answer.whole
    assert answer.said == [Said([i], "ab", ending={"fingerprint": i}) for i in (0, 1)]
    assert server_client.texts([answer]) == [(answer, 0), (answer, 1)]


def test_a_full_queue_is_asked_again():
    full = httpx.Response(429, headers={"retry-after": "0"})
    answer = asked(full, full, httpx.Response(200, content=sse(*STREAM)))
    assert (answer.whole, answer.refused) == (True, 2)


@pytest.mark.parametrize(
    ("response", "why"),
    [
        (httpx.Response(200, content=sse(*STREAM, done=False)), r"without \[DONE\]"),
        (httpx.Response(200, content=sse({"error": {"message": "broken"}})), "broken"),
        (httpx.Response(500, text="broken"), "500 broken"),
        (httpx.Response(200, content=b"data: {\n\n"), "JSONDecodeError"),
    ],
)
def test_a_stream_that_is_cut(response, why):
    answer = asked(response)
    assert not answer.whole
    assert re.search(why, answer.cut)
    assert server_client.texts([answer]) == []


@pytest.mark.parametrize("way", WAYS[1:])
def test_a_client_that_leaves_is_not_cut(way):
    content = sse(*STREAM)
    answer = asked(httpx.Response(200, content=content), leaves=way, events=2)
    assert (answer.whole, answer.cut) == (False, None)
    assert answer.said[0].token_ids == [5, 6]


@pytest.mark.parametrize("asked_for", [["--seconds", "0"], ["--concurrency", "0"]])
def test_what_cannot_be_soaked_is_refused(asked_for, capsys):
    with pytest.raises(SystemExit):
        server_soak.main(asked_for)
    assert "must be above 0" in capsys.readouterr().err
