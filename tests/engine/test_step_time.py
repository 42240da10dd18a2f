"""StepTime beside costs that are known, and an engine that heeds it: the texts stay the same."""

from functools import cache
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway import LLM
from cutaway.engine import StopParams
from cutaway.engine.loop.scheduler import ALONE_EVERY, LEAST_ROWS, Policy, StepRows, StepTime
from cutaway.errors import InputError
from cutaway.sampling import SamplingParams
from support.engine_mock import MockRequest, make_engine

CAP = 128


def seconds(rows: StepRows, speed: float = 1.0) -> float:
    """As SmolLM2's steps on one thread: attention makes a row at 4,096 cost seven at the start."""
    middle = rows.position + rows.prompts / 2
    return speed * (0.008 + 0.001 * rows.decoding + rows.prompts * (0.0006 + 0.95e-6 * middle))


def beside(time, tokens, step_ms, decoding=10, start=0, speed=lambda: 1.0):
    """Read a prompt beside rows that decode: the rows of each step, and what it took."""
    steps, position = [], start
    while position < tokens:
        room = time.room(position, step_ms)
        prompts = min(CAP if room is None else min(room, CAP), tokens - position)
        rows = StepRows(decoding, prompts, position)
        steps.append((rows, seconds(rows, speed())))
        time.learn(*steps[-1])
        position += prompts
    return steps


def warm(decoding=10):
    """Has seen a prompt of 64 tokens alone, and then texts."""
    time = StepTime()
    for rows in (StepRows(0, 64, 0), *[StepRows(decoding, 0, 0)] * 3):
        time.learn(rows, seconds(rows))
    return time


ALONE = seconds(StepRows(10, 0, 0))
TEN = 10e3 * ALONE
"""A target of ten times what the texts take alone."""


@pytest.mark.parametrize(("step_ms", "most"), [(TEN, 10 * ALONE), (1, 2 * ALONE), (100, 0.1)])
def test_a_step_takes_as_long_as_it_may(step_ms, most):
    found = [took for rows, took in beside(warm(), 4096, step_ms) if CAP > rows.prompts > 0]
    assert max(found) < 1.25 * most
    assert sum(found) / len(found) > 0.85 * most


def test_beside_a_tenth_of_a_step_a_prompt_is_read_at_nine_tenths_of_its_rate():
    whole = sum(seconds(StepRows(0, CAP, at)) for at in range(0, 4096, CAP))
    assert sum(took for _, took in beside(warm(), 4096, TEN)) < 1.15 * whole


@pytest.mark.parametrize("step_ms", [TEN, 1, 30])
def test_a_prompt_always_goes_on(step_ms):
    steps = beside(warm(), 32768, step_ms)
    assert all(rows.prompts >= LEAST_ROWS for rows, _ in steps[:-1] if rows.prompts)
    idle = [i for i, (rows, _) in enumerate(steps) if not rows.prompts]
    assert len(idle) <= len(steps) // ALONE_EVERY + 1


def test_what_texts_take_alone_is_measured_first_and_again_every_so_often():
    steps = beside(StepTime(), 8192, 40)
    idle = [i for i, (rows, _) in enumerate(steps) if not rows.prompts]
    assert idle[:3] == [0, ALONE_EVERY + 1, 2 * ALONE_EVERY + 2]


def test_a_step_that_was_held_up_changes_little():
    time, other = warm(), warm()
    for each in (time, other):
        beside(each, 1000, TEN)
    for rows in (StepRows(10, 0, 0), StepRows(10, 60, 1000)):
        time.learn(rows, 50 * seconds(rows))
    assert time.room(1060, TEN) == pytest.approx(other.room(1060, TEN), rel=0.1)


def test_a_noisy_machine_is_no_reason_to_stand_still():
    random = Random(0)
    noisy = beside(warm(), 8192, TEN, speed=lambda: random.choice((1, 1, 1.5, 2, 8)))
    assert len(noisy) < 2 * len(beside(warm(), 8192, TEN))


def test_a_prompt_that_begins_is_not_taken_for_one_that_is_far():
    time = warm()
    beside(time, 512, 40)
    first = time.room(0, 40)
    beside(time, 8192, 40, start=512)
    assert time.room(0, 40) == first
    assert time.room(7000, 40) < first / 4


