"""AsyncLLM: what LLM writes, for many readers at once; those that leave end their texts."""

import asyncio
import gc
import json
from threading import Event
from time import perf_counter

import pytest

from cutaway import LLM, AsyncLLM, CutawayError, InputError
from cutaway.engine import Speculation
from cutaway.errors import QueueFullError
from cutaway.trace import Trace, TraceBuffer
from cutaway.trace.write import line
from support.async_mock import Lockstep
from support.opened_async_llm import LONG, open_llm

SAMPLED = {"max_tokens": 12, "seed": 5, "temperature": 1.0, "ignore_eos": True}


@pytest.fixture(scope="module")
def sync(tiny_path):
    return LLM(tiny_path, threads=1, progress=False)


@pytest.fixture(scope="module")
def lent(tiny_path):
    llm = AsyncLLM(LLM(tiny_path, threads=1, progress=False))
    yield llm
    asyncio.run(llm.aclose())


def told(done):
    """A completion without what depends on time or on other texts."""
    document = done.to_dict()
    return {k: v for k, v in document.items() if k not in ("timing", "usage")}


def lines(raw: bytes):
    """The records of a trace without milliseconds."""
    return [{k: v for k, v in json.loads(r).items() if k != "ms"} for r in raw.splitlines()]


# -- the same as LLM -----------------------------------------------------------------------------


@pytest.mark.each_choice
@pytest.mark.parametrize("prompt", ["ab", [1, 9, 30], ["ab", "b"], [[1, 9], [1, 30]], ["ab"]])
@pytest.mark.parametrize("n", [1, 3])
async def test_generate_gives_what_llm_gives(tiny_path, sync, prompt, n):
    def shape(done):
        return [shape(one) for one in done] if isinstance(done, list) else told(done)

    async with open_llm(tiny_path) as llm:
        found = await llm.generate(prompt, n=n, logprobs=2, **SAMPLED)
    assert shape(found) == shape(sync.generate(prompt, n=n, logprobs=2, **SAMPLED))


async def test_chat_and_stream_give_what_llm_gives(tiny_path, sync):
    messages = [{"role": "user", "content": "hä"}]
    async with open_llm(tiny_path) as llm:
        said = await llm.chat(messages, **SAMPLED)
        steps = [step async for step in llm.stream("ab", **SAMPLED)]
    assert told(said) == told(sync.chat(messages, **SAMPLED))
    whole = sync.generate("ab", **SAMPLED)
    assert tuple(step.token_id for step in steps) == whole.token_ids
    assert "".join(step.text for step in steps) == whole.text
    assert f"{steps[-1].fingerprint:016x}" == whole.fingerprint


async def test_many_readers_get_their_own(tiny_path, sync):
    async with open_llm(tiny_path, {"max_num_seqs": 3}) as llm:
        jobs = [llm.generate("ab", **{**SAMPLED, "seed": i}) for i in range(12)]
        every = await asyncio.gather(*jobs)
    for i, done in enumerate(every):
        assert told(done) == told(sync.generate("ab", **{**SAMPLED, "seed": i}))


async def test_a_requests_options_override_those_of_all(tiny_path, sync):
    async with open_llm(tiny_path, max_tokens=3, top_k=4) as llm:
        done = await llm.generate("ab", top_k=7, seed=1)
    assert done.token_ids == sync.generate("ab", top_k=7, seed=1, max_tokens=3).token_ids
    sources = [done.params_source[name] for name in ("max_tokens", "top_k", "seed", "top_p")]
    assert sources == ["common", "given", "given", "default"]


@pytest.mark.parametrize("n", [1, 2])
async def test_traces_are_those_of_llm(tiny_path, sync, tmp_path, n):
    prompts, buffers = ["ab", "b"], []

    def record(_):
        return lambda *head: buffers.append(TraceBuffer(*head)) or buffers[-1]

    async with open_llm(tiny_path) as llm:
        await llm.generate(prompts, n=n, **SAMPLED, trace=tmp_path / "async.jsonl")
        options = llm.parse({**SAMPLED, "n": n}, traced=True)
        await (await llm.submit(prompts, options, record=record)).finish()
    sync.generate(prompts, n=n, **SAMPLED, trace=tmp_path / "sync.jsonl")
    for i in range(2 * n):
        suffix = "" if i == 0 else f".{i + 1}"
        mine, theirs = (tmp_path / f"{who}{suffix}.jsonl" for who in ("async", "sync"))
        assert lines(mine.read_bytes()) == lines(theirs.read_bytes())
        assert lines(b"".join(map(line, buffers[i].take()))) == lines(theirs.read_bytes())


