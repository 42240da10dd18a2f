"""The asynchronous face: the same texts, one call per step, everybody's errors to themselves.

Readers leave in the queue, in prefill and in decode; whoever leaves, the others stay.
"""

import asyncio
import gc
import subprocess
import sys
from contextlib import closing
from threading import Event, current_thread

import numpy as np
import pytest

from cutaway.engine import AsyncEngine, FinishReason, RunParams, StopParams
from cutaway.errors import CutawayError, InputError, QueueFullError
from cutaway.sampling import SamplingParams
from support.async_mock import Lockstep, enter, read, read_all, serve, steps_of, with_async_engine
from support.engine_definition import write_by_definition
from support.engine_mock import GREEDY, MockRequest, check, make_engine, read_written, score
from support.mock_backend import noise

CONTEXT = 64


def requests(count, max_tokens=12):
    stops = StopParams(max_tokens=max_tokens, ignore_eos=True)
    return [MockRequest((7, i), SamplingParams(seed=i), stops) for i in range(count)]


def alone(request):
    return write_by_definition(request, noise, context=CONTEXT)


def broken(_history, _row):
    raise ArithmeticError("the caller's own mistake")


@with_async_engine()
async def test_steps_are_what_the_definition_writes(running):
    (request,) = requests(1)
    steps = [step async for step in steps_of(await enter(running, request))]
    assert tuple(step.token_id for step in steps) == alone(request).token_ids
    assert [step.index for step in steps] == list(range(12))


@with_async_engine(kv_blocks=16)
async def test_many_readers_read_their_own_texts(running):
    every = requests(20)
    texts = await asyncio.gather(*(read(running, request) for request in every))
    assert texts == [alone(request) for request in every]
    assert len(running.engine.backend.runs) < 12 * 20, "they were not computed together"


@with_async_engine()
async def test_samples_share_the_blocks_of_their_leader(running):
    lockstep = Lockstep(running)
    prompt = (7,) * 40
    streams = await enter(running, MockRequest(prompt, SamplingParams(seed=0)), samples=3)
    await lockstep.step()
    lockstep.open()
    events = []
    while news := await streams.read():
        events += [one.event for one in news]
    for sequence in streams.sequences:
        expected = alone(MockRequest(prompt, SamplingParams(seed=sequence.seed)))
        assert read_written(sequence, events) == expected
        assert sequence.num_cached_tokens == (0 if sequence.seed == 0 else 39)


@with_async_engine()
async def test_a_step_of_the_engine_is_one_call_of_the_event_loop(running):
    lockstep, calls = Lockstep(running), []
    first, *others = requests(8)
    stream = await enter(running, first)
    tasks = [asyncio.create_task(read(running, request)) for request in others]
    await lockstep.step()
    await lockstep.wait_until_held()
    loop = asyncio.get_running_loop()
    post = loop.call_soon_threadsafe
    loop.call_soon_threadsafe = lambda f, *args: calls.append(f.__name__) or post(f, *args)
    await lockstep.step(3)
    await lockstep.wait_until_held()
    loop.call_soon_threadsafe = post
    assert len(running.engine.running) == 8
    assert calls.count("_receive") == 3
    lockstep.open()
    assert await read_all(stream) == alone(first)
    assert await asyncio.gather(*tasks) == [alone(r) for r in others]


@with_async_engine()
async def test_a_slow_reader_does_not_hold_up_others(running):
    slow, fast = requests(2, max_tokens=40)
    stream = await enter(running, slow)
    assert await read(running, fast) == alone(fast)
    assert await read_all(stream) == alone(slow)


def test_two_event_loops_read_from_one_engine():
    every = requests(12)

    async def read_some(running, some):
        return await asyncio.gather(*(read(running, request) for request in some))

    async def main(running):
        there = asyncio.to_thread(asyncio.run, read_some(running, every[6:]))
        here, there = await asyncio.gather(read_some(running, every[:6]), there)
        assert [*here, *there] == [alone(request) for request in every]

    serve(make_engine(noise), main)


# -- errors --------------------------------------------------------------------------------------


@with_async_engine()
async def test_what_cannot_be_is_refused_before_anything_is_read(running):
    with pytest.raises(InputError, match="prompt is empty"):
        await enter(running, MockRequest(()))
    assert not running.engine.waiting


@with_async_engine(max_num_seqs=1, max_waiting=1)
async def test_a_full_queue_is_told_to_who_comes_next(running):
    every = requests(3)
    lockstep = Lockstep(running)
    first = await enter(running, every[0])
    await lockstep.step()
    second = asyncio.create_task(read(running, every[1]))
    third = asyncio.create_task(enter(running, every[2]))
    await lockstep.step()
    with pytest.raises(QueueFullError, match="full with 1 waiting"):
        await third
    lockstep.open()
    assert [await read_all(first), await second] == [alone(r) for r in every[:2]]
    assert await read(running, every[2]) == alone(every[2])


