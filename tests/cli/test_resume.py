"""``cutaway resume``: a run whose process was killed is finished as if it had not been."""

import json
import signal
import subprocess
from contextlib import ExitStack

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway import LLM
from cutaway.errors import CutawayError, InputError, ReplayError
from cutaway.rerun import check_cut, resume, resume_at
from cutaway.trace import Trace
from support import held_steps
from support.cut_traces import KEYWORDS, alter_step, cut_at, lines_of, record
from support.random_llama import write_tiny_llama
from support.served import serve
from support.server_processes import server
from support.waiting import wait_until


@pytest.fixture(scope="module")
def llm(tiny_path):
    with LLM(tiny_path, threads=1, progress=False) as llm:
        yield llm


KINDS = [
    {},
    {"temperature": 0, "repetition_penalty": 1.3},
    {"json_schema": {"type": "array", "items": {"enum": ["a", "b"]}}, "ignore_eos": False},
    {"forced": (70, 71, 72), "track": (5, 6), "candidates": 3},
    {"speculate": "ngram"},
    {"stop": ("\x00\x01",), "min_tokens": 3, "allowed_token_ids": (70, 71, 72, 260)},
    {"n": 2},
]


@settings(max_examples=60)
@given(st.sampled_from(KINDS), st.floats(0, 1))
def test_a_trace_that_is_cut_anywhere_becomes_that_of_the_whole_run(llm, tmp_path, more, part):
    path = tmp_path / "run.jsonl"
    (tmp_path / "run.2.jsonl").unlink(missing_ok=True)
    record(llm, path, **more)
    if "n" in more:
        path = tmp_path / "run.2.jsonl"
    less = ("source", "speculation") if {"speculate", "json_schema"} & more.keys() else ()
    whole, before = lines_of(path, *less), path.read_bytes()
    first, last = before.index(b"\n") + 1, before.rindex(b"\n", 0, len(before) - 1)
    cut = first + int(part * (last - first))
    path.write_bytes(before[:cut])
    with resume(llm, Trace.read(path)) as stream:
        stream.finish()
    assert lines_of(path, *less) == whole
    assert path.read_bytes().startswith(before[: before.rindex(b"\n", 0, cut) + 1])