# -- errors and the end --------------------------------------------------------------------------


async def test_an_error_of_ones_own_is_ones_own(tiny_path, sync):
    def broken(ids, row):
        raise CutawayError("my own")

    async with open_llm(tiny_path) as llm:
        fails = llm.generate("ab", **SAMPLED, processors=(broken,))
        works = llm.generate("ab", **SAMPLED)
        error, done = await asyncio.gather(fails, works, return_exceptions=True)
    assert isinstance(error, CutawayError) and "my own" in str(error)
    assert told(done) == told(sync.generate("ab", **SAMPLED))


@pytest.mark.parametrize(
    ("options", "named"),
    [({"top_k": -1}, "top_k"), ({"topk": 1}, "topk"), ({"speculate": "draft:x"}, "speculate")],
)
async def test_a_bad_option_of_a_request_is_told(tiny_path, options, named):
    async with open_llm(tiny_path) as llm:
        with pytest.raises(InputError, match=named):
            await llm.generate("ab", **options)
        with pytest.raises(InputError, match="n must be 1 to stream"):
            await anext(llm.stream("ab", n=2))


@pytest.mark.parametrize("options", [{"top_k": -1}, {"trace": "x.jsonl"}, {"nonsense": 1}])
def test_a_bad_option_of_all_requests_is_told_at_once(sync, options):
    with pytest.raises(InputError, match=next(iter(options))):
        AsyncLLM(sync, **options)


@pytest.mark.parametrize("n", [1, 2])
async def test_an_empty_list_of_prompts_is_no_prompt(tiny_path, sync, n):
    async with open_llm(tiny_path) as llm:
        with pytest.raises(InputError) as refused:
            await llm.generate([], n=n)
    with pytest.raises(InputError) as caught:
        sync.generate([], n=n)
    assert str(refused.value) == str(caught.value)


async def test_drain_lets_texts_end_and_takes_no_more(tiny_path):
    async with open_llm(tiny_path) as llm:
        with await llm.submit(["ab"], llm.parse(LONG)) as texts:
            assert await llm.drain()
            assert len((await texts.finish())[0].token_ids) == LONG["max_tokens"]
        with pytest.raises(CutawayError, match="closed"):
            await llm.generate("ab")
        with pytest.raises(CutawayError, match="closed"):
            await llm.generate("ab", regex="a")


async def test_close_ends_texts_with_an_error(tiny_path):
    async with open_llm(tiny_path) as llm:
        lockstep = Lockstep(llm.engine)
        with await llm.submit(["ab"], llm.parse(LONG)) as texts:
            llm.close()
            lockstep.open()
            with pytest.raises(CutawayError, match="closed before"):
                await texts.finish()


def test_a_thread_that_cannot_be_had_is_told_and_the_model_still_works(tiny_path, monkeypatch):
    def start(_):
        raise RuntimeError("can't start new thread")

    with LLM(tiny_path, threads=1, progress=False) as llm:
        with monkeypatch.context() as patch, pytest.raises(CutawayError, match="no thread left"):
            patch.setattr("threading.Thread.start", start)
            AsyncLLM(llm)
        assert llm.generate("ab", max_tokens=2).token_ids


# -- other event loops ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "use",
    [
        lambda llm: llm.__aenter__(),
        lambda llm: llm.generate("a"),
        lambda llm: llm.generate("a", regex="a"),
        lambda llm: llm.stream("a").__anext__(),
        lambda llm: llm.chat([{"role": "user", "content": "a"}]),
        lambda llm: llm.embed("a"),
        lambda llm: llm.logits("a"),
    ],
    ids=["enter", "generate", "grammar", "stream", "chat", "embed", "logits"],
)
def test_a_loop_that_is_not_asyncios_is_named(lent, use):
    """As trio would take the first step of a task."""
    with pytest.raises(InputError, match=r"event loop of asyncio.* in trio use an LLM"):
        use(lent).send(None)


# -- a reader that leaves ends its texts, and leaves a readable trace --------------------------


@pytest.fixture(scope="module")
def alone(tiny_path):
    return LLM(tiny_path, threads=1, progress=False)


