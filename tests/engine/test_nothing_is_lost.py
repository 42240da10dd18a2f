"""Killing, cancelling and exhausting the cache lose nothing, on the native backend.

Whoever goes on writes what it writes alone, and every block comes back.
"""

import asyncio
import random
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.async_mock import enter, serve
from support.engine_definition import write_by_definition
from support.engine_mock import (
    MockRequest,
    check,
    forget_cached,
    make_engine,
    read_written,
    score,
    steps_of,
)
from support.engine_requests import CONTEXT, REQUESTS, often_wrong
from support.mock_backend import narrow

pytest.importorskip("cutaway.base._native", reason="the native backend was not built")

from cutaway.engine import FinishReason, RunParams, StopParams
from cutaway.errors import InputError
from cutaway.sampling import Observe, SamplingParams, read_rows
from support.random_llama import write_tiny_llama
from support.ways import Alone, Trial, new_draft, new_engine, open_llm, quick, repeating

SHAPE = {"heads": 4, "kv_heads": 2, "head_dim": 16, "hidden": 64, "feed_forward": 96}
LUCK = SamplingParams(temperature=1, top_p=1, logit_bias=dict.fromkeys(range(70, 74), 12.0))
FEW_BLOCKS = 7
GUESSES = ("off", "ngram", "jacobi", "draft")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nothing lost")
    return write_tiny_llama(folder / "tiny.gguf", **SHAPE, context=256, format="Q8_0")


@pytest.fixture(scope="module")
def alone(path):
    return Alone(new_engine(open_llm(path, 1, 8)))


@pytest.fixture(scope="module")
def few(path):
    return open_llm(path, 2, FEW_BLOCKS)


@pytest.fixture(scope="module")
def draft(path):
    return new_draft(open_llm(path, 1, 2 * FEW_BLOCKS))


@pytest.fixture
def trial(few, draft):
    return new_trial(few, draft, rows=33)


def new_trial(llm, draft, **policy):
    trial = Trial(new_engine(llm, **policy))
    trial.engine.speculator.draft = draft
    return trial


def request(length, tokens, speculate="off", seed=0, **observe):
    """A prompt of that length, told from others by its seed."""
    stops = StopParams(max_tokens=tokens, ignore_eos=True)
    params = replace(LUCK, seed=seed)
    run = RunParams(speculate=speculate)
    return MockRequest(repeating(seed, 11, length), params, stops, run, Observe(**observe))


def assert_as_alone(trial, alone):
    """Those that ended wrote all of their text; those that were ended, the beginning of it."""
    for asked, wrote in trial.texts():
        whole, count = alone.write(asked), len(wrote.token_ids)
        if wrote.finish_reason not in (None, FinishReason.ABORTED):
            assert wrote == whole
        assert wrote.token_ids == whole.token_ids[:count]
        assert wrote.fingerprints == whole.fingerprints[:count]


# -- exhausting the cache ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "prefix_cache", "speculate"), [*product((512, 7), (True, False), GUESSES)]
)
def test_more_texts_than_there_is_room_for(few, draft, alone, rows, prefix_cache, speculate):
    """They grow at each other's cost, with samples that share blocks among them."""
    trial = new_trial(few, draft, rows=rows, prefix_cache=prefix_cache)
    for seed in range(6):
        trial.add_samples(request(20 + 9 * seed, 100, speculate, seed), 1 + seed % 3)
    trial.finish()
    assert_as_alone(trial, alone)
    assert trial.engine.scheduler.preemptions > 2
    assert (trial.engine.blocks.evictions > 2) == prefix_cache
    shared = [s.num_cached_tokens for _, s in trial.requests if s.fork_of]
    assert any(cached % 32 for cached in shared), "nobody shared a block that was begun"
    told = [s.speculation.accepted for _, s in trial.requests]
    assert (sum(told) > 0) == (speculate != "off")


@pytest.mark.parametrize("speculate", GUESSES)
def test_a_text_that_takes_every_block(trial, alone, speculate):
    trial.add(request(200, 24, speculate, seed=1))
    trial.add(request(100, 100, speculate, seed=2))
    trial.finish()
    assert [wrote for _, wrote in trial.texts()] == [
        alone.write(asked) for asked, _ in trial.requests
    ]


