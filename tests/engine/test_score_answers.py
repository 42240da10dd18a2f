"""How likely tokens are that are given: by definition, whatever else is in the engine."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.engine import Ended, Request, RunParams, Score, ScoreAnswers, Scored, StopParams
from cutaway.errors import CutawayError, InputError
from cutaway.sampling import Observe, read_rows
from support.engine_mock import GREEDY, MockRequest, make_engine, run_to_end
from support.mock_backend import broken_after, noise

TOKENS = st.lists(st.integers(0, 256), min_size=1, max_size=30)
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
    asked=st.lists(st.tuples(TOKENS, TOKENS, ENDS), min_size=1, max_size=6),
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


@given(TOKENS, ENDS)
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
