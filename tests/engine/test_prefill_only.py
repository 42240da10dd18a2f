"""Texts that are read and not continued: scores, answers and vectors by definition.

Teacher-forced logits are bit for bit those of single steps, whatever else is in the engine and
however a text is cut.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway.engine import (
    Autoregressive,
    Embed,
    Embedded,
    Ended,
    FinishReason,
    Request,
    RunParams,
    Score,
    ScoreAnswers,
    Scored,
    StopParams,
)
from cutaway.engine.decoders.prefill import add_rows
from cutaway.errors import CutawayError, InputError
from cutaway.sampling import Observe, SamplingParams, read_rows
from cutaway.sampling.observe import START, chain_hash, row_hash
from support.engine_mock import GREEDY, MockRequest, add, make_engine, run_to_end, score, write
from support.mock_backend import WIDTH, broken_after, noise

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


# -- answers ---------------------------------------------------------------------------------------


SHORT_TEXTS = st.lists(st.integers(0, 256), min_size=1, max_size=30)
ENDS = st.lists(st.integers(0, 256), min_size=1, max_size=3)


def ask(engine, text, first, ends):
    decoder = ScoreAnswers(first, tuple(ends))
    [sequence] = engine.add(Request(prompt_token_ids=tuple(text), decoder=decoder))
    return sequence.id


def heard(events, id):
    """What it was told of the answer's tokens, each in the place that the events name."""
    scored = [e for e in events if isinstance(e, Scored) and e.id == id]
    found = []
    for event in scored:
        assert event.position == scored[0].position + len(found)
        found += event.rows
    return found


def by_definition(text, first, ends):
    whole = [(text[:i], text[i]) for i in range(first, len(text))] + [(text, end) for end in ends]
    return [read_rows(noise(tuple(before))[None], [token_id], 0)[0] for before, token_id in whole]


@given(
    asked=st.lists(st.tuples(SHORT_TEXTS, SHORT_TEXTS, ENDS), min_size=1, max_size=6),
    shared=st.lists(st.integers(0, 3), max_size=20),
    rows=st.integers(1, 70),
    blocks=st.integers(14, 40),
    again=st.booleans(),
)
def test_answers_are_scored_by_definition_beside_those_that_write(
    asked, shared, rows, blocks, again
):
    """Cut into steps of any size, with few KV blocks, and a second time from the prefix cache."""
    engine = make_engine(rows=rows, kv_blocks=blocks, block=8, context=96)
    for _ in range(1 + again):
        MockRequest((1, 2, 3), GREEDY, StopParams(max_tokens=9, ignore_eos=True)).add_to(engine)
        texts = [((*shared, *prompt, *answer), len(shared) + len(prompt), ends)
                 for prompt, answer, ends in asked]  # fmt: skip
        ids = [ask(engine, *text) for text in texts]
        events = run_to_end(engine)
        for id, text in zip(ids, texts, strict=True):
            assert heard(events, id) == by_definition(*text)
        assert {e.reason for e in events if isinstance(e, Ended) and e.id in ids} == {"scored"}


@given(SHORT_TEXTS, ENDS)
def test_it_says_what_the_scores_of_a_prompt_say(text, ends):
    engine, whole = make_engine(context=64), (*text, ends[0])
    observe = Observe(prompt_top=1)
    [prompt] = engine.add(Request(prompt_token_ids=whole, decoder=Score(), observe=observe))
    id = ask(engine, text, 1, ends[:1])
    events = run_to_end(engine)
    one = [(row.logprob, row.rank) for row in heard(events, id)]
    assert one == [(row.logprob, row.rank) for row in heard(events, prompt.id)]


def test_an_answer_that_was_preempted_is_told_once():
    engine = make_engine(rows=4, kv_blocks=4, block=4)
    text = tuple(range(12))
    id = ask(engine, text, 2, (5, 6))
    events = [*engine.step(), *engine.step()]
    MockRequest((9,) * 9, GREEDY, StopParams(max_tokens=5), RunParams(priority=-1)).add_to(engine)
    run_to_end(engine, events)
    assert engine.scheduler.preemptions == 1
    assert heard(events, id) == by_definition(text, 2, (5, 6))


def test_what_the_cache_has_is_not_read_again():
    engine = make_engine(block=8)
    for end in (1, 2):
        ask(engine, range(20), 20, (end,))
        run_to_end(engine)
    assert engine.backend.runs == [20, 4]


def test_what_answers_begin_with_is_read_once_also_where_they_come_together():
    engine = make_engine(block=8)
    ids = [ask(engine, (*range(20), end), 20, (1,)) for end in range(30, 40)]
    events = run_to_end(engine)
    assert engine.backend.runs == [21, 9 * 5]  # whole blocks of the first; the others' own tokens
    for id, end in zip(ids, range(30, 40), strict=True):
        assert heard(events, id) == by_definition((*range(20), end), 20, (1,))


def test_who_keeps_nothing_waits_for_nobody():
    engine = make_engine(block=8)
    run = RunParams(cache_prompt=False)
    for _ in range(3):
        MockRequest(tuple(range(20)), GREEDY, StopParams(max_tokens=1), run).add_to(engine)
    run_to_end(engine)
    assert engine.backend.runs == [60]


