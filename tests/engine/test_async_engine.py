"""The asynchronous face: the same texts, one call per step, everybody's errors to themselves."""

import asyncio
import subprocess
import sys
from threading import current_thread

import numpy as np
import pytest

from cutaway.engine import AsyncEngine, FinishReason, StopParams
from cutaway.errors import CutawayError, InputError, QueueFullError
from cutaway.sampling import SamplingParams
from support.async_mock import Lockstep, enter, read, read_all, serve, served, steps_of
from support.engine_definition import write_by_definition
from support.engine_mock import MockRequest, check, make_engine, score, written
from support.mock_backend import noise

CONTEXT = 64


def requests(count, max_tokens=12):
    stops = StopParams(max_tokens=max_tokens, ignore_eos=True)
    return [MockRequest((7, i), SamplingParams(seed=i), stops) for i in range(count)]


def alone(request):
    return write_by_definition(request, noise, context=CONTEXT)


def broken(_history, _row):
    raise ArithmeticError("the caller's own mistake")


@served()
async def test_steps_are_what_the_definition_writes(running):
    (request,) = requests(1)
    steps = [step async for step in steps_of(await enter(running, request))]
    assert tuple(step.token_id for step in steps) == alone(request).token_ids
    assert [step.index for step in steps] == list(range(12))


@served(kv_blocks=16)
async def test_many_readers_read_their_own_texts(running):
    every = requests(20)
    texts = await asyncio.gather(*(read(running, request) for request in every))
    assert texts == [alone(request) for request in every]
    assert len(running.engine.backend.runs) < 12 * 20, "they were not computed together"


@served()
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
        assert written(sequence, events) == expected
        assert sequence.num_cached_tokens == (0 if sequence.seed == 0 else 39)


@served()
async def test_a_step_of_the_engine_is_one_call_of_the_event_loop(running):
    lockstep, calls = Lockstep(running), []
    first, *others = requests(8)
    stream = await enter(running, first)
    tasks = [asyncio.create_task(read(running, request)) for request in others]
    await lockstep.step()
    await lockstep.held()
    loop = asyncio.get_running_loop()
    post = loop.call_soon_threadsafe
    loop.call_soon_threadsafe = lambda f, *args: calls.append(f.__name__) or post(f, *args)
    await lockstep.step(3)
    await lockstep.held()
    loop.call_soon_threadsafe = post
    assert len(running.engine.running) == 8
    assert calls.count("_receive") == 3
    lockstep.open()
    assert await read_all(stream) == alone(first)
    assert await asyncio.gather(*tasks) == [alone(r) for r in others]


@served()
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


@served()
async def test_what_cannot_be_is_refused_before_anything_is_read(running):
    with pytest.raises(InputError, match="prompt is empty"):
        await enter(running, MockRequest(()))
    assert not running.engine.waiting


@served(max_num_seqs=1, max_waiting=1)
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


@served()
async def test_a_sequence_s_own_error_is_raised_to_its_reader_alone(running):
    (request,) = requests(1)
    mistaken = MockRequest((9,), SamplingParams(processors=[broken]))
    right, wrong = await asyncio.gather(
        read(running, request), read(running, mistaken), return_exceptions=True
    )
    assert right == alone(request)
    assert type(wrong) is ArithmeticError


@pytest.mark.parametrize("part", ["run", "copy_blocks"])
@served(max_num_seqs=2)
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


@served()
async def test_a_processor_that_wants_to_exit_ends_texts_and_not_the_thread(running):
    def leave(_tokens, _logits):
        sys.exit("enough")

    params = SamplingParams(processors=(leave,))
    async with asyncio.timeout(30):
        with pytest.raises(CutawayError, match="SystemExit: enough"):
            await read(running, MockRequest((5,), params))
        assert await read(running, MockRequest((6,))) == alone(MockRequest((6,)))


# -- calls ---------------------------------------------------------------------------------------


@served()
async def test_a_call_runs_on_the_engine_s_thread_between_steps(running):
    (request,) = requests(1)
    task = asyncio.create_task(read(running, request))
    scored = await running.call(score, running.engine, (1, 2, 3))
    np.testing.assert_array_equal(scored[2], noise((1, 2, 3)))
    assert await running.call(current_thread) is running._thread
    with pytest.raises(InputError, match="token_ids must hold"):
        await running.call(score, running.engine, token_ids=())
    assert await task == alone(request)


@served()
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


@served()
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
