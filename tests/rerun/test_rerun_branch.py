"""Forks of a recorded run, and the model's comparison of two runs."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway import InputError
from cutaway.rerun import branch, diff_models, open_branch, replay, token_of
from cutaway.trace import Parent, Trace
from support.full_logits import probabilities


@given(st.integers(1, 23))
def test_the_recorded_token_gives_the_recorded_text(tiny, trace, at):
    """At step 0 it need not: the second token was given, and a fork draws what follows it."""
    done = branch(tiny, trace, at, trace.output_token_ids[at])
    assert done.token_ids == trace.output_token_ids
    assert done.fingerprint == trace.end.fingerprint


def test_the_fork_names_its_parent_and_replays(tiny, trace, tmp_path):
    done = branch(tiny, trace, 9, "b", trace=tmp_path / "fork.jsonl")
    fork = Trace.read(tmp_path / "fork.jsonl")
    assert fork.head.parent == Parent(trace.sha256, 9, 261)
    assert (fork.head.prompt, fork.head.seed) == ("ab", 3)
    assert fork.head.candidates == trace.head.candidates
    assert done.token_ids[:10] == (*trace.output_token_ids[:9], 261)
    assert fork.output_token_ids == done.token_ids
    assert {step.source for step in fork.steps[:10]} == {"forced"}
    assert {step.source for step in fork.steps[10:]} == {"sampled"}
    assert [s.logits_hash for s in fork.steps[:10]] == [s.logits_hash for s in trace.steps[:10]]
    assert replay(tiny, fork).same


def test_the_luck_of_each_position_is_kept(tiny, trace, tmp_path):
    branch(tiny, trace, 4, 261, trace=tmp_path / "fork.jsonl")
    fork = Trace.read(tmp_path / "fork.jsonl")
    for old, new in zip(trace.steps, fork.steps, strict=True):
        luck = {c.id: c.luck for c in old.observed.candidates}
        shared = [c for c in new.observed.candidates if c.id in luck]
        assert shared
        assert all(c.luck == luck[c.id] for c in shared)


def test_fresh_luck_takes_another_seed(tiny, trace):
    chosen = branch(tiny, trace, 4, 261, luck="fresh")
    assert chosen.seed != 3
    assert branch(tiny, trace, 4, 261, luck="fresh", seed=chosen.seed).token_ids == chosen.token_ids


def test_a_fork_shares_the_prompt_in_the_cache(tiny, tmp_path):
    prompt = "ab" * 40
    tiny.generate(prompt, max_tokens=6, seed=3, ignore_eos=True, trace=tmp_path / "long.jsonl")
    done = branch(tiny, Trace.read(tmp_path / "long.jsonl"), 3, 261)
    assert done.usage.cached_tokens == 32


def test_a_token_is_named_by_its_exact_text(tiny):
    assert token_of(tiny, "ab") == 262
    assert token_of(tiny, " a") == 263
    with pytest.raises(InputError, match=r"'abb' is not one token but 3 .*262 'ab', 261 'b'"):
        token_of(tiny, "abb")
    with pytest.raises(InputError, match="'' is not one token"):
        token_of(tiny, "")


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"at": 24}, "at must be between 0 and 23"),
        ({"at": -1}, "at must be between 0 and 23"),
        ({"token": 264}, "token must be between 0 and 263"),
        ({"luck": "good"}, 'luck must be "same" or "fresh"'),
        ({"seed": 4}, "seed is for fresh luck"),
        ({"max_tokens": 9}, "max_tokens: past the fork it must be 10 or more, not 9"),
        ({"max_tokens": "x"}, "max_tokens: past the fork it must be a whole number"),
    ],
)
def test_what_cannot_be_is_refused(tiny, trace, wrong, sentence):
    with pytest.raises(InputError, match=sentence):
        open_branch(tiny, trace, **{"at": 9, "token": 261} | wrong)


def test_a_file_that_is_there_is_not_written_over(tiny, trace):
    before = trace.path.read_bytes()
    with pytest.raises(InputError, match="exists already"):
        open_branch(tiny, trace, 9, 261, trace=trace.path)
    assert trace.path.read_bytes() == before
    assert not tiny.engine.waiting


# -- diff ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fork(tiny, trace, tmp_path_factory):
    path = tmp_path_factory.mktemp("fork") / "fork.jsonl"
    branch(tiny, trace, 9, 261, trace=path, max_tokens=20)
    return Trace.read(path)


def test_diff_is_what_full_logits_say(tiny, trace, fork):
    done = diff_models(tiny, trace, fork)
    assert (done.at, done.token_id, done.instead_of) == (9, 261, trace.output_token_ids[9])
    assert (len(done.forced), len(done.cost), len(done.free)) == (14, 14, 10)
    prompt, a = list(trace.head.prompt_token_ids), list(trace.output_token_ids)
    plain = probabilities(tiny, prompt + a)
    again = probabilities(tiny, [*prompt, *a[:9], 261, *a[10:]])
    own = probabilities(tiny, [*prompt, *fork.output_token_ids])
    at = len(prompt) + 9
    assert done.bits == pytest.approx(-np.log2(plain[at - 1, 261]))
    assert done.instead_bits == pytest.approx(-np.log2(plain[at - 1, a[9]]))
    for d in range(14):
        p, q, meant = plain[at + d], again[at + d], a[10 + d]
        assert done.forced[d] == pytest.approx((p * np.log2(p / q)).sum(), abs=1e-9)
        assert done.cost[d] == pytest.approx(np.log2(p[meant] / q[meant]), abs=1e-9)
    for d in range(10):
        p, q = plain[at + d], own[at + d]
        assert done.free[d] == pytest.approx((p * np.log2(p / q)).sum(), abs=1e-9)
    assert json.loads(json.dumps(done.to_dict()))["at"] == 9


def test_a_fork_at_the_last_step_has_no_curves(tiny, trace):
    last = replace(trace, steps=trace.steps[:10], end=None)
    wrong = trace.steps[9]._replace(token_id=261)
    done = diff_models(tiny, last, replace(last, steps=(*last.steps[:9], wrong)))
    assert (done.at, len(done.forced), len(done.cost), len(done.free)) == (9, 0, 0, 0)


def test_texts_that_do_not_part_have_no_fork(tiny, trace):
    assert diff_models(tiny, trace, trace) is None
    assert diff_models(tiny, trace, replace(trace, steps=trace.steps[:5])) is None


def test_other_prompts_cannot_be_compared(tiny, trace):
    head = replace(trace.head, prompt_token_ids=(1, 260))
    with pytest.raises(InputError, match="different prompts"):
        diff_models(tiny, trace, replace(trace, head=head))