def test_what_can_never_fit_is_refused_and_the_others_go_on(trial, alone):
    trial.add(request(40, 30))
    trial.step()
    with pytest.raises(InputError) as refusal:
        request(200, 40).add_to(trial.engine)
    assert str(refusal.value) == (
        "prompt and max_tokens need 8 KV blocks of 32 tokens; there are 7: "
        "shorten the prompt or lower max_tokens"
    )
    trial.finish()
    assert_as_alone(trial, alone)


# -- cancelling --------------------------------------------------------------------------------


def phase(sequence):
    """Where a sequence is, as far as it matters for what it holds."""
    if not sequence.memory.blocks:
        return "sent away" if sequence.output_token_ids else "queue"
    return "decode" if sequence.output_token_ids else "prefill"


def test_texts_are_ended_wherever_they_are(few, draft, alone):
    """Those that are left are as if the others had never been."""
    rng, met, preemptions = random.Random(0), set(), 0
    for _ in range(6):
        trial = new_trial(few, draft, rows=rng.choice([5, 33, 512]))
        for number in range(30):
            one = request(rng.randint(1, 100), rng.randint(1, 60), rng.choice(GUESSES), number)
            run = replace(one.run, priority=rng.randint(-1, 0))
            trial.add_samples(replace(one, run=run), rng.choice([1, 1, 3]))
            for _ in range(rng.randint(0, 6)):
                trial.step()
            there = trial.engine.running + trial.engine.waiting
            for ended in rng.sample(there, len(there) // 2):
                met.add(phase(ended))
                trial.engine.abort(ended)
                assert ended.finish_reason is FinishReason.ABORTED
        trial.finish()
        assert_as_alone(trial, alone)
        preemptions += trial.engine.scheduler.preemptions
    assert preemptions > 0
    assert met == {"queue", "prefill", "decode", "sent away"}


# -- killing -----------------------------------------------------------------------------------


class Killed(Exception):
    """Whatever may end a step in its midst."""


def kill(backend, monkeypatch, name, turn):
    """Make that call of ``run`` or ``copy_blocks`` fail: before it computes, or after."""
    method, calls = getattr(backend, name), iter(range(10**6))

    def failing(*arguments):
        if (call := next(calls)) == turn // 2 and turn % 2:
            raise Killed
        result = method(*arguments)
        if call == turn // 2:
            raise Killed
        return result

    monkeypatch.setattr(backend, name, failing)


@pytest.mark.parametrize(
    ("victim", "name", "turns"),
    [("target", "run", 40), ("target", "copy_blocks", 4), ("draft", "run", 20)],
)
def test_a_step_that_is_killed(few, draft, alone, monkeypatch, victim, name, turns):
    """At any of these calls: what the engine holds can go on, or be ended and leave nothing."""
    for turn, goes_on in product(range(turns), (True, False)):
        trial = new_trial(few, draft, rows=33)
        for seed, speculate in enumerate(GUESSES):
            trial.add_samples(request(30 + 20 * seed, 30, speculate, seed), 3)
        backend = draft.backend if victim == "draft" else trial.engine.backend
        with monkeypatch.context() as patch, pytest.raises(Killed):
            kill(backend, patch, name, turn)
            trial.finish()
        if not goes_on:
            for _, sequence in trial.requests:
                trial.engine.abort(sequence)
        trial.finish()
        assert_as_alone(trial, alone)


# -- log-probabilities -------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [512, 7])
def test_log_probabilities_do_not_tell_whether_the_prompt_was_cached(few, draft, rows):
    trial = new_trial(few, draft, rows=rows)
    told, cached = [], []
    for prompt_top, warm in product((0, 3), (False, True)):
        forget_cached(trial.engine.blocks)
        asked = request(80, 12, top=5, after_chain=True, prompt_top=prompt_top)
        if warm:
            trial.add(quick((*asked.prompt[:70], 3)))
            trial.finish()
        trial.steps = []
        samples = trial.add_samples(asked, 2)
        trial.finish()
        likely = [[s.observed for s in steps_of(trial.steps, one)] for one in samples]
        told.append((likely, samples[0].prompt_scores, samples[1].prompt_scores))
        cached.append([one.num_cached_tokens for one in samples])
    assert cached == [[0, 79], [64, 79], [0, 79], [0, 79]]  # a prompt that is told is read again
    assert [likely for likely, *_ in told[1:]] == [told[0][0]] * 3
    assert told[2] == told[3]
    assert told[0][1:] == told[1][1:] == ([], [])


def test_log_probabilities_of_the_prompt_are_those_of_its_logits(few, draft):
    trial = new_trial(few, draft, rows=7)
    asked = request(80, 1, prompt_top=3)
    sequence = trial.add(asked)
    trial.finish()
    logits = score(trial.engine, asked.prompt)[:-1]
    assert sequence.prompt_scores == read_rows(logits, asked.prompt[1:], 3)


# -- async interleavings ---------------------------------------------------------------------------

# Tasks that come, read and leave in any order, while the engine runs as it likes.
#
# What is read to its end is what the definition of the loop writes for it alone; what is left
# early is a beginning of that; and all blocks come back.


@dataclass(frozen=True)
class Visit:
    """A task that comes after so many calls, and leaves after so many steps, if not before.

    cancelled  after how many calls its task is cancelled
    """

    request: MockRequest
    comes: int
    leaves: int | None
    cancelled: int | None


VISITS = st.builds(
    Visit,
    REQUESTS,
    st.integers(0, 12),
    st.none() | st.integers(1, 6),
    st.sampled_from([None, None, 0, 1, 3, 8]),
)


async def visit(running, visit: Visit, seen: list) -> None:
    """Note in ``seen`` the sequence, once there is one, then its events."""
    for _ in range(visit.comes):
        await running.call(int)
    stream = await enter(running, visit.request)
    [seen[0]] = stream.sequences
    with closing(stream):
        while news := await stream.read():
            for one in news:
                seen.append(one.event)
                if len(steps_of(seen[1:])) == visit.leaves:
                    return


async def cancel_after(running, task, calls: int | None) -> None:
    if calls is not None:
        for _ in range(calls):
            await running.call(int)
        task.cancel()


@given(
    visits=st.lists(VISITS, min_size=1, max_size=6), rows=st.integers(1, 7),
    block=st.integers(1, 5), texts=st.integers(1, 3), running=st.integers(1, 6),
    forget=st.booleans(),
)  # fmt: skip
@settings(max_examples=10)
def test_whatever_the_order_everybody_reads_their_own_text(
    visits, rows, block, texts, running, forget
):
    engine = make_engine(
        narrow, context=CONTEXT, kv_blocks=texts * -(-CONTEXT // block), block=block,
        draft=often_wrong, rows=rows, max_num_seqs=running,
    )  # fmt: skip
    serve(engine, lambda running: all_visit(running, visits, forget))


async def all_visit(running, visits: list[Visit], forget: bool) -> None:
    seen: list[list] = [[None] for _ in visits]
    tasks = [asyncio.create_task(visit(running, *v)) for v in zip(visits, seen, strict=True)]
    cancelling = [cancel_after(running, t, v.cancelled) for t, v in zip(tasks, visits, strict=True)]
    await asyncio.gather(*cancelling)
    if forget:
        await running.call(forget_cached, running.engine.blocks)
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    await running.call(check, running.engine)
    assert not running.engine.running
    assert not running.engine.waiting
    for one, (sequence, *events), end in zip(visits, seen, ends, strict=True):
        if sequence:
            compare(one, read_written(sequence, events), to_the_end=end is None and not one.leaves)


def compare(one: Visit, wrote, *, to_the_end: bool) -> None:
    alone, count = write_by_definition(one.request, narrow, context=CONTEXT), len(wrote.token_ids)
    assert wrote.token_ids == alone.token_ids[:count]
    assert wrote.fingerprints == alone.fingerprints[:count]
    assert alone.text.startswith(wrote.text)
    assert wrote == alone or not to_the_end
    assert one.leaves is None or count <= one.leaves
