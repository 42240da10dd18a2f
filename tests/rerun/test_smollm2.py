"""What a trace of SmolLM2 promises: 200 tokens replay to the last bit, wherever and however."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cutaway import LLM
from cutaway.base import _native
from cutaway.features.experiments.exposure import exposure
from cutaway.features.experiments.snowball import snowball
from cutaway.features.measure.verify import instruction_set
from cutaway.rerun import branch, diff_models, replay
from cutaway.trace import Trace

pytestmark = pytest.mark.model
TIERS = tuple(_native.tiers().split(","))  # the best first
PLAIN = ("generic", "amx-plain")  # slow
PROMPT = "The old lighthouse keeper"
RIVER_BANK = Path(__file__).parents[1] / "data/river_bank.txt"


@pytest.fixture(scope="module")
def llm(smollm2_path):
    return LLM(smollm2_path, backend="cpu", context=1024)


@pytest.fixture(scope="module")
def run(llm, tmp_path_factory):
    path = tmp_path_factory.mktemp("smollm2") / "run.jsonl"
    options = {"max_tokens": 200, "seed": 7, "temperature": 0.8, "ignore_eos": True}
    llm.generate(PROMPT, **options, trace=path)
    return Trace.read(path)


def again(llm, trace, **how):
    done = replay(llm, trace, **how)
    assert done.same
    assert done.steps == len(trace.steps)
    assert done.fingerprint == f"{trace.steps[-1].fingerprint:016x}"
    return done


def test_it_replays_with_and_without_drafts(llm, run):
    assert len(run.steps) == 200
    again(llm, run)
    again(llm, run, speculate="ngram")


def cut_short(run):
    """The run as far as it goes that was cut in its 13th step."""
    raw = run.path.read_bytes()
    cut = Trace.parse(raw[: raw.index(b'"kind":"step","index":12,') + 40])
    assert (len(cut.steps), cut.end) == (12, None)
    return cut


@pytest.mark.parametrize("threads", [1, 3])
def test_it_replays_at_other_thread_counts(smollm2_path, run, threads):
    other = LLM(smollm2_path, backend="cpu", threads=threads, context=512)
    again(other, run if threads == 1 else cut_short(run))  # three threads may share two cores
    assert other.backend.threads == threads


def on_tier(tier, path, run):
    with instruction_set(tier):
        other = LLM(path, backend="cpu", context=512)
    reports = [str(each) for each in again(other, run).disagreements]
    assert f"tier: {run.head.tier} on record, {tier} now" in reports


@pytest.mark.parametrize("tier", TIERS[1:])
def test_it_replays_on_other_tiers(smollm2_path, run, tier):
    on_tier(tier, smollm2_path, cut_short(run) if tier in PLAIN else run)


@pytest.mark.slow
def test_it_replays_whole_with_more_threads_than_cores(smollm2_path, run):
    again(LLM(smollm2_path, backend="cpu", threads=3, context=512), run)


@pytest.mark.slow
@pytest.mark.parametrize("tier", [tier for tier in TIERS[1:] if tier in PLAIN])
def test_it_replays_whole_on_plain_tiers(smollm2_path, run, tier):
    on_tier(tier, smollm2_path, run)


def test_it_replays_beside_other_texts(llm, run):
    prompts = ["Once upon a time", "def fibonacci(n):", "The capital of France is"]
    streams = [llm.stream(p, max_tokens=150, seed=i) for i, p in enumerate(prompts)]
    again(llm, run)
    assert all(stream.num_arrived for stream in streams)
    for stream in streams:
        stream.close()


def test_it_replays_in_another_process(smollm2_path, run):
    command = ["trace", "replay", str(run.path), "-m", str(smollm2_path), "--threads", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "cutaway", *command, "--speculate", "ngram", "--json"],
        capture_output=True, timeout=120, check=True,
        env=os.environ | {"CUTAWAY_ISA": TIERS[min(1, len(TIERS) - 2)]},
    )  # fmt: skip
    document = json.loads(done.stdout)
    assert document["same"] is True
    assert (document["steps"], document["fingerprint"]) == (200, run.end.fingerprint)


@pytest.mark.parametrize("at", [0, 117, 199])
def test_one_digit_of_a_fingerprint_stops_it_at_that_step(llm, run, at):
    right = f"{run.steps[at].fingerprint:016x}"
    wrong = f"{int(right, 16) ^ 1 << 20:016x}"
    raw = run.path.read_bytes()
    where = raw.index(right.encode())
    done = replay(llm, Trace.parse(raw[:where] + wrong.encode() + raw[where + 16 :]))
    assert (done.steps, done.mismatch.step) == (at + 1, at)
    assert done.mismatch.what == {"fingerprint": (wrong, right)}


def test_a_fork_replays_and_is_measured(llm, run, tmp_path):
    branch(llm, run, 12, " never", trace=tmp_path / "fork.jsonl", max_tokens=60)
    fork = Trace.read(tmp_path / "fork.jsonl")
    assert fork.head.parent.trace == run.sha256
    assert fork.name_of(fork.steps[12].token_id) == " never"
    again(llm, fork)
    done = diff_models(llm, run, fork)
    assert done.at == 12
    assert done.forced[0] == done.free[0] > 10 * done.forced[20:].mean()


def test_a_mistake_fades_in_the_same_words_and_not_in_its_own(llm):
    done = snowball(llm, PROMPT, errors=4, max_tokens=40, seed=7)
    forced, free = done.mean("forced"), done.mean("free")
    assert forced[0] == free[0]
    assert forced[8:].mean() < forced[0] / 10 < free[8:].mean()


def test_exposure_to_a_human_text(llm):
    done = exposure(llm, RIVER_BANK.read_text(), before=32, tokens=16, temperature=0)
    assert len(done.windows) >= 20
    assert max(estimate.high for estimate in done.average_bands("gap")[2:]) < 0
    assert not done.drift[:, 0].any()
