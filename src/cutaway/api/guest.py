"""An ``LLM`` for a thread, on an engine that serves an event loop.

Its calls run on the engine's thread, between two steps, and may be cancelled.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event as Flag
from typing import TypeVar

from cutaway.api.llm import LLM, SharedLLM
from cutaway.compute.loading.model import LoadedModel
from cutaway.engine import AsyncEngine, Engine, Sequence
from cutaway.errors import ClosedError, CutawayError
from cutaway.requests.owner import EngineOwner

T = TypeVar("T")


class GuestOwner(EngineOwner):
    """Has the engine's own thread make its calls, and never steps the engine itself."""

    def __init__(self, engine: AsyncEngine, unwanted: Flag) -> None:
        super().__init__()
        self._host, self._unwanted = engine, unwanted

    @property
    def engine(self) -> Engine:
        """See ``EngineOwner``."""
        return self._host.engine

    def call(self, function: Callable[[], T]) -> T:
        """See ``EngineOwner``; CutawayError once ``unwanted`` is set."""
        if self._unwanted.is_set():
            raise CutawayError("nobody waits for this any more")
        return self._asked(function)

    def wait(self, ready: Callable[[], object]) -> None:
        """See ``EngineOwner``."""
        while not self.call(ready):
            pass

    def abort(self, sequence: Sequence) -> None:
        """See ``EngineOwner``; also once ``unwanted`` is set."""
        if not sequence.outbox.end:
            self._asked(lambda: self.engine.abort(sequence))

    def _asked(self, function: Callable[[], T]) -> T:
        def between() -> T:
            self._end_abandoned()
            return function()

        return self._host.ask(between).result()


class Guests:
    """A thread that serves one guest at a time: each may take as much memory as a step."""

    def __init__(self, model: LoadedModel, engine: AsyncEngine) -> None:
        self._model, self._engine = model, engine
        self._thread, self._closed = ThreadPoolExecutor(1, "run blocking"), False

    async def call(
        self, function: Callable[[LLM], T], ended: Callable[[], object] = lambda: None
    ) -> T:
        """What a function of an LLM returns or raises; once cancelled, the LLM's next call raises.

        ended: called when the function has returned, on any thread
        """
        if self._closed:
            raise ClosedError("the engine is closed and takes no more requests")
        unwanted = Flag()
        asked = self._thread.submit(function, self.guest(unwanted))
        asked.add_done_callback(lambda _: ended())
        try:
            return await asyncio.wrap_future(asked)
        finally:
            unwanted.set()

    def guest(self, unwanted: Flag) -> LLM:
        """An LLM whose next call raises CutawayError once ``unwanted`` is set."""
        return SharedLLM(self._model, GuestOwner(self._engine, unwanted), progress=False)

    def close(self) -> None:
        """Take no more calls; does not wait for the one that is running."""
        self._closed = True
        self._thread.shutdown(wait=False, cancel_futures=True)
