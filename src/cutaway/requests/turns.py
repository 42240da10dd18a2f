"""Turns: gives threads their turns one at a time, in the order in which they came.

Knows only tickets. A ticket is a lock that its thread holds from before it joins the line until it
has left, so what frees the next thread is that lock's release, which no exception can skip:

    take a ticket ─► join the line ─► wait for those ahead ─► have the turn ─► leave
          │                │                  │                     │            │
          └────────────────┴─── an exception, at any of these ──────┴────────────┘
                                     releases the ticket

A thread that was thrown out while it waited leaves its ticket in the line, released; whoever comes
after passes it and drops it.
"""

from _thread import RLock
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


class Turns:
    """A line of threads."""

    def __init__(self) -> None:
        self._line: deque[RLock] = deque()
        self._holder: RLock | None = None  # of the last turn, which may be over

    def take(self, function: Callable[[], T], ticket: RLock) -> T:
        """Call a function once those who came before have left.

        ticket: a new one, which this thread holds until the call is over
        """
        self._line.append(ticket)
        if self._line[0] is not ticket:
            self._wait_for_those_ahead(ticket)
        self._holder = ticket
        try:
            return function()
        finally:
            self._holder = None
            self._line.remove(ticket)

    def _wait_for_those_ahead(self, ticket: RLock) -> None:
        for ahead in reversed(self._ahead(ticket)):
            pass_through(ahead)
            with suppress(ValueError):  # it left the line itself, or another thread dropped it
                self._line.remove(ahead)

    @property
    def is_mine(self) -> bool:
        """Whether this thread has its turn now."""
        holder = self._holder
        return holder is not None and holder._is_owned()  # type: ignore[attr-defined]

    def belong_to_another(self) -> bool:
        """Whether another thread has its turn; to be asked where no other runs, and only once."""
        holder = self._holder
        return holder is not None and not holder.acquire(blocking=False)

    def _ahead(self, ticket: RLock) -> list[RLock]:
        line = list(self._line)
        return line[: line.index(ticket)]


# Each "with" below and in runner.py that holds a ticket stands on one line with its body: between
# the body's last bytecode and the lock's release, no line begins on which an exception could come.
# fmt: off
def pass_through(ticket: RLock) -> None:
    """Wait until a thread has left."""
    with ticket: pass  # noqa: E701
# fmt: on
