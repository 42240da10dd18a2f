"""An AsyncEngine on the mock, watched, and its steps one at a time."""

import asyncio
import gc
from collections.abc import AsyncIterator
from threading import Semaphore

from cutaway.engine import AsyncEngine, AsyncStreams, TokenStep
from support.engine_mock import Request, Written, check, written


def serve(engine, main) -> None:
    """Run ``main(running)``; nothing may be left of it, in the engine or in the event loop."""
    asyncio.run(_serve(engine, main))


async def _serve(engine, main) -> None:
    complaints = []
    handler = lambda _, context: complaints.append(context)  # noqa: E731
    asyncio.get_running_loop().set_exception_handler(handler)
    async with AsyncEngine(engine) as running:
        await main(running)
        gc.collect()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
    assert not complaints
    assert not running._thread.is_alive()
    assert not running._inboxes
    check(engine)
    assert engine.blocks.free == engine.blocks.count


async def enter(running: AsyncEngine, request: Request, **more) -> AsyncStreams:
    """Queue one request for one reader. more: as for Engine.add."""
    return await running.enter(lambda: [request.add_to(running.engine, **more)])


async def read(running, request: Request) -> Written:
    """What a request writes, read to its end."""
    return await read_all(await enter(running, request))


async def read_all(streams: AsyncStreams) -> Written:
    """What is still to come of one request."""
    [sequence] = streams.sequences
    return written(sequence, [step async for step in steps_of(streams)])


async def steps_of(streams: AsyncStreams) -> AsyncIterator[TokenStep]:
    """Its steps, one at a time; whoever leaves early closes the streams."""
    while news := await streams.read():
        for one in news:
            yield one.step


class Lockstep:
    """Holds the engine's thread back at every step.

    As long as anybody is in the engine: what tasks have asked for when a step is let through
    is done right after that step, and ``step`` returns before the next.
    """

    def __init__(self, running: AsyncEngine) -> None:
        self._running, self._gate = running, Semaphore(0)
        self._run = running.engine.backend.run
        running.engine.backend.run = self._wait_and_run  # type: ignore[method-assign]

    def _wait_and_run(self, batch):
        assert self._gate.acquire(timeout=30), "the test let no step through"
        return self._run(batch)

    async def step(self, count: int = 1) -> None:
        for _ in range(count):
            await asyncio.sleep(0)  # let the tasks ask
            self.open(1)
            await self._running.call(check, self._running.engine)

    def open(self, steps: int = 10_000) -> None:
        """Hold back none of the next steps."""
        self._gate.release(steps)