def test_one_that_is_cut_again_can_be_resumed_again(llm, tmp_path):
    path = tmp_path / "run.jsonl"
    record(llm, path)
    whole, before = lines_of(path), path.read_bytes()
    path.write_bytes(before[: len(before) // 3])
    for steps in (1, 25):
        with resume(llm, Trace.read(path)) as stream:
            for _ in range(steps):
                next(stream)
        assert Trace.read(path).end is None
    with resume(llm, Trace.read(path)) as stream:
        stream.finish()
    assert lines_of(path) == whole


def test_canvases_too(tiny_diffusion_path, tmp_path):
    path = tmp_path / "run.jsonl"
    with LLM(tiny_diffusion_path, threads=1, progress=False) as llm:
        llm.generate("ab", denoise={"steps": 8, "block": 8}, max_tokens=24, seed=2, trace=path)
        whole, before = lines_of(path), path.read_bytes()
        for part in (2, 3, 5):
            path.write_bytes(before[: len(before) * (part - 1) // part])
            with resume(llm, Trace.read(path)) as stream:
                stream.finish()
            assert lines_of(path) == whole


# -- the command ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def long_path(tmp_path_factory):
    return write_tiny_llama(tmp_path_factory.mktemp("long") / "tiny.gguf", context=4096)


def command(model, trace):
    return [
        "generate", "ab", "-m", str(model), "--trace", str(trace), "--max-tokens", "2400",
        "--ignore-eos", "--seed", "5", "--threads", "1", "--quiet",
    ]  # fmt: skip


def test_a_process_that_was_killed(long_path, tmp_path, cutaway, printed, refused):
    cut, whole = tmp_path / "cut.jsonl", tmp_path / "whole.jsonl"
    with held_steps.run(800, *command(long_path, cut), stdout=subprocess.DEVNULL) as child:
        wait_until(lambda: cut.exists() and cut.stat().st_size > 100_000)
        assert refused("resume", cut, "-m", long_path).endswith(
            "cut.jsonl is still being written: wait for its end, or stop it\n"
        )
        child.send_signal(signal.SIGKILL)
    on_record = len(Trace.read(cut).steps)
    assert 0 < on_record < 2400
    resumed = cutaway("resume", cut, "-m", long_path, "--threads", "2")
    assert f"[{on_record} of 2400 tokens were on record; trace: {cut}]" in resumed.err
    assert resumed.out == printed(*command(long_path, whole))
    assert lines_of(cut)[1:] == lines_of(whole)[1:]
    found = json.loads(printed("trace", "diff", cut, whole, "--json"))
    assert (found["common"], found["logits_differ_at"], found["divergence"]) == (2400, None, None)


# -- what is refused -----------------------------------------------------------------------------


@pytest.fixture
def cut(llm, tmp_path):
    return cut_at(llm, tmp_path / "run.jsonl", 0.5)


def test_a_run_that_has_ended_is_refused(llm, tmp_path):
    record(llm, tmp_path / "run.jsonl")
    with pytest.raises(InputError, match=r"run.jsonl has an end already \(max_tokens\): there is"):
        check_cut(Trace.read(tmp_path / "run.jsonl"))


def test_a_gzipped_trace_is_refused(llm, tmp_path):
    path = tmp_path / "run.jsonl.gz"
    with llm.stream("ab", trace=path, **KEYWORDS) as stream:
        for _ in range(5):
            next(stream)
        with pytest.raises(InputError, match="trace cannot be continued after a cut: unpack"):
            check_cut(Trace.read(path))


def test_another_model_is_refused_and_the_file_is_as_it_was(cut, tmp_path):
    before = cut.read_bytes()
    other = write_tiny_llama(tmp_path / "other.gguf", context=512, seed=9)
    refusal = pytest.raises(InputError, match=r"not what the trace was written with \(weights: ")
    with LLM(other, threads=1, progress=False) as llm, refusal:
        resume(llm, Trace.read(cut))
    assert cut.read_bytes() == before


@pytest.mark.parametrize("index", [0, 3, -1])
@pytest.mark.parametrize(
    ("name", "said"),
    [("token_id", "replay: token {} is "), ("fingerprint", "step {} differs from ")],
)
def test_a_record_that_comes_out_otherwise_is_an_error(llm, cut, name, said, index):
    index, before = alter_step(cut, index, name)
    refusal = pytest.raises(ReplayError, match=said.format(index + 1))
    with refusal, resume(llm, Trace.read(cut)) as stream:
        stream.finish()
    assert cut.read_bytes() == before


def test_what_is_no_trace_is_refused(refused, tiny_path, tmp_path):
    (tmp_path / "x").write_text("hello\n")
    assert "this is no line of JSON" in refused("resume", tmp_path / "x", "-m", tiny_path)
    assert "cannot be read" in refused("resume", tmp_path / "y", "-m", tiny_path)


# -- resume at servers -----------------------------------------------------------------------------

# ``cutaway resume --url``: servers write the rest, also if one of them is lost.


HOW = ("source", "speculation", "usage")
"""What a record says of how a step was computed."""

DEAD = "http://127.0.0.1:1"
SERVER_KINDS = [
    {},
    {"temperature": 0, "repetition_penalty": 1.3, "logit_bias": {80: 2.0}},
    {"forced": (70, 71, 72), "track": (5, 6), "candidates": 3},
    {"stop": ("\x00\x01",), "min_tokens": 3, "allowed_token_ids": (70, 71, 72, 260)},
    {"json_schema": {"type": "array", "items": {"enum": ["a", "b"]}}, "ignore_eos": False},
    {"preset": "llama.cpp", "top_k": 30, "dry_multiplier": 0.8},
]


@pytest.fixture(scope="module")
def url(tiny_path):
    with LLM(tiny_path, threads=1, progress=False) as llm, serve(llm) as served:
        yield served.url


@pytest.mark.each_choice
@pytest.mark.parametrize("part", [0, 0.1, 0.6, 1])
@pytest.mark.parametrize("more", SERVER_KINDS)
def test_the_file_becomes_that_of_the_whole_run(llm, url, tmp_path, more, part):
    whole = tmp_path / "whole.jsonl"
    done = record(llm, whole, **more)
    path = cut_at(llm, tmp_path / "run.jsonl", part, **more)
    steps = [*resume_at([DEAD, url], Trace.read(path))]
    assert [step.token_id for step in steps] == [*done.token_ids]
    assert lines_of(path, *HOW) == lines_of(whole, *HOW)


def test_a_server_that_is_killed_is_followed_by_the_next(tmp_path):
    model = write_tiny_llama(tmp_path / "tiny.gguf", context=4096)
    with LLM(model, threads=1, progress=False) as llm:
        whole = record(llm, tmp_path / "whole.jsonl", max_tokens=800)
        path = cut_at(llm, tmp_path / "run.jsonl", 0.1, max_tokens=800)
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
    whole = llm.generate("ab ba", **KEYWORDS)
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
def test_a_record_that_a_server_writes_otherwise_is_an_error(cut, url, name, index):
    index, before = alter_step(cut, index, name)
    with pytest.raises(CutawayError, match=rf"(token|step) {index + 1} (is|differs from) "):
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
