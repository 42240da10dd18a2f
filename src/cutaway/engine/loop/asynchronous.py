"""AsyncEngine: one thread steps the engine, and tasks of any event loop read their sequences.

A sequence's ``Inbox`` passes its events from that thread to its reader's event loop.
"""

import asyncio
import atexit
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from threading import Lock, Thread
from typing import NamedTuple, ParamSpec, Protocol, TypeVar
from weakref import finalize

from cutaway.engine.events import Emission, Ended, Event, OutboxReader
from cutaway.engine.loop.engine import Engine
from cutaway.engine.request import Request
from cutaway.engine.sequence import Sequence
from cutaway.errors import ClosedError, CutawayError, DeviceLostError

# -- an event loop's side --------------------------------------------------------------------------


class Arrival(NamedTuple):
    """An event that one of several sequences has emitted."""

    sequence_index: int
    emission: Emission

    @property
    def event(self) -> Event:
        """The emission's event."""
        return self.emission.event


class Route(NamedTuple):
    """The replicas that wrote a request's texts, one after the other.

    reasons   for each replica, in order: which one, and why it was chosen
    resumed   how many times another replica continued the texts
    replayed  tokens that were computed again to continue them
    """

    reasons: tuple[str, ...]
    resumed: int
    replayed: int


class ArrivalReader(Protocol):
    """Reads the events of sequences that were queued together, in whichever process they run.

    Closing the reader early, or dropping it, ends the unfinished sequences as "aborted".
    """

    @property
    def load_s(self) -> float:
        """Seconds that the sequences waited for their model to be loaded."""

    @property
    def route(self) -> Route | None:
        """The replicas that write the sequences; None where this process writes them."""

    async def read(self) -> list[Arrival]:
        """Wait for new events and return them; [] at the end.

        Raises the error of a sequence, or of a whole step, once all events before it were read. The
        call may be cancelled and repeated.
        """

    def close(self) -> None:
        """End the sequences that have not ended, without waiting; nothing more can be read."""


@dataclass(eq=False, slots=True)
class Inbox:
    """Where the events of one sequence wait for their reader.

    loop, sequence, reader  used by the engine's thread
    the other fields        used by the event loop's thread; inboxes may share one ``news``
    """

    loop: asyncio.AbstractEventLoop
    news: asyncio.Event
    sequence: Sequence
    reader: OutboxReader
    events: deque[Emission] = field(default_factory=deque)
    has_ended: bool = False
    error: Exception | None = None

    def receive(self, emission: Emission) -> None:
        """Take an event, unless the reader is closed or the sequence has ended."""
        if self.has_ended:
            return
        self.events.append(emission)
        if isinstance(event := emission.event, Ended):
            self.has_ended, self.error = True, event.error
        self.news.set()

    def close(self) -> None:
        """Drop the unread events, and take no more."""
        self.events.clear()
        self.has_ended, self.error = True, None
        self.news.set()


class Inboxes:
    """The ``ArrivalReader`` of sequences of this process's engine, for one event loop."""

    route, load_s = None, 0.0

    def __init__(self, inboxes: list[Inbox], abort: Callable[[], object]) -> None:
        self._inboxes, self._news = inboxes, inboxes[0].news
        self._abort = finalize(self, abort)  # runs once: in close, or when no reader is left
        self._abort.atexit = False

    @property
    def sequences(self) -> list[Sequence]:
        """The sequences; their state belongs to the engine's thread."""
        return [inbox.sequence for inbox in self._inboxes]

    async def read(self) -> list[Arrival]:
        """See ``ArrivalReader``."""
        while not (new := self._take()):
            if error := next((i.error for i in self._inboxes if i.error), None):
                raise error
            if all(i.has_ended for i in self._inboxes):
                return []
            self._news.clear()
            await self._news.wait()
        return new

    def close(self) -> None:
        """See ``ArrivalReader``."""
        for inbox in self._inboxes:
            inbox.close()
        self._abort()

    def _take(self) -> list[Arrival]:
        inboxes = enumerate(self._inboxes)
        new = [Arrival(n, emission) for n, inbox in inboxes for emission in inbox.events]
        for inbox in self._inboxes:
            inbox.events.clear()
        return new


# -- the engine's thread ---------------------------------------------------------------------------

