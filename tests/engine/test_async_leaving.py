"""Readers that leave: in the queue, in prefill and in decode; whoever leaves, the others stay."""

import asyncio
import gc
from contextlib import closing
from threading import Event

import pytest

from cutaway.engine import FinishReason, RunParams, StopParams
from cutaway.sampling import SamplingParams
from support.async_mock import Lockstep, enter, read_all, served
from support.engine_definition import write_by_definition
from support.engine_mock import GREEDY, MockRequest, make_engine, written
from support.mock_backend import noise

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
@served(small_engine, max_num_seqs=1)
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


@served(small_engine)
async def test_dropping_a_stream_ends_the_sequence(running):
    lockstep = Lockstep(running)
    await enter(running, LONG)
    gc.collect()
    await lockstep.step()
    all_left(running.engine)


@pytest.mark.parametrize("queued", [False, True])
@served(small_engine, max_num_seqs=1)
async def test_cancelling_enter_leaves_nothing(running, queued):
    """Before the engine has queued it, and after, before the task has heard of that."""
    engine, lockstep, heard = running.engine, Lockstep(running), Event()
    first = await enter(running, OTHER)
    task = asyncio.create_task(enter(running, LONG))
    listen = asyncio.create_task(running.call(heard.set))
    await asyncio.sleep(0)
    if queued:
        lockstep.open(1)
        assert heard.wait(timeout=30)  # and meanwhile no task goes on
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


@served(small_engine)
async def test_a_closed_stream_yields_nothing_more(running):
    lockstep = Lockstep(running)
    stream = await enter(running, OTHER)
    await lockstep.step(6)
    assert await stream.read()
    stream.close()
    stream.close()
    assert await stream.read() == []
    await lockstep.step()


@served(small_engine)
async def test_an_abort_by_somebody_else_ends_the_stream(running):
    lockstep = Lockstep(running)
    stream = await enter(running, LONG)
    task = asyncio.create_task(to_the_end(stream))
    abort = asyncio.create_task(running.call(running.engine.abort, stream.sequences[0]))
    await asyncio.sleep(0)
    await lockstep.step()
    await abort
    assert await task == "left"


@served(small_engine)
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
    assert written(second, events) == write_by_definition(sample, noise, context=64)


@served(small_engine, draft=noise)
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