async def test_a_queue_that_gets_full_half_way_leaves_nothing(tiny_path):
    async with open_llm(tiny_path, {"max_waiting": 3}) as llm:
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

    async with open_llm(tiny_path) as llm:
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

    async with open_llm(tiny_path) as llm:
        task = asyncio.create_task(llm.run_blocking(ask))
        assert await asyncio.to_thread(begun.wait, 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(told.wait, 30)
        assert await llm.run_blocking(LLM.tokenize, "ab") == llm.tokenize("ab")


@pytest.mark.parametrize("steps", [0, 3])
async def test_cancelling_a_task_that_reads_ends_its_texts(tiny_path, steps):
    async with open_llm(tiny_path) as llm:
        lockstep = Lockstep(llm.engine)
        with await llm.submit(["ab"], llm.parse({**LONG, "n": 2})) as texts:
            task = asyncio.create_task(texts.finish())
            await asyncio.sleep(0)  # a task that has not begun has nothing to leave
            await lockstep.step(steps)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await lockstep.step()
            assert [str(s.finish_reason) for s in texts.generations] == ["aborted"] * 2
        lockstep.open()


async def test_cancelling_a_task_that_submits_leaves_nothing(tiny_path):
    async with open_llm(tiny_path) as llm:
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
    async with open_llm(tiny_path) as llm:
        lockstep = Lockstep(llm.engine)
        await llm.submit(["ab"], llm.parse(LONG))
        gc.collect()
        await lockstep.step()
        assert not llm.engine.engine.running
        lockstep.open()


async def test_texts_that_are_left_say_what_was_read_of_them(tiny_path, alone, tmp_path):
    """Also in their traces, however far the engine is ahead."""
    whole = alone.generate("ab", **LONG)
    async with open_llm(tiny_path) as llm:
        lockstep = Lockstep(llm.engine)
        texts = await llm.submit(["ab"], llm.parse({**LONG, "trace": tmp_path / "left.jsonl"}))
        await lockstep.step(4)
        await texts.read()
        await lockstep.step(3)  # not read
        texts.close()
        assert await texts.read() == []
        lockstep.open()
        text = texts.generations[0]
    done, trace = text.completion(), Trace.read(tmp_path / "left.jsonl")
    read = len(done.token_ids)
    assert 4 <= read < 8
    assert done.token_ids == whole.token_ids[:read]
    assert done.finish_reason == "aborted"
    assert done.text == b"".join(map(alone.tokenizer.token_bytes, done.token_ids)).decode(
        errors="replace"
    )
    assert trace.end.reason == "aborted"
    assert tuple(step.token_id for step in trace.steps) == done.token_ids
    assert trace.end.usage["completion_tokens"] == read
    assert trace.end.fingerprint == done.fingerprint
    assert done.fingerprint == f"{trace.steps[-1].fingerprint:016x}"
    assert "".join(step.text for step in trace.steps) + trace.end.text == done.text


async def test_a_text_that_is_left_counts_its_draft_tokens(tiny_path, tmp_path, free_drafts):
    async with open_llm(tiny_path, speculate=f"draft:{tiny_path}") as llm:
        lockstep = Lockstep(llm.engine)
        texts = await llm.submit(["ab"], llm.parse({**LONG, "trace": tmp_path / "left.jsonl"}))
        [text] = texts.generations
        while not any(step.source == "draft" for step in text.steps):
            await lockstep.step()
            await texts.read()
        texts.close()
        lockstep.open()
        done = text.completion()
    accepted = sum(step.source == "draft" for step in done.steps)
    assert 0 < accepted == done.speculation.accepted <= done.speculation.proposed
    assert Speculation(**Trace.read(tmp_path / "left.jsonl").end.speculation) == done.speculation


async def test_waited_tells_the_queue_from_the_rest(tiny_path):
    async with open_llm(tiny_path, {"max_num_seqs": 1}) as llm:
        lockstep, began = Lockstep(llm.engine), perf_counter()
        with await llm.submit(["ab"], llm.parse(LONG)) as first:
            pending = asyncio.create_task(llm.submit(["b"], llm.parse(LONG)))
            while not pending.done():
                await lockstep.step()
            with await pending as second:
                assert second.generations[0].started is None
                await first.read()
                assert 0 <= first.generations[0].started.queued_s < perf_counter() - began
                first.close()
                await lockstep.step(2)
                await second.read()
                assert 0 <= second.generations[0].started.queued_s < perf_counter() - began
        lockstep.open()
