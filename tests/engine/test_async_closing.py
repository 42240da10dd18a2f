"""The end: closing, draining, event loops that are gone, an interpreter that ends meanwhile."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cutaway.engine import AsyncEngine, FinishReason, StopParams
from cutaway.errors import ClosedError, CutawayError
from cutaway.sampling import SamplingParams
from support.async_mock import Lockstep, enter, read, read_all, serve, with_async_engine
from support.engine_definition import write_by_definition
from support.engine_mock import GREEDY, MockRequest, make_engine
from support.mock_backend import noise

CONTEXT = 1 << 20
ENDLESS = MockRequest((5,), GREEDY, StopParams(max_tokens=1_000_000, ignore_eos=True))
"""A minute's work and more: no test is so slow that it would come to its end."""
SHORT = MockRequest((6,), SamplingParams(seed=3), StopParams(max_tokens=9, ignore_eos=True))


def an_engine(**policy):
    return make_engine(noise, context=CONTEXT, kv_blocks=CONTEXT // 32, **policy)


@pytest.fixture(autouse=True)
def no_complaints(caplog):
    yield
    assert not caplog.records


@pytest.mark.parametrize("how", ["aclose", "drain"])
@with_async_engine(an_engine, max_num_seqs=3)
async def test_readers_are_told_that_the_engine_closes(running, how):
    tasks = [asyncio.create_task(read(running, ENDLESS)) for _ in range(3)]
    streams = [await enter(running, ENDLESS) for _ in range(2)]
    if how == "aclose":
        await running.aclose()
    else:
        assert not await running.drain(timeout=0)
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        assert type(outcome) is ClosedError
        assert str(outcome) == "the engine was closed before this text was finished"
    for stream in streams:
        with pytest.raises(CutawayError, match="closed before this text"):
            await read_all(stream)
        assert stream.sequences[0].finish_reason == FinishReason.ABORTED


@with_async_engine(an_engine)
async def test_a_closed_engine_takes_no_more(running):
    await running.aclose()
    for asked in (enter(running, SHORT), running.call(int), read(running, SHORT)):
        with pytest.raises(CutawayError, match="takes no more requests"):
            await asked
    await running.aclose()
    assert await running.drain()


@pytest.mark.parametrize("timeout", [None, 60])
def test_draining_waits_for_those_there_are(timeout):
    async def main(running):
        lockstep = Lockstep(running)
        tasks = [asyncio.create_task(read(running, SHORT)) for _ in range(4)]
        stream = await enter(running, SHORT)
        await lockstep.step(2)
        draining = asyncio.create_task(running.drain(timeout))
        await lockstep_refused(running)
        lockstep.open()
        assert await draining
        texts = [await read_all(stream), *await asyncio.gather(*tasks)]
        assert texts == [write_by_definition(SHORT, noise, context=CONTEXT)] * 5

    async def lockstep_refused(running):
        await asyncio.sleep(0)
        with pytest.raises(CutawayError, match="takes no more requests"):
            await enter(running, SHORT)

    serve(an_engine(max_num_seqs=2), main)


@with_async_engine(an_engine)
async def test_closing_while_it_drains_and_twice_at_once(running):
    await enter(running, ENDLESS)
    stream = await enter(running, ENDLESS)
    draining = asyncio.create_task(running.drain())
    await asyncio.sleep(0)
    await asyncio.gather(running.aclose(), running.aclose())
    await draining
    with pytest.raises(CutawayError):
        await read_all(stream)


@with_async_engine(an_engine)
async def test_giving_up_to_wait_for_the_end_does_not_stop_it(running):
    lockstep = Lockstep(running)
    stream = await enter(running, SHORT)
    draining = asyncio.create_task(running.drain())
    await asyncio.sleep(0)
    draining.cancel()
    with pytest.raises(asyncio.CancelledError):
        await draining
    lockstep.open()
    assert await read_all(stream) == write_by_definition(SHORT, noise, context=CONTEXT)


@with_async_engine(an_engine)
async def test_a_closed_event_loop_ends_its_sequences_and_nothing_else(running):
    lockstep = Lockstep(running)
    loop = asyncio.new_event_loop()
    gone = await asyncio.to_thread(loop.run_until_complete, enter(running, ENDLESS))
    loop.close()
    here = asyncio.create_task(enter(running, SHORT))
    await lockstep.step()
    assert gone.sequences[0].finish_reason == FinishReason.ABORTED
    lockstep.open()
    alone = write_by_definition(SHORT, noise, context=CONTEXT)
    assert await read_all(await here) == alone
    gone.close()


def test_a_task_s_own_error_closes_the_engine_behind_it():
    engine, streams = an_engine(), []

    async def main():
        async with AsyncEngine(engine) as running:
            streams.append(await enter(running, ENDLESS))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(main())
    assert streams[0].sequences[0].finish_reason == FinishReason.ABORTED
    assert engine.blocks.free == engine.blocks.count


# -- the interpreter ends ------------------------------------------------------------------------

MOCK = """
from support.engine_mock import make_engine
engine = make_engine(context=512)
"""
NATIVE = """
import sys
from pathlib import Path
from tempfile import mkdtemp
from support.random_llama import write_tiny_llama
from cutaway import LLM
path = write_tiny_llama(Path(sys.argv[1]) / "tiny.gguf", context=512, hidden=512, layers=4)
engine = LLM(path, progress=False).engine
"""
OPEN = """
import asyncio, sys
from cutaway.engine import AsyncEngine, StopParams
from cutaway.sampling import SamplingParams
from support.async_mock import enter
from support.engine_mock import MockRequest
running = AsyncEngine(engine)
async def main():
    stops = StopParams(max_tokens=500, ignore_eos=True)
    streams = [await enter(running, MockRequest((5, i), SamplingParams(), stops)) for i in range(3)]
    await streams[0].read()
    return streams
"""
ENDS = {
    "idle": "",
    "writing": "streams = asyncio.run(main())",
    "exit": "loop = asyncio.new_event_loop(); s = loop.run_until_complete(main()); sys.exit(0)",
    "abandoned": "streams = asyncio.run(main()); del running, engine",
}


def begin():
    """How each of these programs finds the tests."""
    root = Path(__file__).parents[2]
    return f"import sys; sys.path += {[str(root / 'tests'), str(root / 'bench')]!r}\n"


FORK = """
import os, signal
asyncio.run(running.call(int))
if os.fork():
    assert os.wait()[1] == 0
    asyncio.run(running.call(int))
else:
    signal.alarm(30)
    try:
        asyncio.run(main())
    except Exception as error:
        print(error, flush=True)
    asyncio.run(running.{close}())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no such thing here")
@pytest.mark.parametrize("close", ["aclose", "drain"])
def test_a_forked_process_has_no_thread_and_says_so(close):
    code = begin() + MOCK + OPEN + FORK.format(close=close)
    command = [sys.executable, "-c", code]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    sentence = "the engine's thread is not in this process: load the model after the fork"
    assert (told.returncode, told.stdout, told.stderr) == (0, f"{sentence}\n", "")


@pytest.mark.each_choice
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("kind", ["mock", "native"])
def test_an_interpreter_that_ends_meanwhile_ends_in_peace(kind, end, tmp_path):
    if kind == "native":
        pytest.importorskip("cutaway.base._native", reason="the native backend was not built")
    code = begin() + (MOCK if kind == "mock" else NATIVE) + OPEN + ENDS[end]
    command = [sys.executable, "-W", "error", "-c", code, str(tmp_path)]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (told.returncode, told.stdout, told.stderr) == (0, "", "")
