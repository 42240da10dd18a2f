"""Runs on record once more, on tiny models: the same to the last bit, or what is not."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway import LLM, CutawayError, InputError
from cutaway.cli.main import main
from cutaway.rerun import branch, diff_models, logits, open_branch, replay, rescore, token_of
from cutaway.trace import Parent, Trace
from support.full_logits import probabilities
from support.random_llama import write_tiny_llama


@pytest.mark.parametrize("how", [{}, {"speculate": "ngram"}, {"kv_cache": False}])
def test_the_same_run_has_the_same_bits(tiny, trace, how):
    done = replay(tiny, trace, **how)
    assert done.same
    assert (done.steps, done.recorded) == (24, 24)
    assert done.fingerprint == trace.end.fingerprint
    assert done.disagreements == ()
    assert json.loads(json.dumps(done.to_dict()))["same"] is True


def test_other_texts_change_nothing(tiny, trace):
    with tiny.stream("ba", max_tokens=60, seed=1) as one, tiny.stream("abab", seed=2) as two:
        assert replay(tiny, trace).same
        assert next(one).index == next(two).index == 0


def test_other_threads_are_reported_and_change_nothing(tiny, trace, folder):
    done = replay(LLM(folder / "tiny.gguf", threads=tiny.backend.threads + 1), trace)
    assert done.same
    assert [each.field for each in done.disagreements] == ["threads"]
    assert not done.disagreements[0].is_decisive


@given(st.data())
def test_a_digit_of_any_record_stops_the_replay_at_its_step(tiny, trace, data):
    at = data.draw(st.integers(0, 23))
    name = data.draw(st.sampled_from(["logits_hash", "fingerprint"]))
    digit = data.draw(st.integers(0, 15))
    right = f"{getattr(trace.steps[at], name):016x}"
    wrong = right[:digit] + ("0" if right[digit] != "0" else "1") + right[digit + 1 :]
    changed = _with_step(trace, at, **{name: int(wrong, 16)})
    done = replay(tiny, changed)
    assert not done.same
    assert (done.steps, done.mismatch.step) == (at + 1, at)
    assert done.mismatch.what == {name: (wrong, right)}


def test_another_end_on_record_is_a_difference(tiny, trace):
    done = replay(tiny, replace(trace, end=replace(trace.end, reason="end_token", matched=2)))
    assert done.mismatch.step == 23
    assert done.mismatch.what == {"end": (("end_token", 2), ("max_tokens", None))}


def test_steps_taken_off_the_end_are_missed(tiny, trace):
    done = replay(tiny, replace(trace, steps=trace.steps[:-1]))
    assert done.mismatch.step == 22
    right = (trace.end.fingerprint, f"{trace.steps[-2].fingerprint:016x}")
    assert done.mismatch.what == {"fingerprint": right}


@pytest.mark.parametrize(("at", "name"), [(5, "token_id"), (1, "sampled_id")])
def test_another_token_or_draw_on_record_is_a_difference(tiny, trace, at, name):
    """Step 1 was forced, so that only sampled_id shows what luck and chain would have drawn."""
    right = getattr(trace.steps[at], name)
    wrong = (right + 1) % 264
    done = replay(tiny, _with_step(trace, at, **{name: wrong}))
    assert (done.mismatch.step, done.mismatch.what) == (at, {name: (wrong, right)})


@pytest.mark.parametrize("reason", ["aborted", "context_full", "error"])
def test_an_end_from_outside_says_nothing_of_the_tokens(tiny, trace, reason):
    short = replace(trace, steps=trace.steps[:7], end=replace(trace.end, reason=reason))
    assert replay(tiny, short).same


@given(st.data())
def test_a_file_cut_anywhere_replays_as_far_as_it_goes(tiny, trace, data):
    raw = trace.path.read_bytes()
    first = raw.index(b'"kind":"step"')
    cut = Trace.parse(raw[: data.draw(st.integers(first, len(raw)))])
    if not cut.steps:
        with pytest.raises(InputError, match="the trace has no steps"):
            replay(tiny, cut)
        return
    done = replay(tiny, cut)
    assert done.same
    assert done.steps == len(cut.steps)


def test_other_weights_are_refused_by_name_and_differ_at_the_first_step(other, trace):
    with pytest.raises(InputError, match=r"weights: \w{12}… on record, \w{12}… now"):
        replay(other, trace)
    done = replay(other, trace, anyway=True)
    assert [each.field for each in done.disagreements] == ["weights", "model"]
    assert done.mismatch.step == 0
    assert "logits_hash" in done.mismatch.what


@pytest.mark.parametrize("verb", [replay, rescore])
def test_a_context_too_small_is_no_difference_but_refused(folder, trace, verb):
    tokens = len(trace.head.prompt_token_ids) + 24
    assert verb(LLM(folder / "tiny.gguf", context=tokens), trace)
    with pytest.raises(InputError, match=f"{tokens} tokens .* context has room for {tokens - 1}"):
        verb(LLM(folder / "tiny.gguf", context=tokens - 1), trace)


def test_another_backend_is_refused(folder, trace):
    reference = LLM(folder / "tiny.gguf", backend="reference")
    with pytest.raises(InputError, match="backend: cpu on record, reference now"):
        replay(reference, trace)


def test_a_chain_that_is_not_that_of_the_settings_is_refused(tiny, trace):
    head = replace(trace.head, chain=trace.head.chain[:-1])
    sentence = r"chain: (.+), top-k 40(, .+)? on record, \1, top-k 40(, .+)? now"
    with pytest.raises(InputError, match=sentence):
        replay(tiny, replace(trace, head=head))


def test_other_tokens_are_refused(trace, tmp_path):
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁", *"xbcd"]
    llm = LLM(write_tiny_llama(tmp_path / "c.gguf", metadata={"tokenizer.ggml.tokens": tokens}))
    with pytest.raises(InputError, match=r"token 26. is b'ab?' in the trace and b'.' in c"):
        replay(llm, trace)


def test_processors_cannot_come_back(tiny, trace):
    head = replace(trace.head, params={**trace.head.params, "processors": ["mine"]})
    with pytest.raises(InputError, match="processors are functions"):
        replay(tiny, replace(trace, head=head))


def _with_step(trace, at, **changes):
    steps = list(trace.steps)
    steps[at] = steps[at]._replace(**changes)
    return replace(trace, steps=tuple(steps))


# -- rescore: tokens read again, against full logits and the record ----------------------------


def bits_of(llm, trace):
    """Surprise and rank of each token, from all logits at once."""
    ids = [*trace.head.prompt_token_ids, *trace.output_token_ids]
    p = probabilities(llm, ids)[len(trace.head.prompt_token_ids) - 1 : -1]
    chosen = p[np.arange(24), list(trace.output_token_ids)]
    return -np.log2(chosen), 1 + (p > chosen[:, None]).sum(axis=1)


def test_the_same_model_reads_what_was_recorded(tiny, trace):
    done = rescore(tiny, trace)
    assert done.old == done.new
    assert done.completion.fingerprint == trace.end.fingerprint
    drawn = sum(step.sampled_id == step.token_id for step in trace.steps)
    assert done.agreement == drawn / 24


def test_another_model_reads_the_same_tokens(tiny, other, trace):
    done = rescore(other, trace)
    assert done.completion.token_ids == done.token_ids == trace.output_token_ids
    for llm, readings in ((tiny, done.old), (other, done.new)):
        bits, ranks = bits_of(llm, trace)
        assert [r.bits for r in readings] == pytest.approx(bits)
        assert [r.rank for r in readings] == ranks.tolist()
    assert done.perplexity[1] == pytest.approx(2 ** bits_of(other, trace)[0].mean())
    assert json.loads(json.dumps(done.to_dict()))["token_ids"] == list(trace.output_token_ids)


def test_other_settings_change_what_the_chain_made_of_it(tiny, trace):
    done = rescore(tiny, trace, top_k=1)
    assert [r.bits for r in done.new] == [r.bits for r in done.old]
    assert all(r.final_bits in (0, None) for r in done.new)
    removed = [r.final_bits is None for r in done.new]
    assert removed == [r.own != t for r, t in zip(done.new, done.token_ids, strict=True)]


def test_the_reading_is_a_trace_of_its_own(tiny, trace, tmp_path):
    rescore(tiny, trace, temperature=2.0, trace=tmp_path / "again.jsonl")
    written = Trace.read(tmp_path / "again.jsonl")
    assert {step.source for step in written.steps} == {"forced"}
    assert written.output_token_ids == trace.output_token_ids


def test_it_keeps_as_much_of_each_step_as_was_recorded(tiny, trace, tmp_path):
    done = rescore(tiny, trace, trace=tmp_path / "again.jsonl")
    head = Trace.read(tmp_path / "again.jsonl").head
    assert (head.candidates, head.tracked_ids) == (3, trace.head.tracked_ids)
    assert all(len(step.observed.candidates) >= 3 for step in done.completion.steps)


def test_several_readings_are_refused(tiny, trace):
    with pytest.raises(InputError, match="n must be 1"):
        rescore(tiny, trace, n=2)


def test_rescoring_needs_observed_steps(tiny, trace):
    with pytest.raises(InputError, match="candidates must be 1 or more"):
        rescore(tiny, trace, candidates=0, track=())


# -- logits: those that the run drew from, or an error -----------------------------------------


def test_they_are_what_the_record_was_made_from(tiny, trace):
    rows = logits(tiny, trace)
    assert rows.shape == (24, 264)
    assert rows.dtype == np.float32
    for step, row in zip(trace.steps, rows, strict=True):
        assert step.observed.maximum == row.max()
        assert all(row[c.id] == np.float32(c.logit) for c in step.observed.candidates)


def test_other_weights_are_an_error_at_the_first_step(other, trace):
    with pytest.raises(CutawayError, match="the logits of step 1 are not those on record"):
        logits(other, trace)


def test_another_hash_is_an_error_at_its_step(tiny, trace):
    wrong = trace.steps[7]._replace(logits_hash=0)
    changed = replace(trace, steps=(*trace.steps[:7], wrong, *trace.steps[8:]))
    with pytest.raises(CutawayError, match="step 8 are not those"):
        logits(tiny, changed)


def test_a_trace_without_steps(tiny, trace):
    with pytest.raises(InputError, match="no steps"):
        logits(tiny, replace(trace, steps=(), end=None))


def test_the_command_writes_a_file_of_numpy(tiny, trace, folder, tmp_path, capsys):
    out = tmp_path / "näive run.npy"
    args = ["trace", "logits", str(trace.path), "-m", str(folder / "tiny.gguf"), "--out", str(out)]
    assert main(args) == 0
    assert "24 steps of 264 logits" in capsys.readouterr().err
    np.testing.assert_array_equal(np.load(out), logits(tiny, trace))
    assert main(args) == 2
    assert "exists already" in capsys.readouterr().err
    assert main([*args[:-1], str(tmp_path / "no" / "such.npy")]) == 2
    assert "cannot be written; name a file in a folder that can" in capsys.readouterr().err


# -- rerun branch ----------------------------------------------------------------------------------

# Forks of a recorded run, and the model's comparison of two runs.


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
