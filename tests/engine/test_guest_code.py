"""What a request's own code throws ends its own text, and no neighbour's, wherever it throws.

When a step fails, or a sequence in it, the rest goes on, and nothing is left behind.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from cutaway.engine import ConstraintParams, FinishReason, RunParams, StopParams
from cutaway.engine.constraint import Constraint
from cutaway.errors import CutawayError
from cutaway.sampling import SamplingParams
from support.async_mock import enter, read_all, serve
from support.engine_definition import write_by_definition
from support.engine_mock import (
    MockRequest,
    check,
    end_of,
    make_engine,
    read_written,
    run_to_end,
    steps_of,
)
from support.mock_backend import VOCAB, make_scripted, noise

NEIGHBOURS = 20
STOPPING = StopParams(max_tokens=8, ignore_eos=True)
METHODS = ("mask", "accept", "fork", "forced", "is_over", "refused_by")
RUNS = ({}, {"speculate": "ngram"}, {"speculate": "draft"}, {"kv_cache": False})
"""Ways of running the text that throws."""


class Panic(BaseException):
    """As a native library has it: no Exception."""


EXCEPTIONS = (ValueError("guest"), MemoryError("guest"), RecursionError(), StopIteration("guest"))
OTHERS = (SystemExit("guest"), KeyboardInterrupt("guest"), Panic("guest"), asyncio.CancelledError())


class Throwing(Constraint):
    """Allows all; one of its methods throws, after a number of tokens and later."""

    def __init__(self, method: str, after: int, error: BaseException, checks: tuple[str, ...]):
        self.method, self.after, self.error, self._checks = method, after, error, checks
        self.tokens = 0

    def _called(self, method: str) -> None:
        if method == self.method and self.tokens >= self.after:
            raise self.error

    def mask(self):
        self._called("mask")
        return np.full(-(-VOCAB // 32), 0xFFFFFFFF, np.uint32)

    def accept(self, token_id):
        self._called("accept")
        self.tokens += 1

    def fork(self):
        self._called("fork")
        return super().fork()

    def find_forced_tokens(self):
        self._called("forced")
        return ()

    @property
    def is_over(self):
        self._called("is_over")
        return False

    @property
    def checks(self):
        return self._checks

    @property
    def refused_by(self):
        self._called("refused_by")
        return ()


@dataclass(frozen=True, kw_only=True)
class Guests(ConstraintParams):
    """What makes a ``Throwing``."""

    throwing: tuple[Any, ...] = ()

    @property
    def is_set(self):
        return True

    def make(self, *_):
        return Throwing(*self.throwing)


def bad_request(constraint=None, processors=(), stopping=STOPPING, **run):
    return MockRequest(
        tuple(b"abcabcabc"), SamplingParams(seed=3, processors=processors), stopping,
        RunParams(**run), constraint=constraint or ConstraintParams(),
    )  # fmt: skip


def neighbours():
    return [
        MockRequest(tuple(b"neighbour %d" % i), SamplingParams(temperature=2, seed=i), STOPPING)
        for i in range(NEIGHBOURS)
    ]


EXPECTED = [write_by_definition(one, noise, context=64) for one in neighbours()]


def run_beside(bad, company=NEIGHBOURS):
    """The end of a text that throws, how often a step was torn; its neighbours are unharmed."""
    engine = make_engine(draft=noise, kv_blocks=128)
    goods = [one.add_to(engine) for one in neighbours()[:company]]
    events, torn = engine.step(), 0
    sequence = bad.add_to(engine)
    while not engine.is_idle:
        try:
            events += engine.step()
        except BaseException as error:
            assert not isinstance(error, Exception), "it left the step"
            torn += 1
            assert torn < 20
        else:
            check(engine)
    assert [read_written(one, events) for one in goods] == EXPECTED[:company]
    assert engine.blocks.free == engine.blocks.count
    return end_of(events, sequence), torn


@pytest.mark.each_choice
@pytest.mark.parametrize("checks", [(), ("guest",)], ids=["plain", "checks"])
@pytest.mark.parametrize("run", RUNS, ids=str)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("after", [0, 2])
def test_an_exception_of_a_constraint_ends_its_own_text(method, after, run, checks):
    for error in EXCEPTIONS:
        ended, torn = run_beside(
            bad_request(Guests(throwing=(method, after, error, checks)), **run), company=5
        )
        assert torn == 0
        if ended.reason != FinishReason.MAX_TOKENS:  # a way of running that does not call it
            assert ended.reason == FinishReason.ERROR
            assert str(ended.error) == f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("run", RUNS, ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_any_other_is_raised_once_and_then_its_own_too(method, run):
    """It may have been thrown into the thread; where it comes again, it was not."""
    for error in OTHERS:
        throwing = (method, 2, error, ())
        ended, torn = run_beside(bad_request(Guests(throwing=throwing), **run))
        if ended.reason != FinishReason.MAX_TOKENS:
            assert (ended.reason, torn) == (FinishReason.ERROR, 1)
            assert str(ended.error) == f"{type(error).__name__}: {error}"
            assert isinstance(ended.error, CutawayError)
        else:
            assert torn == 0


def test_a_check_that_takes_too_long_ends_its_own_text(monkeypatch):
    monkeypatch.setattr("cutaway.text.grammar.schema_checks.SchemaCheck.limit_s", 0.0)
    schema = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    ended, torn = run_beside(bad_request(ConstraintParams(json_schema=schema), (), StopParams()))
    assert (ended.reason, torn) == (FinishReason.ERROR, 0)
    assert str(ended.error).startswith("json_schema: to check the next token of ")


@pytest.mark.parametrize("error", [*EXCEPTIONS, *OTHERS], ids=lambda e: type(e).__name__)
def test_a_processor(error):
    def processor(tokens, logits):
        if len(tokens) == 9 + 3:
            raise error
        return logits

    ended, torn = run_beside(bad_request(processors=(processor,)))
    assert (ended.reason, ended.usage.completion_tokens) == (FinishReason.ERROR, 3)
    assert torn == (error in OTHERS)
    if error in EXCEPTIONS[:3]:
        assert ended.error is error


@pytest.mark.parametrize("error", [*EXCEPTIONS, *OTHERS], ids=lambda e: type(e).__name__)
def test_streams_of_an_event_loop(error):
    """None of them has an error of its own, in the thread of an engine of an event loop."""

    async def main(running):
        goods = [await enter(running, one) for one in neighbours()]
        bads = [
            await enter(running, bad_request(Guests(throwing=(method, 2, error, ()))))
            for method in ("mask", "accept", "is_over")
        ]
        for bad in bads:
            with pytest.raises((CutawayError, RuntimeError), match=type(error).__name__):
                await read_all(bad)
        assert [await read_all(one) for one in goods] == EXPECTED

    serve(make_engine(kv_blocks=256), main)


def test_a_request_that_is_queued_behind_a_torn_step_is_written():
    """It was forgotten: the next step undid what came since the torn one began."""

    async def main(running):
        queued = []

        def processor(tokens, logits):
            if not queued:
                queued.append(running.ask(lambda: running.engine.add(neighbours()[0].to_request())))
            raise SystemExit("guest")

        with pytest.raises(CutawayError, match="SystemExit: guest"):
            await read_all(await enter(running, bad_request(processors=(processor,))))
        [sequence] = await asyncio.wrap_future(queued[0])
        assert await running.drain()
        assert read_written(sequence, sequence.outbox) == EXPECTED[0]

    serve(make_engine(), main)


def test_one_that_throws_once_writes_on():
    """As where an interrupt was thrown into the thread while its code ran."""
    left = [KeyboardInterrupt()]

    def processor(tokens, logits):
        if len(tokens) == 9 + 3 and left:
            raise left.pop()
        return logits

    plain, _ = run_beside(bad_request())
    ended, torn = run_beside(bad_request(processors=(processor,)))
    assert (ended.reason, torn) == (FinishReason.MAX_TOKENS, 1)
    assert ended.fingerprint == plain.fingerprint


# -- steps that fail -------------------------------------------------------------------------------


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
    assert read_written(sequence, steps) == alone(request())


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
    assert read_written(good, events) == alone(request())


def test_a_fork_that_ends_before_its_copy_was_made_leaves_nothing(monkeypatch):
    """Its copy is not made later: the block may be another's by then, and a fork's again."""
    engine = make_engine()
    first, fork, other = engine.add(request().to_request(), 3)
    steps = engine.step()
    with monkeypatch.context() as patch, pytest.raises(OSError, match="told to fail"):
        patch.setattr(engine.backend, "copy_blocks", lambda _: engine.backend.run(None))
        engine.backend.failures = 1
        engine.step()
    engine.abort(fork)
    run_to_end(engine, steps)
    seeded = [request(params=s.request.sampling) for s in (first, other)]
    assert [read_written(s, steps) for s in (first, other)] == [alone(r) for r in seeded]


def test_a_sequence_that_fails_among_its_guesses_is_forgotten():
    prompt, params = b"abcabcabc", SamplingParams(temperature=0, processors=(failing_on_twelfth,))
    engine = make_engine(make_scripted(list(b"abcabc"), len(prompt)))
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
    assert read_written(good, events) == alone(request())


def failing_restore():
    raise ValueError("no constraint today")
