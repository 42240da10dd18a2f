"""What a request's own code throws ends its own text, and no neighbour's, wherever it throws."""

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
from support.engine_mock import MockRequest, check, end_of, make_engine, written
from support.mock_backend import VOCAB, noise

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

    def forced(self):
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


def run_beside(bad):
    """The end of a text that throws, how often a step was torn; its neighbours are unharmed."""
    engine = make_engine(draft=noise, kv_blocks=128)
    goods = [one.add_to(engine) for one in neighbours()]
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
    assert [written(one, events) for one in goods] == EXPECTED
    assert engine.blocks.free == engine.blocks.count
    return end_of(events, sequence), torn


@pytest.mark.parametrize("checks", [(), ("guest",)], ids=["plain", "checks"])
@pytest.mark.parametrize("run", RUNS, ids=str)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("after", [0, 2])
def test_an_exception_of_a_constraint_ends_its_own_text(method, after, run, checks):
    for error in EXCEPTIONS:
        ended, torn = run_beside(
            bad_request(Guests(throwing=(method, after, error, checks)), **run)
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
    schema = {"type": "array", "items": {"enum": [1, 2, 3]}, "uniqueItems": True}
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
                queued.append(running.ask(lambda: running.engine.add(neighbours()[0].asked())))
            raise SystemExit("guest")

        with pytest.raises(CutawayError, match="SystemExit: guest"):
            await read_all(await enter(running, bad_request(processors=(processor,))))
        [sequence] = await asyncio.wrap_future(queued[0])
        assert await running.drain()
        assert written(sequence, sequence.outbox) == EXPECTED[0]

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
