"""A request and its events are plain data: another process reads what was sent to it."""

import pickle
import subprocess
import sys

import pytest

from cutaway.engine import (
    ConstraintParams,
    Ended,
    Request,
    RunParams,
    Score,
    Scored,
    Started,
    Step,
    StopParams,
)
from cutaway.errors import CutawayError, InputError
from cutaway.sampling import Observe, SamplingParams
from support.engine_mock import MockRequest

READ = """
import pickle, sys
from cutaway.engine import Request
for one in pickle.load(sys.stdin.buffer):
    print(repr(one))
"""


def failing(tokens, logits):
    raise ZeroDivisionError("a processor of the user")


def read_elsewhere(things) -> list[str]:
    """What another process makes of them."""
    done = subprocess.run(
        [sys.executable, "-c", READ], input=pickle.dumps(things), capture_output=True, check=True
    )
    return done.stdout.decode().splitlines()


REQUESTS = [
    Request(prompt_token_ids=(1, 2)),
    Request(
        prompt_token_ids=(1, 2),
        sampling=SamplingParams(temperature=2, logit_bias={3: 1.5}, seed=2**64 - 1),
        stopping=StopParams(max_tokens=4, stop=("é",), stop_token_ids=(7,)),
        constraint=ConstraintParams(allowed_token_ids=(1, 2), bad_words=("ab",), min_tokens=1),
        run=RunParams(speculate="ngram", forced=(5,), priority=-1),
        observe=Observe(top=3, track=(9,), stages=True, after_chain=True, prompt_top=2),
    ),
    Request(prompt_token_ids=(1, 2), decoder=Score(logits_from=1)),
]


def test_requests_are_read_in_another_process():
    assert read_elsewhere(REQUESTS) == [repr(request) for request in REQUESTS]


def test_events_are_read_in_another_process():
    observe = Observe(top=3, stages=True, after_chain=True, prompt_top=2)
    events = (
        MockRequest((1, 2, 3), SamplingParams(top_k=9, seed=4), observe=observe).finish().events
    )
    assert {type(event) for event in events} == {Started, Scored, Step, Ended}
    assert read_elsewhere(events) == [repr(event) for event in events]
    assert pickle.loads(pickle.dumps(events)) == events


def test_what_a_processor_raised_arrives_as_a_sentence():
    run = MockRequest((1, 2), SamplingParams(processors=(failing,))).finish()
    ended = pickle.loads(pickle.dumps(run.end))
    assert type(ended.error) is CutawayError
    assert str(ended.error) == "ZeroDivisionError: a processor of the user"


def test_a_users_own_processors_are_refused_by_name():
    request = Request(prompt_token_ids=(1,), sampling=SamplingParams(processors=(failing,)))
    with pytest.raises(InputError, match=r"^processors: failing cannot be sent to another process"):
        pickle.dumps(request)