def test_logits_that_are_not_finite_are_its_own_error():
    engine = make_engine(broken_after((1, 2, 3), np.nan))
    bad, good = ask(engine, (1, 2, 3), 1, (4,)), ask(engine, (1, 2), 1, (3,))
    events = run_to_end(engine)
    errors = {e.id: type(e.error) for e in events if isinstance(e, Ended)}
    assert errors == {bad: CutawayError, good: type(None)}
    assert heard(events, good) == by_definition((1, 2), 1, (3,))


@pytest.mark.parametrize(
    ("text", "first", "ends", "says"),
    [
        ((1, 2), 0, (3,), "an answer must come after one token"),
        ((1, 2), 3, (3,), "an answer must come after one token"),
        ((1, 2), 1, (), "have one or more"),
        ((), 1, (3,), "an answer must come after one token"),
        ((1, 2), 1, (257,), "token id 257 is not between 0 and 256"),
        ((1, 300), 1, (2,), "token id 300 is not between 0 and 256"),
        ((1,) * 65, 1, (2,), "1 to 64 ids, not 65"),
    ],
)
def test_what_cannot_be_is_refused(text, first, ends, says):
    with pytest.raises(InputError, match=says):
        ask(make_engine(context=64), text, first, ends)


# -- vectors ---------------------------------------------------------------------------------------


POOLINGS = ("mean", "cls", "last")
TEXTS = st.lists(st.integers(0, 250), min_size=1, max_size=60)


def vector_by_definition(ids, pooling, *, sees_all=False):
    """Row after row, added in float64."""
    seen = [ids if sees_all else ids[: i + 1] for i in range(len(ids))]
    rows = [noise(tuple(one))[:WIDTH] for one in seen]
    if pooling != "mean":
        return rows[0 if pooling == "cls" else -1].astype(np.float64)
    total = np.zeros(WIDTH)
    for row in rows:
        total += row
    return total / len(ids)


def vectors(events):
    return {event.id: event.vector for event in events if isinstance(event, Embedded)}


def ask_for_vector(engine, ids, pooling):
    [sequence] = engine.add(Request(prompt_token_ids=tuple(ids), decoder=Embed(pooling)))
    return sequence


@given(
    texts=st.lists(st.tuples(TEXTS, st.sampled_from(POOLINGS)), min_size=1, max_size=6),
    rows=st.integers(1, 70),
    blocks=st.integers(12, 40),
    again=st.booleans(),
)
def test_a_text_read_in_parts_among_others_has_the_vector_of_its_rows(texts, rows, blocks, again):
    """Beside those that write and are scored, with few KV blocks, and a second time from them."""
    engine = make_engine(rows=rows, kv_blocks=blocks, block=8, context=64)
    for _ in range(1 + again):
        for decoder in (Autoregressive(), Score(logits_from=0)):
            engine.add(MockRequest((1, 2, 3), decoder=decoder).to_request())
        asked = [ask_for_vector(engine, *text) for text in texts]
        events = run_to_end(engine)
        found = vectors(events)
        for sequence, (ids, pooling) in zip(asked, texts, strict=True):
            assert np.array_equal(found[sequence.id], vector_by_definition(ids, pooling))
        ends = [e for e in events if isinstance(e, Ended) and e.id in found]
        assert {e.reason for e in ends} == {FinishReason.SCORED}


@given(
    texts=st.lists(st.tuples(TEXTS, st.sampled_from(POOLINGS)), min_size=1, max_size=6),
    rows=st.integers(8, 130),
)
def test_a_text_that_is_seen_as_a_whole_has_too(texts, rows):
    engine = make_engine(rows=rows, context=64, attention="bidirectional")
    asked = [ask_for_vector(engine, *text) for text in texts]
    found = vectors(run_to_end(engine))
    for sequence, (ids, pooling) in zip(asked, texts, strict=True):
        assert np.array_equal(found[sequence.id], vector_by_definition(ids, pooling, sees_all=True))


def test_the_last_row_goes_on_from_the_prefix_cache():
    engine = make_engine(block=8)
    for pooling, found in (("last", 0), ("last", 24), ("mean", 0)):
        sequence = ask_for_vector(engine, range(30), pooling)
        run_to_end(engine)
        assert sequence.num_cached_tokens == found


@given(st.integers(1, 700), st.integers(2, 400), st.data())
def test_rows_add_up_in_one_order(count, width, data):
    rows = np.random.default_rng(count).normal(size=(count, width)).astype(np.float32)
    rows *= 10.0 ** np.random.default_rng(width).integers(-6, 7, size=rows.shape)
    one = np.zeros(width)
    for row in rows.astype(np.float64):
        one += row
    cut = data.draw(st.integers(0, count))
    total = None
    for part in (rows[:cut], rows[cut:]):
        total = add_rows(total, part) if len(part) else total
    assert np.array_equal(total, one)


def test_a_row_that_is_not_finite_is_the_error_of_its_text():
    engine = make_engine(broken_after((1, 2), float("nan")))
    bad, good = ask_for_vector(engine, (1, 2, 3), "mean"), ask_for_vector(engine, (1, 3), "mean")
    events = run_to_end(engine)
    assert [*vectors(events)] == [good.id]
    assert "not finite" in str(bad.error)


@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_a_text_that_cannot_be_read_is_refused(attention):
    engine = make_engine(rows=20, context=64, attention=attention)
    ask_for_vector(engine, range(64), "mean")
    with pytest.raises(InputError, match="has 65 tokens, and 64 can be read"):
        ask_for_vector(engine, range(65), "mean")
    with pytest.raises(InputError, match="token id 300"):
        ask_for_vector(engine, [300], "mean")
    run_to_end(engine)
