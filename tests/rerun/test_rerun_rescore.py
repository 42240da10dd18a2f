"""The recorded tokens read again, against full logits and the record."""

import json

import numpy as np
import pytest

from cutaway import InputError
from cutaway.rerun import rescore
from cutaway.trace import Trace
from support.full_logits import probabilities


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
