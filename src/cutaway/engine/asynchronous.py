"""Reading texts while they are written, from any number of tasks: one thread turns the loop.

Knows threads, event loops, and which sequence's steps belong to whom. Refuses to know HTTP,
and why a sequence is in a step.
"""

import asyncio
import atexit
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from threading import Lock, Thread
from typing import ParamSpec, TypeVar
from weakref import finalize

from cutaway.engine.engine import Engine
from cutaway.engine.params import RunParams
from cutaway.engine.sequence import Sequence, TokenStep
from cutaway.engine.stops import StopParams
from cutaway.errors import CutawayError
from cutaway.sampling import SamplingParams

P = ParamSpec("P")
T = TypeVar("T")

_FORKED = "the engine's thread is not in this process: load the model after the fork"


@dataclass(eq=False, slots=True)
class _Inbox:
    """Where the steps of one sequence wait for their reader.

    loop, sequence  used by the engine's thread
    the others      used by the event loop's
    """

    loop: asyncio.AbstractEventLoop
    sequence: Sequence | None = None
    news: asyncio.Event = field(default_factory=asyncio.Event)
    steps: deque[TokenStep] = field(default_factory=deque)
    ended: bool = False
    error: Exception | None = None

    def receive(self, step: TokenStep) -> None:
        if not self.ended:
            self.steps.append(step)
            self.news.set()

    def end(self, error: Exception | None) -> None:
        if not self.ended:
            self.ended, self.error = True, error
            self.news.set()

    async def read(self) -> TokenStep:
        while not (self.steps or self.ended):
            self.news.clear()
            await self.news.wait()
        if self.steps:
            return self.steps.popleft()
        if self.error:
            raise self.error
        raise StopAsyncIteration


class AsyncStream(AsyncIterator[TokenStep]):
    """The steps of one sequence as they are made, for one reader in one event loop.

    Closing it early, dropping it, or cancelling a task that waits for its next step ends the
    sequence as "aborted". Raises what the sequence, or a step of the whole engine, failed with.
    """

    def __init__(self, sequence: Sequence, inbox: _Inbox, leave: Callable[[], object]) -> None:
        self.sequence, self._inbox = sequence, inbox
        self._leave = finalize(self, leave)  # once: by close, or when it is dropped
        self._leave.atexit = False

    async def __anext__(self) -> TokenStep:
        try:
            return await self._inbox.read()
        except asyncio.CancelledError:
            self.close()
            raise

    def close(self) -> None:
        """End the sequence if it has not ended; nothing more is read. Does not wait."""
        self._inbox.steps.clear()
        self._inbox.end(None)
        self._leave()

    async def aclose(self) -> None:
        """As close, for ``contextlib.aclosing``."""
        self.close()