P = ParamSpec("P")
T = TypeVar("T")
News = tuple[Inbox, Emission]

_FORKED = "the engine's thread is not in this process: load the model after the fork"


class AsyncEngine:
    """Runs an engine on a thread of its own, for tasks of event loops.

    Tasks of any number of event loops may use it at once. Their calls run on the engine's thread
    between two steps; the thread sleeps while there is nothing to do. ``async with`` closes it.
    CutawayError where the operating system has no thread left; the engine is then unchanged.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        engine.early = self._deliver
        self._inboxes: dict[int, Inbox] = {}  # by sequence id; the engine's thread alone uses it
        self._commands: SimpleQueue[Callable[[], object]] = SimpleQueue()  # commands never raise
        self._closed, self._lock = False, Lock()
        self._is_device_lost = False
        self._num_interrupted = 0  # how many steps in a row an exception has interrupted
        self._thread_end: Future[None] = Future()
        self._thread_end.set_running_or_notify_cancel()  # no caller that stops waiting cancels it
        # A daemon: the interpreter would wait for another thread. _exit joins it when that ends.
        self._thread = Thread(target=self._work, name="cutaway engine", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            engine.early = None
            raise CutawayError(
                "the system has no thread left for the engine: allow this process more, or end "
                "others"
            ) from error
        atexit.register(self._exit)
        if engine.store:
            engine.store.serve(self.call_and_wait)

    # -- calls from tasks --------------------------------------------------------------------

    async def submit(self, requests: Iterable[tuple[Request, int]]) -> Inboxes:
        """Queue n samples of each request for one reader, in order: all or none.

        Raises what ``Engine.add`` raises; CutawayError as for call.
        """
        loop, news = asyncio.get_running_loop(), asyncio.Event()
        inboxes: list[Inbox] = []
        abort = partial(self._commands.put, partial(self._abort, inboxes))
        try:
            await self.call(self._submit, inboxes, partial(_make_inbox, loop, news), [*requests])
        except asyncio.CancelledError:
            abort()  # the sequences may have been queued already
            raise
        return Inboxes(inboxes, abort)

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function on the engine's thread, between two steps; return or raise as it does.

        CutawayError if the engine is closed, or was made before this process was forked.
        """
        return await asyncio.wrap_future(self.ask(partial(function, *args, **kwargs)))

    def ask(self, function: Callable[[], T]) -> Future[T]:
        """Do as ``call`` does, but return a future at once, for a caller that is no task."""
        future: Future[T] = Future()
        command = partial(_call, future, function)
        with self._lock:
            if self._closed:
                raise ClosedError("the engine is closed and takes no more requests")
            if not self._thread.is_alive():
                raise CutawayError(_FORKED)
            self._commands.put(command)
        return future

    def call_and_wait(self, function: Callable[[], T]) -> T:
        """Do as ``call`` does, for a caller on another thread, which waits."""
        return self.ask(function).result()

    @property
    def alive(self) -> bool:
        """Whether the engine takes requests, and its GPU was not lost."""
        return not (self._closed or self._is_device_lost) and self._thread.is_alive()

    # -- the end -----------------------------------------------------------------------------

    async def __aenter__(self) -> "AsyncEngine":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def close(self) -> None:
        """Take no more requests and end all sequences; their readers get a CutawayError."""
        self._close(abort=True)

    async def aclose(self) -> None:
        """Close the engine, and wait until its thread has ended."""
        self.close()
        await self._wait_for_end()
        self._join()
        await self._flush()

    async def drain(self, timeout: float | None = None) -> bool:
        """Take no more requests and wait for the running ones, ``timeout`` seconds at most.

        Returns whether all have ended in time; aborts those that have not, as ``aclose`` does.
        """
        self._close(abort=False)
        try:
            await asyncio.wait_for(self._wait_for_end(), timeout)
        except TimeoutError:
            await self.aclose()
            return False
        self._join()
        await self._flush()
        return True

    async def _flush(self) -> None:
        """Write what the prefix cache's store lacks, now that no other thread uses the engine."""
        if self.engine.store:
            await asyncio.to_thread(self.engine.store.flush)

    async def _wait_for_end(self) -> None:
        if self._thread.is_alive():  # a forked process has no such thread, and would wait for ever
            await asyncio.wrap_future(self._thread_end)

    def _close(self, *, abort: bool) -> None:
        error = ClosedError("the engine was closed before this text was finished")
        with self._lock:
            self._closed = True
            self._commands.put(partial(self.engine.abort_all, error) if abort else _wake)

    def _exit(self) -> None:
        """Close the engine when the interpreter ends, if nobody has."""
        self._close(abort=True)
        self._join()
        if self.engine.store:
            self.engine.store.flush()

    def _join(self) -> None:
        self._thread.join()
        atexit.unregister(self._exit)

    # -- the thread --------------------------------------------------------------------------

    def _work(self) -> None:
        """Run commands, step and deliver, until the engine is closed and has no sequence left."""
        engine = self.engine
        while not engine.is_idle or not self._closed or not self._commands.empty():
            for _ in range(self._commands.qsize() or engine.is_idle):
                self._commands.get()()
            self._deliver(self._step())
        engine.early = None
        self._thread_end.set_result(None)

    def _step(self) -> list[Event]:
        try:
            events = self.engine.step()
        except Exception as error:  # not attributable to one sequence: fail all, keep the loop
            self._is_device_lost |= isinstance(error, DeviceLostError)
            self._fail_all(error)
        except BaseException as error:  # a request's code exits: becomes its own error the 2nd time
            self._num_interrupted += 1
            if self._num_interrupted > self._max_interrupted:
                self._fail_all(CutawayError(f"{type(error).__name__}: {error}"))
            else:
                self._undo()
        else:
            self._num_interrupted = 0
            return events
        return self.engine.take_events()

    @property
    def _max_interrupted(self) -> int:
        """How many steps in a row may be interrupted: each request's code may interrupt one."""
        return 1 + len(self.engine.running) + len(self.engine.waiting)

    def _undo(self) -> None:
        """Undo an interrupted step now; to do it later would forget sequences queued in between."""
        for left in reversed(range(1 + self._max_interrupted)):
            try:
                self.engine.begin_change()
                break
            except BaseException as error:  # another request's code: its own error the next time
                if isinstance(error, Exception) or not left:
                    raise
        self.engine.end_change()

    def _fail_all(self, error: Exception) -> None:
        self.engine.begin_change()  # undoes what the step left half done
        self.engine.abort_all(error)
        self.engine.end_change()

    def _deliver(self, events: list[Event]) -> None:
        """Hand every reader its new events, with one call for each event loop."""
        new: dict[asyncio.AbstractEventLoop, list[News]] = defaultdict(list)
        for event in events:
            if inbox := self._inboxes.get(event.id):
                while emission := inbox.reader.take():
                    new[inbox.loop].append((inbox, emission))
            if isinstance(event, Ended):
                self._inboxes.pop(event.id, None)
        for loop, news in new.items():
            try:
                loop.call_soon_threadsafe(_receive, news)
            except RuntimeError:  # the event loop is closed, and its tasks with it
                self._abort([i for i in self._inboxes.values() if i.loop is loop])

    def _submit(
        self,
        inboxes: list[Inbox],
        make: Callable[[Sequence], Inbox],
        requests: list[tuple[Request, int]],
    ) -> None:
        try:
            for request, samples in requests:
                for sequence in self.engine.add(request, samples):
                    inboxes.append(make(sequence))
                    self._inboxes[sequence.id] = inboxes[-1]
        except BaseException:
            self._abort(inboxes)
            raise

    def _abort(self, inboxes: list[Inbox]) -> None:
        """End sequences whose readers are gone."""
        for sequence in [i.sequence for i in inboxes]:
            self._inboxes.pop(sequence.id, None)
            self.engine.abort(sequence)


def _call(future: Future[T], function: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(function())
    except BaseException as error:  # raised where the caller waits
        future.set_exception(error)


def _make_inbox(loop: asyncio.AbstractEventLoop, news: asyncio.Event, sequence: Sequence) -> Inbox:
    return Inbox(loop, news, sequence, OutboxReader(sequence.outbox))


def _receive(news: list[News]) -> None:
    for inbox, emission in news:
        inbox.receive(emission)


def _wake() -> None:
    """Do nothing: this command only wakes the engine's thread."""