@with_async_engine()
async def test_a_sequence_s_own_error_is_raised_to_its_reader_alone(running):
    (request,) = requests(1)
    mistaken = MockRequest((9,), SamplingParams(processors=[broken]))
    right, wrong = await asyncio.gather(
        read(running, request), read(running, mistaken), return_exceptions=True
    )
    assert right == alone(request)
    assert type(wrong) is ArithmeticError


@pytest.mark.parametrize("part", ["run", "copy_blocks"])
@with_async_engine(max_num_seqs=2)
async def test_an_error_of_a_step_is_raised_to_all_and_the_engine_goes_on(running, part):
    every = requests(2, max_tokens=40)
    engine, lockstep = running.engine, Lockstep(running)
    streams = [await enter(running, every[0], samples=2)]
    more = [asyncio.create_task(enter(running, every[1])) for _ in range(2)]
    engine.backend.failures = part == "run"
    working = engine.backend.copy_blocks
    if part == "copy_blocks":
        engine.backend.copy_blocks = broken_copies
    await lockstep.step(1 + (part == "copy_blocks"))
    lockstep.open()
    for stream in [*streams, *[await task for task in more]]:
        if part == "copy_blocks" or stream is streams[0]:
            with pytest.raises(OSError, match="told to fail"):
                while await stream.read():
                    pass
            assert stream.sequences[0].finish_reason == FinishReason.ABORTED
        stream.close()
    engine.backend.copy_blocks = working
    assert [await read(running, r) for r in every] == [alone(r) for r in every]
    await running.call(check, engine)


def broken_copies(_pairs):
    raise OSError("the mock was told to fail")


@with_async_engine()
async def test_a_processor_that_wants_to_exit_ends_texts_and_not_the_thread(running):
    def leave(_tokens, _logits):
        sys.exit("enough")

    params = SamplingParams(processors=(leave,))
    async with asyncio.timeout(30):
        with pytest.raises(CutawayError, match="SystemExit: enough"):
            await read(running, MockRequest((5,), params))
        assert await read(running, MockRequest((6,))) == alone(MockRequest((6,)))


# -- calls ---------------------------------------------------------------------------------------


@with_async_engine()
async def test_a_call_runs_on_the_engine_s_thread_between_steps(running):
    (request,) = requests(1)
    task = asyncio.create_task(read(running, request))
    scored = await running.call(score, running.engine, (1, 2, 3))
    np.testing.assert_array_equal(scored[2], noise((1, 2, 3)))
    assert await running.call(current_thread) is running._thread
    with pytest.raises(InputError, match="token_ids must hold"):
        await running.call(score, running.engine, token_ids=())
    assert await task == alone(request)


@with_async_engine()
async def test_a_call_that_was_given_up_is_not_made(running):
    lockstep, made = Lockstep(running), []
    stream = await enter(running, requests(1)[0])
    task = asyncio.create_task(running.call(made.append, 1))
    await asyncio.sleep(0)
    task.cancel()
    await lockstep.step()
    assert task.cancelled()
    assert not made
    lockstep.open()
    stream.close()


@with_async_engine()
async def test_the_thread_sleeps_while_nobody_is_there(running, monkeypatch):
    await read(running, requests(1)[0])
    turns = []
    monkeypatch.setattr(running, "_step", lambda: turns.append(1) or [])
    await running.call(int)
    await running.call(int)
    await asyncio.sleep(0.05)
    assert len(turns) in (1, 2, 3), "one for what came before, and one for each call"


def test_who_uses_no_event_loop_does_not_load_one():
    code = "import sys, cutaway.api.llm; print('asyncio' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "False\n"
    assert AsyncEngine.__module__ == "cutaway.engine.loop.asynchronous"


# -- readers that leave ----------------------------------------------------------------------------


LONG = MockRequest((5,) * 12, GREEDY, StopParams(max_tokens=40, ignore_eos=True))
OTHER = MockRequest((6,) * 12, SamplingParams(seed=3), StopParams(max_tokens=9, ignore_eos=True))
PHASES = {"queue": 0, "prefill": 1, "decode": 5}
"""Steps of 4 rows that are made before the reader leaves."""


def small_engine(**policy):
    return make_engine(noise, block=4, kv_blocks=32, rows=4, **policy)


async def by_closing(stream, task):
    stream.close()
    assert await task == "left"


