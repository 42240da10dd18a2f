"""When a step fails, or a sequence in it: the rest goes on, and nothing is left behind."""

import pytest

from cutaway.engine import FinishReason, RunParams, StopParams
from cutaway.sampling import SamplingParams
from support.engine_definition import write_by_definition
from support.engine_mock import MockRequest, end_of, make_engine, run_to_end, steps_of, written
from support.mock_backend import noise, scripted

FIVE = StopParams(max_tokens=5, ignore_eos=True)
SAMPLED = SamplingParams(temperature=3, top_p=1, seed=4)
PROMPT = b"a prompt of twenty-five b"


def request(prompt=PROMPT, params=SAMPLED, **kwargs):
    return MockRequest(tuple(prompt), params, FIVE, **kwargs)


def alone(asked):
    return write_by_definition(asked, noise, context=64)


def test_a_backend_that_fails_once_can_be_asked_again():
    engine = make_engine()
    sequence, steps = request().add_to(engine), []
    for turn in range(5):
        engine.backend.failures = turn % 2
        if turn % 2:
            with pytest.raises(OSError, match="told to fail"):
                engine.step()
        steps += engine.step()
    assert written(sequence, steps) == alone(request())


def failing_on_third(tokens, logits):
    if len(tokens) == 3 + 2:
        raise ZeroDivisionError("a processor of the user")
    return logits


def test_a_sequence_that_fails_leaves_its_company_as_it_was():
    engine = make_engine()
    bad_params = SamplingParams(temperature=0, processors=(failing_on_third,))
    bad, good = request(b"bad", bad_params).add_to(engine), request().add_to(engine)
    events = [*engine.step(), *engine.step()]
    assert end_of(events, bad) is None
    third = engine.step()
    ended = end_of(third, bad)
    assert (ended.reason, ended.usage.completion_tokens) == (FinishReason.ERROR, 2)
    assert isinstance(ended.error, ZeroDivisionError)
    assert steps_of(third) == steps_of(third, good)
    run_to_end(engine, events := events + third)
    assert written(good, events) == alone(request())


def test_a_fork_that_ends_before_its_copy_was_made_leaves_nothing(monkeypatch):
    """Its copy is not made later: the block may be another's by then, and a fork's again."""
    engine = make_engine()
    first, fork, other = engine.add(request().asked(), 3)
    steps = engine.step()
    with monkeypatch.context() as patch, pytest.raises(OSError, match="told to fail"):
        patch.setattr(engine.backend, "copy_blocks", lambda _: engine.backend.run(None))
        engine.backend.failures = 1
        engine.step()
    engine.abort(fork)
    run_to_end(engine, steps)
    seeded = [request(params=s.request.sampling) for s in (first, other)]
    assert [written(s, steps) for s in (first, other)] == [alone(r) for r in seeded]


def test_a_sequence_that_fails_among_its_guesses_is_forgotten():
    prompt, params = b"abcabcabc", SamplingParams(temperature=0, processors=(failing_on_twelfth,))
    engine = make_engine(scripted(list(b"abcabc"), len(prompt)))
    sequence = request(prompt, params, run=RunParams(speculate="ngram")).finish(engine).sequence
    assert isinstance(sequence.error, ZeroDivisionError)
    assert max(engine.backend.runs[1:]) > 1, "nothing was guessed"
    assert not engine.speculator._states


def failing_on_twelfth(tokens, logits):
    return failing_on_third(tokens[7:], logits)


def test_a_sequence_that_cannot_be_restored_ends_and_the_others_go_on(monkeypatch):
    """As where its constraint raises whenever it is made anew."""
    engine = make_engine()
    bad, good = request(b"bad").add_to(engine), request().add_to(engine)
    events = engine.step()
    engine.backend.failures = 1
    with pytest.raises(OSError, match="told to fail"):
        engine.step()
    monkeypatch.setattr(bad, "restore", failing_restore)
    events += engine.step()
    ended = end_of(events, bad)
    assert (ended.reason, str(ended.error)) == (FinishReason.ERROR, "no constraint today")
    run_to_end(engine, events)
    assert written(good, events) == alone(request())


def failing_restore():
    raise ValueError("no constraint today")
