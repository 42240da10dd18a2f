"""Changed runs on record: replayed to the bit, forked, compared, and their rows computed again."""

from dataclasses import replace

import numpy as np
import pytest

from cutaway import CutawayError, InputError
from cutaway.engine.interventions import add, bind, knock_out, scale
from cutaway.features.experiments import snowball
from cutaway.rerun import (
    branch,
    diff_models,
    logits,
    open_branch,
    replay,
    rescore,
)
from cutaway.sampling.observe import row_hash
from cutaway.trace import Trace, diff_texts

VECTOR = np.random.default_rng(0).normal(size=32)
INTERVENTIONS = [
    [scale("L0.H1", 0)],
    ["knock_out 1", add("L0", VECTOR, 0.5, positions="0-8")],
    [scale("L1.mlp", 2, from_step=3), knock_out("2", from_step=6)],
]
HOW = {"seed": 4, "max_tokens": 12, "ignore_eos": True, "temperature": 0.9}


@pytest.fixture
def recorded(tiny, tmp_path):
    def run(interventions, name="run.jsonl", **how):
        tiny.generate("ab ba", interventions=interventions, trace=tmp_path / name, **HOW | how)
        return Trace.read(tmp_path / name)

    return run


@pytest.mark.parametrize("interventions", INTERVENTIONS)
@pytest.mark.parametrize("speculate", ["off", "ngram"])
def test_a_changed_run_is_replayed_to_the_bit(tiny, recorded, interventions, speculate):
    trace = recorded(interventions)
    assert [str(one) for one in trace.head.interventions] == [str(one) for one in interventions]
    found = replay(tiny, trace, speculate=speculate)
    assert found.same and found.disagreements == ()
    rows = logits(tiny, trace)
    assert [row_hash(row) for row in rows] == [step.logits_hash for step in trace.steps]
    again = rescore(tiny, trace)
    assert [r.bits for r in again.old] == [r.bits for r in again.new]


@pytest.mark.parametrize(
    "how", [{"heal": True}, {"n": 2}, {"regex": "[ab ]{9}", "ignore_eos": False}, {"min_tokens": 9}]
)
def test_with_other_settings(tiny, recorded, how):
    trace = recorded([scale("L0.H1", 0.5, from_step=2), "knock_out 1 from 1"], **how)
    assert replay(tiny, trace).same
    rows = logits(tiny, trace)
    assert [row_hash(row) for row in rows] == [step.logits_hash for step in trace.steps]


def test_without_its_changes_it_is_another_run(tiny, recorded):
    trace = recorded(INTERVENTIONS[0])
    plain = replace(trace, head=replace(trace.head, interventions=()))
    assert not replay(tiny, plain).same
    with pytest.raises(CutawayError, match="not those on record"):
        logits(tiny, plain)


@pytest.mark.parametrize("at", [0, 3, 11])
def test_a_fork_by_changes_begins_at_its_step(tiny, recorded, tmp_path, at):
    trace, path = recorded([]), tmp_path / "fork.jsonl"
    done = branch(tiny, trace, at, interventions=["L0.H1 x 0", scale("L1", 2)], trace=path)
    fork, found = Trace.read(path), diff_texts(trace, Trace.read(path))
    rows = [(a.logits_hash, b.logits_hash) for a, b in zip(trace.steps, fork.steps, strict=False)]
    assert [a == b for a, b in rows[: at + 1]] == [True] * at + [False]
    assert fork.head.parent.token_id is None and fork.head.parent.step == at
    assert [one.from_step for one in fork.head.interventions] == [at, at]
    assert done.token_ids[:at] == trace.output_token_ids[:at]
    assert [step.source for step in fork.steps[: at + 1]] == ["forced"] * at + ["sampled"]
    assert replay(tiny, fork).same
    assert found.is_fork and found.logits_differ_at in (at, None)
    [cause] = [change for change in found.changes if change.name == "interventions"]
    assert (cause.a, cause.b) == (None, f"L0.H1 x 0 from {at}; L1 x 2 from {at}")


def test_a_fork_keeps_the_changes_that_were_there(tiny, recorded, tmp_path):
    trace = recorded(INTERVENTIONS[2])
    branch(tiny, trace, 4, 261, interventions=["L0.attn x 0 from 7"], trace=tmp_path / "fork.jsonl")
    fork = Trace.read(tmp_path / "fork.jsonl")
    assert fork.head.interventions == (*trace.head.interventions, scale("L0.attn", 0, from_step=7))
    assert fork.output_token_ids[:5] == (*trace.output_token_ids[:4], 261)
    assert fork.steps[4].logits_hash == trace.steps[4].logits_hash
    assert replay(tiny, fork).same


def test_a_fork_by_nothing_is_the_run(tiny, recorded):
    trace = recorded([])
    same = branch(tiny, trace, 5, interventions=["L0 x 1"])
    assert same.fingerprint == f"{trace.steps[-1].fingerprint:016x}"


@pytest.mark.parametrize(
    ("more", "sentence"),
    [({}, "needs a token, or interventions"),
     ({"interventions": ["L0"]}, "interventions\\[0\\]: write"),
     ({"interventions": ["L7 x 0"]}, "no L7"), ({"interventions": "L0 x 0"}, "must be a list")],
)  # fmt: skip
def test_what_cannot_be_is_refused(tiny, recorded, more, sentence):
    with pytest.raises(InputError, match=sentence):
        open_branch(tiny, recorded([]), 2, **more)


def test_a_snowball_measures_with_the_changes_that_it_writes_with(tiny):
    made = snowball(tiny, [1, 5, 9], at=[2], max_tokens=8, interventions=["L0 x 2"], seed=3)
    plain = snowball(tiny, [1, 5, 9], at=[2], max_tokens=8, seed=3)
    [fork] = made.forks
    ids = [1, 5, 9, *made.original.token_ids]
    row = tiny.logits(ids, 4, bind([scale("L0", 2)], tiny.graph, 3))[0].astype(float)
    logprob = row[made.original.token_ids[2]] - np.log(np.exp(row - row.max()).sum()) - row.max()
    assert fork.instead_bits == pytest.approx(-logprob / np.log(2), rel=1e-6)
    assert fork.instead_bits != plain.forks[0].instead_bits


def test_curves_of_a_changed_run_and_its_fork(tiny, recorded, tmp_path):
    trace = recorded(INTERVENTIONS[0])
    branch(tiny, trace, 3, 261, trace=tmp_path / "fork.jsonl")
    found = diff_models(tiny, trace, Trace.read(tmp_path / "fork.jsonl"))
    bits = -trace.steps[3].logprob / np.log(2)
    assert found.at == 3 and found.instead_bits == pytest.approx(bits, rel=1e-6)
