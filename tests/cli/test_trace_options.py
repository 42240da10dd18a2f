"""``--trace`` as a person uses it: where the traces are, what they hold, what is refused."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import cutaway
from cutaway.trace import Trace
from support.random_llama import write_tiny_llama
from support.served import TEMPLATE

CUTAWAY = [sys.executable, "-m", "cutaway"]
HOME = {"PYTHONPATH": str(Path(cutaway.__file__).parents[1])}  # as seen from another folder


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    return str(write_tiny_llama(path, metadata={"tokenizer.chat_template": TEMPLATE}, context=4096))


@pytest.fixture
def here(tmp_path, monkeypatch, cutaway):
    """Run a command in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return cutaway


def names():
    return sorted(path.name for path in Path().iterdir())


def test_generate_records_what_it_prints(tiny, here):
    args = ["generate", "-m", tiny, "ab", "--max-tokens", "6", "--seed", "3"]
    plain, done = here(*args), here(*args, "--trace", "run.jsonl")
    assert done[:2] == (0, plain.out)
    assert done.err.endswith("\n[trace: run.jsonl]\n")
    trace = Trace.read("run.jsonl")
    assert trace.text == done.out
    assert (trace.head.prompt, trace.head.seed, len(trace.steps)) == ("ab", 3, 6)
    assert trace.end.reason == "max_tokens"


def test_quiet_says_nothing_and_records(tiny, here):
    done = here("generate", "-m", tiny, "ab", "-q", "--max-tokens", "2", "--trace", "run.jsonl.gz")
    assert done.err == ""
    assert len(Trace.read("run.jsonl.gz").steps) == 2


def test_each_sample_has_its_own(tiny, here):
    args = ["--n", "3", "--max-tokens", "2", "--trace", "run.jsonl.gz"]
    done = here("generate", "-m", tiny, "ab", *args)
    assert done.err.endswith("[trace: run.jsonl.gz, run.2.jsonl.gz, run.3.jsonl.gz]\n")
    seeds = [Trace.read(name).head.seed for name in names()]
    assert len({*seeds}) == 3


def test_candidates_and_watched_tokens(tiny, here):
    given = ["--candidates", "2", "--track", "7", "--track", "ab", "--track", "</s>"]
    given += ["--max-tokens", "3", "--ignore-eos", "--trace", "t"]
    assert here("generate", "-m", tiny, "ab", *given).code == 0
    trace = Trace.read("t")
    assert trace.head.candidates == 2
    first, *ab, end = trace.head.tracked_ids
    assert (first, end) == (7, 2)
    assert {trace.bytes_of(i) for i in ab} == {b"ab"}
    for step in trace.steps:
        ids = [c.id for c in step.observed.candidates]
        assert {*trace.head.tracked_ids} <= {*ids} and 4 <= len(ids) <= 6


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--trace", "old"], "old exists already; name another file, or remove it"),
        (["--trace", "no/such/folder/t"], "no file can be made in no/such/folder"),
        (["--trace", "."], "is a folder"),
        (["--trace", ""], "trace must be the name of a file"),
        (["--trace", "t", "--candidates", "0"], "candidates: with a trace it must be"),
        (["--trace", "t", "--track", "99999"], "--track 99999: the model's token ids are 0 to 263"),
        (["--trace", "t", "--track", "bb"], "--track 'bb': the model has no such token"),
        (["--trace", "t", "--track", ""], "--track '': the model has no such token"),
        (["--track", "7"], "add --trace FILE"),
        (["--candidates", "7"], "add --trace FILE"),
    ],
)
def test_what_is_refused(tiny, here, args, sentence):
    Path("old").write_text("mine")
    for command in (["generate", "ab"], ["chat"]):
        done = here(*command, "-m", tiny, "--max-tokens", "2", *args, stdin=b"ab\n")
        assert (done.code, sentence in done.err) == (2, True), done.err
    assert names() == ["old"]
    assert Path("old").read_text() == "mine"


def test_a_batch_file_is_not_traced(tiny, here):
    done = here("generate", "--input", "in", "--output", "out", "--trace", "t")
    assert (done.code, names()) == (2, [])
    assert "--trace records one prompt: leave out --input" in done.err


def test_chat_records_each_answer(tiny, here):
    args = ["--max-tokens", "3", "--trace", "talk.jsonl"]
    done = here("chat", "-m", tiny, *args, stdin=b"ab\n/reset\nba\n")
    assert done.code == 0, done.err
    assert names() == ["talk.2.jsonl", "talk.jsonl"]
    assert "[trace: talk.jsonl]" in done.err and "[trace: talk.2.jsonl]" in done.err
    first, second = Trace.read("talk.jsonl"), Trace.read("talk.2.jsonl")
    assert first.head.prompt is None
    assert first.head.prompt_token_ids != second.head.prompt_token_ids
    assert len(first.steps) <= 3 and second.end.reason


def killed(tiny, sent, after=5):
    """The exit code of a long run that got a signal once its trace had so many lines."""
    args = ["generate", "-m", tiny, "ab", "--max-tokens", "4000", "--ignore-eos", "--trace", "t"]
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "env": os.environ | HOME}
    with subprocess.Popen([*CUTAWAY, *args], **how) as process:
        for _ in range(after):
            assert process.stdout.read(1)
        process.send_signal(sent)
        rest = process.stdout.read()
    return process.returncode, rest


def test_ctrl_c_ends_the_trace_as_aborted(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, rest = killed(tiny, signal.SIGINT)
    trace = Trace.read("t")
    assert code == 130
    assert trace.end.reason == "aborted"
    assert trace.end.usage["completion_tokens"] == len(trace.steps) < 4000
    assert trace.text.encode().endswith(rest)


def test_a_trace_whose_run_was_killed_can_be_read(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _ = killed(tiny, signal.SIGKILL)
    trace = Trace.read("t")
    assert code == -signal.SIGKILL
    assert trace.end is None
    assert trace.steps
