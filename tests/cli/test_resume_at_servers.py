"""``cutaway resume --url``: servers write the rest, also if one of them is lost."""

import signal
from contextlib import ExitStack

import httpx
import pytest

from cutaway import LLM
from cutaway.errors import CutawayError, InputError, ReplayError
from cutaway.rerun import resume_at
from cutaway.trace import Trace
from support.cut_traces import ASKED, altered, cut_at, lines_of, recorded
from support.random_llama import write_tiny_llama
from support.served import serve
from support.server_processes import server

HOW = ("source", "speculation", "usage")
"""What a record says of how a step was computed."""

DEAD = "http://127.0.0.1:1"
KINDS = [
    {},
    {"temperature": 0, "repetition_penalty": 1.3, "logit_bias": {80: 2.0}},
    {"forced": (70, 71, 72), "track": (5, 6), "candidates": 3},
    {"stop": ("\x00\x01",), "min_tokens": 3, "allowed_token_ids": (70, 71, 72, 260)},
    {"json_schema": {"type": "array", "items": {"enum": ["a", "b"]}}, "ignore_eos": False},
    {"preset": "llama.cpp", "top_k": 30, "dry_multiplier": 0.8},
]


@pytest.fixture(scope="module")
def llm(tiny_path):
    with LLM(tiny_path, threads=1, progress=False) as llm:
        yield llm


@pytest.fixture(scope="module")
def url(tiny_path):
    with LLM(tiny_path, threads=1, progress=False) as llm, serve(llm) as served:
        yield served.url


@pytest.fixture
def cut(llm, tmp_path):
    return cut_at(llm, tmp_path / "run.jsonl", 0.5)


@pytest.mark.parametrize("part", [0, 0.1, 0.6, 1])
@pytest.mark.parametrize("more", KINDS)
def test_the_file_becomes_that_of_the_whole_run(llm, url, tmp_path, more, part):
    whole = tmp_path / "whole.jsonl"
    done = recorded(llm, whole, **more)
    path = cut_at(llm, tmp_path / "run.jsonl", part, **more)
    steps = [*resume_at([DEAD, url], Trace.read(path))]
    assert [step.token_id for step in steps] == [*done.token_ids]
    assert lines_of(path, *HOW) == lines_of(whole, *HOW)


def test_a_server_that_is_killed_is_followed_by_the_next(tmp_path):
    model = write_tiny_llama(tmp_path / "tiny.gguf", context=4096)
    with LLM(model, threads=1, progress=False) as llm:
        whole = recorded(llm, tmp_path / "whole.jsonl", max_tokens=1500)
        path = cut_at(llm, tmp_path / "run.jsonl", 0.1, max_tokens=1500)
    with ExitStack() as stack:
        (first, one), (_, two) = (stack.enter_context(server(model)) for _ in range(2))
        trace = Trace.read(path)
        tokens = []
        for step in resume_at([one, two], trace):
            tokens.append(step.token_id)
            if len(tokens) == len(trace.steps) + 5:
                first.send_signal(signal.SIGKILL)
    assert tokens == [*whole.token_ids]
    assert lines_of(path, *HOW) == lines_of(tmp_path / "whole.jsonl", *HOW)


def test_the_command(cut, llm, url, cutaway):
    whole = llm.generate("ab ba", **ASKED)
    count = len(Trace.read(cut).steps)
    said = cutaway("resume", cut, "--url", DEAD, "--url", url)
    assert said[:2] == (0, whole.text)
    assert said.err.endswith(f"[{count} of 40 tokens were on record; trace: {cut}]\n")


# -- what is refused -----------------------------------------------------------------------------


def test_where_all_are_lost_the_file_has_what_came(cut):
    before = cut.read_bytes()
    with pytest.raises(CutawayError, match=r"no server finished .*:1/v1/completions: no answer"):
        [*resume_at([DEAD], Trace.read(cut))]
    assert cut.read_bytes() == before


def test_another_model_is_refused(cut, tmp_path):
    other = write_tiny_llama(tmp_path / "other.gguf", context=512, seed=9)
    before = cut.read_bytes()
    said = r"^http://\S+( has other weights than recorded: name a server of|: replay: token )"
    refusal = pytest.raises((InputError, ReplayError), match=said)
    with LLM(other, threads=1, progress=False) as llm, serve(llm) as served, refusal:
        [*resume_at([served.url], Trace.read(cut))]
    assert cut.read_bytes() == before


@pytest.mark.parametrize("index", [0, -1])
@pytest.mark.parametrize("name", ["token_id", "fingerprint"])
def test_a_record_that_comes_out_otherwise_is_an_error(cut, url, name, index):
    index, before = altered(cut, index, name)
    with pytest.raises(CutawayError, match=rf"token {index} is |step {index} differs from"):
        [*resume_at([DEAD, url], Trace.read(cut))]
    assert cut.read_bytes() == before


def test_one_that_was_started_with_another_chain_is_refused(cut, tiny_path):
    llm = LLM(tiny_path, threads=1, progress=False)
    with serve(llm, chain=["top_k", "temperature"]) as served:
        said = f"{served.url} has other chain than recorded"
        with pytest.raises(InputError, match=said):
            [*resume_at([served.url], Trace.read(cut))]


def test_what_the_server_refuses_is_shown(cut, url, llm, tmp_path):
    path = cut_at(llm, tmp_path / "healed.jsonl", 0.5, heal=True)
    with pytest.raises(InputError, match="--url: thoughts, calls beside a schema and healed"):
        [*resume_at([url], Trace.read(path))]
    assert httpx.get(f"{url}/health").status_code == 200


def test_a_model_here_and_a_server_exclude_each_other(cut, url, refused):
    assert "leave it or --url out" in refused("resume", cut, "--url", url, "-m", "smollm2")
