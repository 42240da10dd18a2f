"""AsyncLLM: a reader that leaves, in whatever way, ends its texts and leaves a readable trace."""

import asyncio
import gc
from threading import Event
from time import perf_counter

import pytest

from cutaway import LLM
from cutaway.errors import CutawayError, QueueFullError
from cutaway.trace import Trace
from support.async_mock import Lockstep
from support.opened_async_llm import LONG, opened


@pytest.fixture(scope="module")
def sync(tiny_path):
    return LLM(tiny_path, threads=1, progress=False)


async def test_a_queue_that_gets_full_half_way_leaves_nothing(tiny_path):
    async with opened(tiny_path, {"max_waiting": 3}) as llm:
        with pytest.raises(QueueFullError):
            await llm.generate(["ab", "b"], n=2, **LONG)
        with pytest.raises(QueueFullError):
            await llm.generate("ab", n=4, **LONG, trace=tiny_path.with_name("full.jsonl"))
        engine = llm.engine.engine
        assert not (engine.running or engine.waiting)
        done = await llm.generate("ab", n=3, max_tokens=1)
        assert len(done) == 3


async def test_a_trace_that_cannot_be_begun_takes_all_samples_along(tiny_path, tmp_path):
    """Also those whose trace was begun, which says so."""

    def record(place):
        if place == 2:
            raise CutawayError("no room for a trace")
        return tmp_path / f"{place}.jsonl"

    async with opened(tiny_path) as llm:
        lockstep = Lockstep(llm.engine)
        options = llm.parse({**LONG, "n": 2}, traced=True)
        submitting = asyncio.create_task(llm.submit(["ab", "b"], options, record=record))
        while not submitting.done():
            await lockstep.step()
        with pytest.raises(CutawayError, match="no room for a trace"):
            await submitting
        await lockstep.step()
        engine = llm.engine.engine
        assert not (engine.running or engine.waiting)
        lockstep.open()
    assert [Trace.read(tmp_path / f"{i}.jsonl").end.reason for i in range(2)] == ["aborted"] * 2
    assert len([*tmp_path.iterdir()]) == 2


async def test_a_cancelled_guest_is_told_that_nobody_waits(tiny_path):
    told, begun = Event(), Event()

    def ask(llm):
        llm.generate("ab", max_tokens=1)
        begun.set()
        try:
            while True:
                llm.generate("ab", max_tokens=1)
        except CutawayError as error:
            assert "nobody waits" in str(error)
            told.set()

    async with opened(tiny_path) as llm:
        task = asyncio.create_task(llm.run_blocking(ask))
        assert await asyncio.to_thread(begun.wait, 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(told.wait, 30)
        assert await llm.run_blocking(LLM.tokenize, "ab") == llm.tokenize("ab")


@pytest.mark.parametrize("steps", [0, 3])
async def test_cancelling_a_task_that_reads_ends_its_texts(tiny_path, steps):
    async with opened(tiny_path) as llm:
        lockstep = Lockstep(llm.engine)
        with await llm.submit(["ab"], llm.parse({**LONG, "n": 2})) as texts:
            task = asyncio.create_task(texts.finish())
            await asyncio.sleep(0)  # a task that has not begun has nothing to leave
            await lockstep.step(steps)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await lockstep.step()
            assert [str(s.finish_reason) for s in texts.each] == ["aborted"] * 2
        lockstep.open()


async def test_cancelling_a_task_that_submits_leaves_nothing(tiny_path):
    async with opened(tiny_path) as llm:
        lockstep = Lockstep(llm.engine)
        with await llm.submit(["ab"], llm.parse(LONG)):
            for polls in range(6):  # wherever it waits: a prompt being read, or the engine
                task = asyncio.create_task(llm.submit(["b"], llm.parse({**LONG, "n": 2})))
                for _ in range(polls):
                    await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            await lockstep.step(2)
            assert len(llm.engine.engine.running) == 1
            assert not llm.engine.engine.waiting
        lockstep.open()


async def test_texts_that_are_dropped_end(tiny_path):
    async with opened(tiny_path) as llm:
        lockstep = Lockstep(llm.engine)
        await llm.submit(["ab"], llm.parse(LONG))
        gc.collect()
        await lockstep.step()
        assert not llm.engine.engine.running
        lockstep.open()


async def test_texts_that_are_left_say_what_was_read_of_them(tiny_path, sync, tmp_path):
    """Also in their traces, however far the engine is ahead."""
    whole = sync.generate("ab", **LONG)
    async with opened(tiny_path) as llm:
        lockstep = Lockstep(llm.engine)
        texts = await llm.submit(["ab"], llm.parse({**LONG, "trace": tmp_path / "left.jsonl"}))
        await lockstep.step(4)
        await texts.read()
        await lockstep.step(3)  # not read
        texts.close()
        assert await texts.read() == []
        lockstep.open()
        text = texts.each[0]
    done, trace = text.completion(), Trace.read(tmp_path / "left.jsonl")
    read = len(done.token_ids)
    assert 4 <= read < 8
    assert done.token_ids == whole.token_ids[:read]
    assert done.finish_reason == "aborted"
    assert done.text == b"".join(map(sync.tokenizer.token_bytes, done.token_ids)).decode(
        errors="replace"
    )
    assert trace.end.reason == "aborted"
    assert tuple(step.token_id for step in trace.steps) == done.token_ids
    assert trace.end.usage["completion_tokens"] == read
    assert trace.end.fingerprint == done.fingerprint
    assert done.fingerprint == f"{trace.steps[-1].fingerprint:016x}"
    assert "".join(step.text for step in trace.steps) + trace.end.text == done.text


async def test_a_text_that_is_left_counts_its_draft_tokens(tiny_path, tmp_path):
    async with opened(tiny_path, speculate=f"draft:{tiny_path}") as llm:
        lockstep = Lockstep(llm.engine)
        texts = await llm.submit(["ab"], llm.parse({**LONG, "trace": tmp_path / "left.jsonl"}))
        [text] = texts.each
        while not any(step.source == "draft" for step in text.steps):
            await lockstep.step()
            await texts.read()
        texts.close()
        lockstep.open()
        done = text.completion()
    accepted = sum(step.source == "draft" for step in done.steps)
    assert 0 < accepted == done.speculation.accepted <= done.speculation.proposed
    assert Trace.read(tmp_path / "left.jsonl").end.speculation == done.speculation._asdict()


async def test_waited_tells_the_queue_from_the_rest(tiny_path):
    async with opened(tiny_path, {"max_num_seqs": 1}) as llm:
        lockstep, began = Lockstep(llm.engine), perf_counter()
        with await llm.submit(["ab"], llm.parse(LONG)) as first:
            pending = asyncio.create_task(llm.submit(["b"], llm.parse(LONG)))
            while not pending.done():
                await lockstep.step()
            with await pending as second:
                assert second.each[0].started is None
                await first.read()
                assert 0 <= first.each[0].started.queued_s < perf_counter() - began
                first.close()
                await lockstep.step(2)
                await second.read()
                assert 0 <= second.each[0].started.queued_s < perf_counter() - began
        lockstep.open()
