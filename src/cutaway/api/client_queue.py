"""Run slow work one at a time, with the clients in turn.

A stranger's grammar, body or look inside may take seconds. So a client's work waits for the same
client's earlier work, and for no more than one turn of each other client.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import TypeVar

from cutaway.errors import ClosedError, QueueFullError

T = TypeVar("T")

CLIENT = ContextVar("CLIENT", default="")
"""The client that this task serves, such as its address."""


class ClientQueue:
    """A thread, and the tasks of an event loop that wait for it.

    waiting_text     names the waiting work in an error: "grammars wait to be compiled"
    limit            how many tasks may wait; tasks that serve no client always may
    limit_of_client  how many tasks of one client may wait
    at_once          how many tasks have their turn together, if the work is done elsewhere
    """

    def __init__(
        self,
        waiting_text: str,
        *,
        limit: int,
        limit_of_client: int,
        at_once: Callable[[], int] = lambda: 1,
    ) -> None:
        self._waiting_text, self._limit, self._limit_of_client = (
            waiting_text,
            limit,
            limit_of_client,
        )
        self._thread = ThreadPoolExecutor(1, waiting_text.partition(" ")[0])
        self._busy, self._at_once, self._closed = 0, at_once, False
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # by client, the next one first

    async def run(self, function: Callable[..., T], *args: object) -> T:
        """Call a function in the thread; if the task is cancelled, it leaves the queue.

        QueueFullError if too many wait, CutawayError once the queue is closed.
        """
        async with self.turn():
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._thread, function, *args)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn, which ends with the block; raise as ``run`` does."""
        await self._turn()
        try:
            self._check_open()
            yield
        finally:
            self._next()

    def close(self) -> None:
        """Close the queue: waiting tasks get an error at their turn, which is soon."""
        self._closed = True
        self._thread.shutdown(wait=False)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the engine is closed and takes no more requests")

    async def _turn(self) -> None:
        self._check_open()
        if self._busy < self._at_once():
            self._busy += 1
            return
        client = CLIENT.get()
        self._check_room(len(self._waiting.get(client, ())))
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._leave(client, turn)
            else:  # the turn had just come
                self._next()
            raise

    def _check_room(self, num_waiting: int) -> None:
        if not CLIENT.get():
            return
        if (
            num_waiting >= self._limit_of_client
            or sum(map(len, self._waiting.values())) >= self._limit
        ):
            raise QueueFullError(f"too many {self._waiting_text}: try again later")

    def _leave(self, client: str, turn: "asyncio.Future[None]") -> None:
        if turn in (turns := self._waiting.get(client, deque())):
            turns.remove(turn)
            if not turns:
                del self._waiting[client]

    def _next(self) -> None:
        """Give the turn to the first task of the client that has waited longest for a turn."""
        self._busy -= 1
        while self._waiting and self._busy < self._at_once():
            client = next(iter(self._waiting))
            turns = self._waiting.pop(client)
            turn = turns.popleft()
            if turns:
                self._waiting[client] = turns
            if not turn.cancelled():
                turn.set_result(None)
                self._busy += 1
