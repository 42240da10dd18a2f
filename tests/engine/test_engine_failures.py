"""When a step fails, or a sequence in it: the rest goes on, and nothing is left behind."""

import pytest

from cutaway.engine import FinishReason, RunParams, StopParams
from cutaway.sampling import SamplingParams
from support.engine_mock import (
    Request,
    check,
    make_engine,
    noise,
    run_to_end,
    scripted,
    write_by_definition,
    written,
)

FIVE = StopParams(max_tokens=5, ignore_eos=True)
SAMPLED = SamplingParams(temperature=3, top_p=1, seed=4)
PROMPT = b"a prompt of twenty-five b"


def request(prompt=PROMPT, params=SAMPLED, **kwargs):
    return Request(tuple(prompt), params, FIVE, **kwargs)


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
    steps = [*engine.step(), *engine.step()]
    assert engine.failed == []
    assert [step.sequence_id for step in engine.step()] == [good.id] == [2 - 1]
    assert (engine.failed, bad.finish_reason) == ([bad], FinishReason.ERROR)
    assert isinstance(bad.error, ZeroDivisionError)
    run_to_end(engine, steps)
    assert engine.failed == []
    assert written(good, steps).token_ids == alone(request()).token_ids[:2] + tuple(
        good.output_token_ids[3:]
    )
    assert good.fingerprint == alone(request()).fingerprints[-1]


def test_a_fork_that_ends_before_its_copy_was_made_leaves_nothing(monkeypatch):
    """Its copy is not made later: the block may be another's by then, and a fork's again."""
    engine = make_engine()
    leader = request().add_to(engine)
    steps = engine.step()
    with monkeypatch.context() as patch, pytest.raises(OSError, match="told to fail"):
        patch.setattr(engine.backend, "copy_blocks", lambda _: engine.backend.run(None))
        engine.backend.failures = 1
        fork = request().add_to(engine, leader=leader)
        engine.step()
    engine.abort(fork)
    check(engine)
    other = request().add_to(engine, leader=leader)
    run_to_end(engine, steps)
    assert written(leader, steps) == written(other, steps) == alone(request())


def test_a_sequence_that_fails_among_its_guesses_is_forgotten():
    prompt, params = b"abcabcabc", SamplingParams(temperature=0, processors=(failing_on_twelfth,))
    engine = make_engine(scripted(list(b"abcabc"), len(prompt)))
    sequence = request(prompt, params, run=RunParams(speculate="ngram")).add_to(engine)
    run_to_end(engine)
    assert isinstance(sequence.error, ZeroDivisionError)
    assert max(engine.backend.runs[1:]) > 1, "nothing was guessed"
    assert not engine.speculator._guessers


def failing_on_twelfth(tokens, logits):
    return failing_on_third(tokens[7:], logits)
