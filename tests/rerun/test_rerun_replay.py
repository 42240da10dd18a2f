"""Replay on tiny models: the same to the last bit, or the step and the field that are not."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway import LLM, InputError
from cutaway.rerun import replay, rescore
from cutaway.trace import Trace
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
