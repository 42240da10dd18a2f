"""A request and its events are plain data: another process reads what was sent to it.

The fingerprint: its definition in plain Python, and that nothing escapes it.
"""

import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cutaway.engine import (
    ConstraintParams,
    Ended,
    FinishReason,
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
from cutaway.sampling.observe import START, chain_hash, row_hash
from support.engine_mock import GREEDY, MockRequest, add, make_engine, run_to_end, steps_of, write
from support.mock_backend import broken_after, make_scripted, noise

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


# -- the fingerprint -------------------------------------------------------------------------------


ROWS = arrays(np.uint32, st.integers(1, 40)).map(lambda bits: bits.view(np.float32))
U64 = st.integers(0, 2**64 - 1)
WORD = 2**64


def row_hash_by_definition(bits: list[int]) -> int:
    total = 0
    for place, value in enumerate(bits, start=1):
        x = (value + place * 0x9E3779B97F4A7C15) % WORD
        x ^= x >> 32
        x = x * 0xD6E8FEB86659FD93 % WORD
        x ^= x >> 32
        total = (total + x) % WORD
    return total


@given(ROWS)
def test_the_hash_of_a_row_is_its_definition(row):
    assert row_hash(row) == row_hash_by_definition(row.view(np.uint32).tolist())


def test_the_hash_of_a_row_never_changes():
    """Pinned: recorded fingerprints must stay comparable."""
    assert f"{row_hash(np.array([0, 1, -2.5, 1e-40], np.float32)):016x}" == "c15aabf113abfe8d"
    assert f"{chain_hash(chain_hash(START, 1), 2):016x}" == "1e06b29712e7805c"


@given(ROWS, st.data())
def test_one_flipped_bit_changes_the_hash(row, data):
    flipped = row.view(np.uint32).copy()
    place = data.draw(st.integers(0, len(row) - 1))
    flipped[place] ^= np.uint32(1 << data.draw(st.integers(0, 31)))
    assert row_hash(flipped.view(np.float32)) != row_hash(row)


def test_places_and_signs_of_zero_count_and_memory_layout_does_not():
    row = noise((1,))
    swapped = row.copy()
    swapped[[5, 9]] = swapped[[9, 5]]
    assert row_hash(swapped) != row_hash(row)
    assert row_hash(np.array([0.0], np.float32)) != row_hash(np.array([-0.0], np.float32))
    table = np.stack([row, noise((2,))], axis=1)
    assert row_hash(table[:, 1]) == row_hash(noise((2,)))


@given(U64, U64, U64)
def test_every_row_counts_whatever_came_before_and_so_does_their_order(start, a, b):
    forward = chain_hash(chain_hash(start, a), b)
    backward = chain_hash(chain_hash(start, b), a)
    assert (forward == backward) == (a == b)
    assert 0 <= chain_hash(start, a) < WORD
    assert (chain_hash(start, a) == chain_hash(start, b)) == (a == b)


def test_a_sequence_chains_the_rows_of_its_generated_positions():
    wrote = write(noise, b"abc", max_tokens=4, ignore_eos=True)
    tokens, chained = (*b"abc", *wrote.token_ids), [START]
    for n in range(3, 7):
        chained.append(chain_hash(chained[-1], row_hash_by_definition(bits_after(tokens[:n]))))
    assert wrote.fingerprints == tuple(chained[1:])


def bits_after(tokens):
    return noise(tokens).view(np.uint32).tolist()


def test_a_bit_that_moves_no_token_moves_the_fingerprint():
    model = make_scripted(list(b"hello"), 2)

    def moved(tokens):
        logits = model(tokens)
        if tokens == tuple(b"gohe"):
            logits[200] = np.nextafter(logits[200], np.float32(np.inf))
        return logits

    one, other = (write(m, b"go", max_tokens=5) for m in (model, moved))
    assert one.token_ids == other.token_ids
    same = [a == b for a, b in zip(one.fingerprints, other.fingerprints, strict=True)]
    assert same == [True, True, False, False, False]


# -- logits that are no numbers ----------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("rows", [2, 512])
def test_logits_that_are_not_finite_are_reported_with_their_position(value, rows):
    tokens = (1, 2, 3, *write(noise, (1, 2, 3), max_tokens=2, ignore_eos=True).token_ids)
    engine = make_engine(broken_after(tokens, value), rows=rows)
    sequence = add(engine, (1, 2, 3), GREEDY, StopParams(ignore_eos=True))
    assert len(steps_of(run_to_end(engine))) == 2
    assert sequence.finish_reason == FinishReason.ERROR
    assert isinstance(sequence.error, CutawayError)
    assert str(sequence.error) == "the model's logits at position 5 are not finite"


def test_the_company_of_logits_that_are_not_finite_goes_on():
    engine = make_engine(broken_after((1, 2, 3), np.nan))
    bad, good = add(engine, (1, 2, 3), GREEDY, StopParams()), MockRequest((4, 5)).add_to(engine)
    run_to_end(engine)
    assert bad.finish_reason == FinishReason.ERROR
    assert good.output_token_ids == list(write(noise, (4, 5), max_tokens=8).token_ids)
