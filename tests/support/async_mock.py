"""An AsyncEngine on the mock engine, with checks, and control of single steps."""

import asyncio
import gc
from collections.abc import AsyncIterator
from functools import wraps
from inspect import signature
from threading import Condition, Semaphore

from cutaway.engine import AsyncEngine, Inboxes, Step
from support.engine_mock import MockRequest, Written, check, make_engine, read_written


def serve(engine, main) -> None:
    """Run ``main(running)``; engine and event loop must be empty afterwards."""
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


def with_async_engine(make=make_engine, **engine):
    """Make a coroutine a test; its argument ``running`` is an AsyncEngine on a new engine."""

    def decorate(test):
        @wraps(test)
        def run(**arguments):
            serve(make(**engine), lambda running: test(running, **arguments))

        of_test = signature(test)
        _, *fixtures = of_test.parameters.values()  # without ``running``
        run.__signature__ = of_test.replace(parameters=fixtures)  # type: ignore[attr-defined]
        return run

    return decorate


class Streams:
    """Sequences that were queued together, and their shared reader."""

    def __init__(self, inboxes: Inboxes) -> None:
        self.sequences, self.read, self.close = inboxes.sequences, inboxes.read, inboxes.close


async def enter(running: AsyncEngine, request: MockRequest, samples: int = 1) -> Streams:
    """Queue the samples of a request for one reader."""
    return Streams(await running.submit([(request.to_request(), samples)]))


async def read(running, request: MockRequest) -> Written:
    """Return the text of a request, read to its end."""
    return await read_all(await enter(running, request))


async def read_all(streams: Streams) -> Written:
    """Return the rest of one request's text."""
    [sequence] = streams.sequences
    events = []
    while news := await streams.read():
        events += [news_item.event for news_item in news]
    return read_written(sequence, events)


async def steps_of(streams: Streams) -> AsyncIterator[Step]:
    """Yield the steps of all streams, one at a time."""
    while news := await streams.read():
        for news_item in news:
            if isinstance(news_item.event, Step):
                yield news_item.event


class Lockstep:
    """Holds the engine's thread back at every step.

    While the engine has sequences, it serves requests that tasks made before a step directly after
    that step, and ``step`` returns before the next one.
    """

    def __init__(self, running: AsyncEngine) -> None:
        self._running, self._gate = running, Semaphore(0)
        self._through, self._arrived = 0, Condition()  # steps released so far
        self._before = 0  # steps before which the thread has waited
        self._run = running.engine.backend.run
        running.engine.backend.run = self._wait_and_run  # type: ignore[method-assign]

    def _wait_and_run(self, batch):
        with self._arrived:
            self._before += 1
            self._arrived.notify_all()
        assert self._gate.acquire(timeout=300), "the test let no step through"
        return self._run(batch)

    async def step(self, count: int = 1) -> None:
        for _ in range(count):
            await asyncio.sleep(0)  # let the tasks make their requests
            self.open(1)
            await self._running.call(check, self._running.engine)

    async def wait_until_held(self) -> None:
        """Return once the thread waits before its next step: the last step's events were sent."""

        def wait() -> bool:
            with self._arrived:
                return self._arrived.wait_for(lambda: self._before > self._through, timeout=300)

        assert await asyncio.to_thread(wait), "the engine has no next step"

    def open(self, steps: int = 10_000) -> None:
        """Release the next steps."""
        self._through += steps
        self._gate.release(steps)
