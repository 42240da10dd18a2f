"""An event loop's side of sequences that another thread writes: events that came, and waiting."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol
from weakref import finalize

from cutaway.engine.events import Ended, Event, Speculation
from cutaway.engine.outbox import Emission, OutboxReader
from cutaway.engine.sequence import Sequence


class Arrival(NamedTuple):
    """An event of one of several sequences.

    made         when, in seconds of ``perf_counter``
    speculation  draft tokens of the sequence until then
    """

    which: int
    event: Event
    made: float
    speculation: Speculation


class Route(NamedTuple):
    """Which of several replicas wrote texts, one replica at a time.

    why       for each replica that had them, in order: which one, and why
    resumed   how many times another replica continued them
    replayed  tokens that were computed again for that
    """

    why: tuple[str, ...]
    resumed: int
    replayed: int


class ArrivalReader(Protocol):
    """Reads the events of sequences that were queued together, wherever they are written.

    Closing it early, or dropping it, ends those that have not ended as "aborted".
    """

    @property
    def load_s(self) -> float:
        """Seconds for which they waited until their model was loaded."""

    @property
    def route(self) -> Route | None:
        """Where they are written; None if in this process."""

    async def read(self) -> list[Arrival]:
        """The new events, as soon as there are some; [] at the end.

        Raises the error of a sequence, or of a whole step, once all events before it were read. May
        be cancelled, and called again.
        """

    def close(self) -> None:
        """End what has not ended; nothing more is read. Does not wait."""


@dataclass(eq=False, slots=True)
class Inbox:
    """Where the events of one sequence wait for their reader.

    loop, sequence, reader  used by the engine's thread
    the others              used by the event loop's; several inboxes may share one ``news``
    """

    loop: asyncio.AbstractEventLoop
    news: asyncio.Event
    sequence: Sequence
    reader: OutboxReader
    events: deque[Emission] = field(default_factory=deque)
    ended: bool = False
    error: Exception | None = None

    def receive(self, emission: Emission) -> None:
        """Take an event, unless the reader has closed or the sequence has ended."""
        if self.ended:
            return
        self.events.append(emission)
        if isinstance(event := emission.event, Ended):
            self.ended, self.error = True, event.error
        self.news.set()

    def close(self) -> None:
        """Drop what is not read, and take nothing more."""
        self.events.clear()
        self.ended, self.error = True, None
        self.news.set()


class Inboxes:
    """The ``ArrivalReader`` of sequences of this process's engine, for one event loop."""

    route, load_s = None, 0.0

    def __init__(self, inboxes: list[Inbox], abort: Callable[[], object]) -> None:
        self._inboxes, self._news = inboxes, inboxes[0].news
        self._abort = finalize(self, abort)  # once: by close, or when it is dropped
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
            if all(i.ended for i in self._inboxes):
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
        new = [Arrival(n, *one) for n, inbox in enumerate(self._inboxes) for one in inbox.events]
        for inbox in self._inboxes:
            inbox.events.clear()
        return new