async def by_cancelling(stream, task):
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def to_the_end(stream):
    with closing(stream):
        while await stream.read():
            pass
    return "left"


@pytest.mark.parametrize("leave", [by_closing, by_cancelling])
@pytest.mark.parametrize("phase", PHASES)
@with_async_engine(small_engine, max_num_seqs=1)
async def test_who_leaves_gives_back_all_blocks_with_the_next_step(running, phase, leave):
    engine, lockstep = running.engine, Lockstep(running)
    other = await enter(running, OTHER) if phase == "queue" else None
    pending = asyncio.create_task(enter(running, LONG))
    if other:
        await lockstep.step()
    stream = await pending
    task = asyncio.create_task(to_the_end(stream))
    await lockstep.step(PHASES[phase])
    [sequence] = stream.sequences
    assert (sequence in engine.waiting) == (phase == "queue")
    assert bool(sequence.output_token_ids) == (phase == "decode")
    assert bool(sequence.memory.blocks) == (phase != "queue")
    await asyncio.sleep(0)  # a task that has not begun has nothing to leave
    await leave(stream, task)
    await lockstep.step()
    assert sequence.finish_reason == FinishReason.ABORTED
    assert sequence not in [*engine.waiting, *engine.running]
    if other:
        lockstep.open()
        assert await read_all(other) == write_by_definition(OTHER, noise, context=64)
    else:
        assert engine.blocks.free == engine.blocks.count


def all_left(engine):
    assert not engine.running
    assert not engine.waiting
    assert engine.blocks.free == engine.blocks.count


@with_async_engine(small_engine)
async def test_dropping_a_stream_ends_the_sequence(running):
    lockstep = Lockstep(running)
    await enter(running, LONG)
    gc.collect()
    await lockstep.step()
    all_left(running.engine)


@pytest.mark.parametrize("queued", [False, True])
@with_async_engine(small_engine, max_num_seqs=1)
async def test_cancelling_enter_leaves_nothing(running, queued):
    """Before the engine has queued it, and after, before the task has heard of that."""
    engine, lockstep, heard = running.engine, Lockstep(running), Event()
    first = await enter(running, OTHER)
    task = asyncio.create_task(enter(running, LONG))
    listen = asyncio.create_task(running.call(heard.set))
    await asyncio.sleep(0)
    if queued:
        lockstep.open(1)
        assert heard.wait(timeout=300)  # and meanwhile no task goes on
        assert len(engine.waiting) == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await lockstep.step(2)
    assert engine.running == first.sequences
    assert not engine.waiting
    first.close()
    await lockstep.step()
    await listen


@with_async_engine(small_engine)
async def test_a_closed_stream_yields_nothing_more(running):
    lockstep = Lockstep(running)
    stream = await enter(running, OTHER)
    await lockstep.step(6)
    assert await stream.read()
    stream.close()
    stream.close()
    assert await stream.read() == []
    await lockstep.step()


@with_async_engine(small_engine)
async def test_an_abort_by_somebody_else_ends_the_stream(running):
    lockstep = Lockstep(running)
    stream = await enter(running, LONG)
    task = asyncio.create_task(to_the_end(stream))
    abort = asyncio.create_task(running.call(running.engine.abort, stream.sequences[0]))
    await asyncio.sleep(0)
    await lockstep.step()
    await abort
    assert await task == "left"


@with_async_engine(small_engine)
async def test_a_first_sample_that_ends_early_does_not_take_the_others_along(running):
    params = SamplingParams(seed=3)
    lockstep = Lockstep(running)
    streams = await enter(running, MockRequest(LONG.prompt, params, OTHER.stops), samples=2)
    first, second = streams.sequences
    await lockstep.step(2)
    ended = asyncio.create_task(running.call(running.engine.abort, first))
    await lockstep.step()
    await ended
    lockstep.open()
    events = []
    while news := await streams.read():
        events += [one.event for one in news]
    sample = MockRequest(LONG.prompt, second.request.sampling, OTHER.stops)
    assert read_written(second, events) == write_by_definition(sample, noise, context=64)


@with_async_engine(small_engine, draft=noise)
async def test_leaving_while_guesses_are_checked(running):
    guessing = MockRequest((1, 2) * 6, GREEDY, LONG.stops, RunParams(speculate="draft"))
    lockstep = Lockstep(running)
    stream = await enter(running, guessing)
    await lockstep.step(4)
    assert stream.sequences[0].speculation.proposed
    stream.close()
    await lockstep.step()
    all_left(running.engine)
    draft = running.engine.speculator.draft
    assert draft.blocks.free == draft.blocks.count
