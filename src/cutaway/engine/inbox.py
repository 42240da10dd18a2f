"""What a reader in an event loop holds of sequences that another thread writes.

Knows one event loop's side of it: steps that came, and waiting for more. Refuses to know threads
and who else reads.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple
from weakref import finalize

from cutaway.engine.sequence import Sequence, TokenStep


class News(NamedTuple):
    """A step of one of several sequences, and when it was made: seconds of ``perf_counter``."""

    of: int
    step: TokenStep
    made: float


@dataclass(eq=False, slots=True)
class Inbox:
    """Where the steps of one sequence wait for their reader.

    loop, sequence, began  used by the engine's thread; began: when it got its first blocks, on
                           the clock of ``perf_counter``
    the others             used by the event loop's; ``news`` may be that of several inboxes
    """

    loop: asyncio.AbstractEventLoop
    news: asyncio.Event
    sequence: Sequence
    began: float | None = None
    steps: deque[tuple[TokenStep, float]] = field(default_factory=deque)
    ended: bool = False
    error: Exception | None = None

    def receive(self, step: TokenStep, made: float) -> None:
        """A step came."""
        if not self.ended:
            self.steps.append((step, made))
            self.news.set()

    def end(self, error: Exception | None) -> None:
        """None will come."""
        if not self.ended:
            self.ended, self.error = True, error
            self.news.set()


class AsyncStreams:
    """The steps of sequences that were queued together, for one reader in one event loop.

    Closing it early, or dropping it, ends those that have not ended as "aborted".
    """

    def __init__(self, inboxes: list[Inbox], leave: Callable[[], object]) -> None:
        self.sequences = [i.sequence for i in inboxes]
        self._inboxes, self._news = inboxes, inboxes[0].news
        self._leave = finalize(self, leave)  # once: by close, or when it is dropped
        self._leave.atexit = False

    async def read(self) -> list[News]:
        """All that is new, once there is something; [] at the end.

        Raises what a sequence, or a step of the whole engine, failed with. May be cancelled, and
        called again.
        """
        while not (news := self._take()):
            if error := next((i.error for i in self._inboxes if i.error), None):
                raise error
            if all(i.ended for i in self._inboxes):
                return []
            self._news.clear()
            await self._news.wait()
        return news

    def began(self, index: int) -> float | None:
        """When a sequence left the queue, on the clock of ``perf_counter``."""
        return self._inboxes[index].began

    def close(self) -> None:
        """End what has not ended; nothing more is read. Does not wait."""
        for inbox in self._inboxes:
            inbox.steps.clear()
            inbox.end(None)
        self._leave()

    def _take(self) -> list[News]:
        steps = [News(n, *step) for n, inbox in enumerate(self._inboxes) for step in inbox.steps]
        for inbox in self._inboxes:
            inbox.steps.clear()
        return steps
