"""score(): teacher-forced logits, bit for bit those of single steps."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway.engine import Request, RunParams, Score, Scored, StopParams
from cutaway.errors import InputError
from cutaway.sampling import SamplingParams
from cutaway.sampling.observe import START, chain_hash, row_hash
from support.engine_mock import GREEDY, MockRequest, add, make_engine, run_to_end, score, write
from support.mock_backend import noise

TOKENS = st.lists(st.integers(0, 256), min_size=1, max_size=64).map(tuple)


def assert_same_bits(ours, theirs):
    np.testing.assert_array_equal(ours.view(np.uint32), np.array(theirs).view(np.uint32))


@given(TOKENS, st.integers(1, 70), st.integers(1, 33))
@settings(deadline=None)
def test_every_row_is_the_models_own_in_chunks_of_any_size(tokens, rows, block):
    engine = make_engine(rows=rows, block=block)
    scored = score(engine, tokens)
    assert (scored.dtype, scored.shape) == (np.float32, (len(tokens), 257))
    assert_same_bits(scored, [noise(tokens[: i + 1]) for i in range(len(tokens))])
    assert len(engine.backend.runs) == -(-len(tokens) // min(rows, 64))
    assert engine.blocks.free == engine.blocks.count


@given(TOKENS, st.data(), st.integers(1, 70))
def test_rows_may_begin_at_any_position(tokens, data, rows):
    start = data.draw(st.integers(0, len(tokens) - 1))
    engine = make_engine(rows=rows)
    assert_same_bits(score(engine, tokens, start), score(engine, tokens)[start:])


def test_scoring_what_was_written_gives_its_fingerprint():
    prompt, params = tuple(b"once"), SamplingParams(temperature=2, seed=3)
    wrote = write(noise, prompt, params, max_tokens=20, ignore_eos=True)
    scored, chained = score(make_engine(), (*prompt, *wrote.token_ids)), START
    for row in scored[len(prompt) - 1 : -1]:
        chained = chain_hash(chained, row_hash(row))
    assert chained == wrote.fingerprints[-1]


def test_the_whole_context_can_be_scored():
    assert len(score(make_engine(context=64), (7,) * 64)) == 64


def test_earlier_scores_are_not_overwritten_by_later_ones():
    engine = make_engine()
    first = score(engine, (1, 2))
    score(engine, (3, 4))
    assert_same_bits(first, [noise((1,)), noise((1, 2))])


def test_scoring_between_steps_disturbs_nobody():
    engine, prompt = make_engine(), list(b"abc")
    sequence = add(engine, prompt, GREEDY, StopParams(max_tokens=6, ignore_eos=True))
    while engine.running or engine.waiting:
        engine.step()
        score(engine, (9,) * 40)
    alone = write(noise, prompt, max_tokens=6, ignore_eos=True)
    assert tuple(sequence.output_token_ids) == alone.token_ids
    assert sequence.fingerprint == alone.fingerprints[-1]


def test_scoring_waits_for_room_and_takes_none_from_who_runs():
    engine = make_engine(kv_blocks=2)
    writer = add(engine, (1,) * 40, GREEDY, StopParams(max_tokens=20, ignore_eos=True))
    engine.step()
    assert score(engine, (1,)).shape == (1, 257)
    assert writer.finish_reason is not None


def test_a_text_that_never_fits_is_refused_whether_others_run_or_not():
    engine = make_engine(kv_blocks=1)
    with pytest.raises(InputError, match="need 2 KV blocks of 32 tokens; there are 1"):
        score(engine, (1,) * 33)
    assert score(engine, (1,) * 32).shape == (32, 257)


def test_a_score_that_was_preempted_tells_each_row_once():
    engine = make_engine(rows=4, kv_blocks=4, block=4)
    tokens = tuple(range(12))
    [scored] = engine.add(Request(prompt_token_ids=tokens, decoder=Score(logits_from=1)))
    events = [*engine.step(), *engine.step()]
    MockRequest((9,) * 9, GREEDY, StopParams(max_tokens=5), RunParams(priority=-1)).add_to(engine)
    run_to_end(engine, events)
    assert engine.scheduler.preemptions == 1
    rows = np.concatenate([e.logits for e in events if isinstance(e, Scored)])
    assert_same_bits(rows, [noise(tokens[: i + 1]) for i in range(1, 12)])
    assert scored.finish_reason == "scored"