def test_more_texts_are_noticed_while_prompts_never_end():
    time = warm(1)
    before = time.room(200, 1)
    for _ in range(4):
        beside(time, 4096, 1, decoding=30)
    assert time.room(200, 1) > 2 * before


@given(st.lists(st.tuples(st.integers(0, 64), st.integers(0, 512), st.integers(0, 9000),
                          st.floats(0, 10)), max_size=60),
       st.floats(0.001, 60000), st.integers(0, 9000))  # fmt: skip
def test_any_times_give_rows(steps, step_ms, position):
    time = StepTime()
    for decoding, prompts, at, took in steps:
        if decoding or prompts:
            time.learn(StepRows(decoding, prompts, at), took)
    room = time.room(position, step_ms)
    assert room is None or room == 0 or room >= LEAST_ROWS


# -- in an engine --------------------------------------------------------------------------------

LONG = tuple(i % 7 + 1 for i in range(200))


def texts(step_ms, took):
    """Three texts and a long prompt that comes beside them; and the rows of prompts by step.

    took: seconds of a step, by its rows
    """
    engine = make_engine(
        context=512, kv_blocks=99, step_ms=step_ms, max_prefill_rows_while_decoding=64
    )
    scheduler, steps = engine.scheduler, []
    learn = scheduler.learn

    def learn_otherwise(_seconds):
        steps.append(scheduler._step_rows)
        learn(took(steps[-1]))

    scheduler.learn = learn_otherwise
    options = SamplingParams(seed=3), StopParams(max_tokens=60, ignore_eos=True)
    added = [MockRequest((i, i + 1), *options).add_to(engine) for i in (1, 2, 3)]
    while len(added[0].output_token_ids) < 8:
        engine.step()
    added.append(MockRequest(LONG, *options).add_to(engine))
    del steps[:]
    while not engine.is_idle:
        engine.step()
    tokens = [sequence.output_token_ids for sequence in added]
    return tokens, [rows.prompts for rows in steps if rows.decoding and rows.prompts]


def test_an_engine_heeds_the_target():
    without, plain = texts(0, seconds)
    held, chunks = texts(20, seconds)
    assert plain[:3] == [61] * 3
    assert all(LEAST_ROWS <= chunk < 30 for chunk in chunks[2:-1])
    assert sum(chunks) == sum(plain)
    assert held == without


@settings(max_examples=20)
@given(st.randoms(use_true_random=False), st.sampled_from([500, 1, 20]))
def test_whatever_steps_take_texts_are_the_same(random, step_ms):
    assert texts(step_ms, lambda _rows: random.random() ** 3)[0] == expected_texts()


@cache
def expected_texts():
    return texts(0, seconds)[0]


def test_bits_are_the_same_with_every_target(tiny_path):
    def fingerprints(step_ms):
        options = {"max_tokens": 40, "ignore_eos": True, "seed": 5}
        with LLM(tiny_path, threads=1, step_ms=step_ms, progress=False) as llm:
            streams = [llm.stream([i + 1], **options) for i in range(3)]
            for stream in streams:
                next(stream)
            streams.append(llm.stream([i % 90 + 1 for i in range(80)], **options))
            return [stream.finish().fingerprint for stream in streams]

    assert fingerprints(500) == fingerprints(0.001) == fingerprints(0)


@pytest.mark.parametrize("step_ms", [-1, float("nan"), float("inf"), "20", True])
def test_a_target_is_a_number_of_milliseconds(step_ms):
    with pytest.raises(InputError, match="step_ms must be"):
        Policy(step_ms=step_ms)


@pytest.mark.parametrize("step_ms", [0, 20])
def test_a_prompt_goes_on_beside_however_many_texts(step_ms):
    engine = make_engine(
        kv_blocks=99, rows=64, max_prefill_rows_while_decoding=6, max_num_seqs=9, step_ms=step_ms
    )
    options = SamplingParams(seed=3), StopParams(max_tokens=60, ignore_eos=True)
    writing = [MockRequest((i,), *options).add_to(engine) for i in range(8)]
    while not all(s.output_token_ids for s in writing):
        engine.step()
    prompt = MockRequest(LONG[:20], *options).add_to(engine)
    for _ in range(10):
        engine.step()
    assert prompt.output_token_ids