class AsyncEngine:
    """The asynchronous face of an engine, which from now on belongs to a thread of its own.

    Tasks of any number of event loops may use it at once. Whatever they ask is done on that
    thread between two steps; it sleeps while nobody asks and nobody writes. ``async with``
    closes it.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._inboxes: dict[int, _Inbox] = {}  # by sequence id; the engine's thread alone uses it
        self._commands: SimpleQueue[Callable[[], object]] = SimpleQueue()  # none of them raises
        self._closed, self._door = False, Lock()
        self._ended: Future[None] = Future()
        self._ended.set_running_or_notify_cancel()  # whoever gives up waiting does not cancel it
        # A daemon, or the interpreter would wait for it; and joined before the interpreter ends.
        self._thread = Thread(target=self._work, name="cutaway engine", daemon=True)
        self._thread.start()
        atexit.register(self._exit)

    # -- what tasks ask ----------------------------------------------------------------------

    async def generate(
        self,
        prompt_token_ids: Iterable[int],
        params: SamplingParams,
        stops: StopParams,
        run: RunParams | None = None,
        *,
        leader: Sequence | None = None,
    ) -> AsyncGenerator[TokenStep, None]:
        """Continue a prompt, yielding each TokenStep as it is made. Errors as for submit."""
        stream = await self.submit(prompt_token_ids, params, stops, run, leader=leader)
        async with aclosing(stream):
            async for step in stream:
                yield step

    async def submit(
        self,
        prompt_token_ids: Iterable[int],
        params: SamplingParams,
        stops: StopParams,
        run: RunParams | None = None,
        *,
        leader: Sequence | None = None,
    ) -> AsyncStream:
        """Queue a sequence, as ``Engine.add``; its steps are read from what is returned.

        InputError if it does not fit the model, QueueFullError if the queue is full, and
        CutawayError as for call.
        """
        inbox = _Inbox(asyncio.get_running_loop())
        leave = partial(self._commands.put, partial(self._leave, inbox))
        add = partial(self.engine.add, prompt_token_ids, params, stops, run, leader=leader)
        try:
            sequence = await self.call(self._enter, inbox, add)
        except asyncio.CancelledError:
            leave()  # it may have been queued before
            raise
        return AsyncStream(sequence, inbox, leave)

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What a function returns or raises that is called on the engine's thread, between steps.

        CutawayError if the engine is closed, or was made before this process was forked.
        """
        future: Future[T] = Future()
        command = partial(_call, future, partial(function, *args, **kwargs))
        with self._door:
            if self._closed:
                raise CutawayError("the engine is closed and takes no more requests")
            if not self._thread.is_alive():
                raise CutawayError(_FORKED)
            self._commands.put(command)
        return await asyncio.wrap_future(future)

    # -- the end -----------------------------------------------------------------------------

    async def __aenter__(self) -> "AsyncEngine":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Take no more requests and end what runs; its readers get a CutawayError."""
        self._close(abort=True)
        await self._until_ended()
        self._join()

    async def drain(self, timeout: float | None = None) -> bool:
        """Take no more requests and wait for those there are, ``timeout`` seconds at most.

        Returns whether all have ended; those that have not are aborted, as by aclose.
        """
        self._close(abort=False)
        try:
            await asyncio.wait_for(self._until_ended(), timeout)
        except TimeoutError:
            await self.aclose()
            return False
        self._join()
        return True

    async def _until_ended(self) -> None:
        if self._thread.is_alive():  # as it is not in a forked process, which would wait forever
            await asyncio.wrap_future(self._ended)

    def _close(self, *, abort: bool) -> None:
        error = CutawayError("the engine was closed before this text was finished")
        with self._door:
            self._closed = True
            self._commands.put(partial(self.engine.abort_all, error) if abort else _nothing)

    def _exit(self) -> None:
        """The interpreter ends, and nobody has closed the engine."""
        self._close(abort=True)
        self._join()

    def _join(self) -> None:
        self._thread.join()
        atexit.unregister(self._exit)

    # -- the thread --------------------------------------------------------------------------

    @property
    def _busy(self) -> bool:
        return bool(self.engine.running or self.engine.waiting)

    def _work(self) -> None:
        """Do what was asked, turn the loop, tell the readers; until closed and nobody is left."""
        while self._busy or not self._closed or not self._commands.empty():
            for _ in range(self._commands.qsize() or not self._busy):
                self._commands.get()()
            self._deliver(self._turn())
        self._ended.set_result(None)

    def _turn(self) -> list[TokenStep]:
        try:
            return self.engine.step()
        except Exception as error:  # nobody's own, so everybody's; who comes next may fare better
            self.engine.abort_all(error)
        except BaseException as error:  # a processor that exits: but readers wait for this thread
            self.engine.abort_all(CutawayError(f"{type(error).__name__}: {error}"))
        return []

    def _deliver(self, steps: list[TokenStep]) -> None:
        """Hand every reader what is new, with one call for each event loop."""
        told: dict[asyncio.AbstractEventLoop, list[Callable[[], None]]] = defaultdict(list)
        for step in steps:
            if inbox := self._inboxes.get(step.sequence_id):
                told[inbox.loop].append(partial(inbox.receive, step))
        ended = [(i, s) for i in self._inboxes.values() if (s := i.sequence) and s.finish_reason]
        for inbox, sequence in ended:
            del self._inboxes[sequence.id]
            told[inbox.loop].append(partial(inbox.end, sequence.error))
        for loop, news in told.items():
            try:
                loop.call_soon_threadsafe(_tell, news)
            except RuntimeError:  # the event loop is closed, and its tasks with it
                self._forget(loop)

    def _forget(self, loop: asyncio.AbstractEventLoop) -> None:
        for inbox in [i for i in self._inboxes.values() if i.loop is loop]:
            self._leave(inbox)

    def _enter(self, inbox: _Inbox, add: Callable[[], Sequence]) -> Sequence:
        inbox.sequence = sequence = add()
        self._inboxes[sequence.id] = inbox
        return sequence

    def _leave(self, inbox: _Inbox) -> None:
        """Nobody reads it any more."""
        if inbox.sequence:
            self.engine.abort(inbox.sequence)
            self._inboxes.pop(inbox.sequence.id, None)


def _call(future: Future[T], function: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(function())
    except BaseException as error:  # whatever it is, it is the asker's
        future.set_exception(error)


def _tell(news: list[Callable[[], None]]) -> None:
    for one in news:
        one()


def _nothing() -> None:
    """A command that only wakes the thread."""
