"""A replica: an engine that writes the jobs of any number of Fronts.

Knows jobs, whom to tell of them, and whether the engine still answers. Refuses to know how jobs
come here and how a replica was chosen.
"""

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any, TypeVar

from cutaway.api.async_llm import AsyncLLM
from cutaway.cluster.job import (
    Abort,
    Accepted,
    Hello,
    Job,
    Leaving,
    News,
    OtherBitsError,
    Pulse,
)
from cutaway.cluster.wire import Address, Connection, ConnectionLostError, connect
from cutaway.engine import Arrival, Reader
from cutaway.errors import CutawayError, InputError, ReplicaLostError

T = TypeVar("T")

PULSE_S = 1.0


class Replica:
    """One engine, in the event loop in which it is made.

    name      by which Fronts and logs know it
    waited_s  for how long the engine has not answered, in pulses of this process: a time in which
              the process itself was stopped is no time

    Making it reads all of the model's file, once per version of it; see ``LoadedModel.identity``.
    """

    def __init__(self, llm: AsyncLLM, name: str) -> None:
        self.llm, self.name = llm, name
        self._computed_by = llm.model.computed_by
        self._adapters = {
            "",
            *(llm.model.with_adapter(each).adapter for each in llm.model.adapters),
        }
        self._fronts: dict[Address, asyncio.Task[_Front]] = {}
        self._leaving = False
        self.waited_s = 0.0
        self._beat = asyncio.create_task(self._tell_pulse())

    async def write(self, job: Job) -> None:
        """Write its texts and tell its Front; returns when they have ended, or are not wanted.

        Raises OtherBitsError where this engine computes other bits, ReplicaLostError where it
        leaves or the Front cannot be reached, and what the engine refuses the requests with.
        """
        with self._unless_leaving():
            self._check(job)
            front = await self._front(job.reply_to)
            reader = await self.llm.queue(job.asked)
        if self._leaving or front.connection.is_cut:  # since then: nobody would end what runs
            reader.close()
            raise ReplicaLostError(f"replica {self.name} is leaving, or lost its Front")
        await front.write(job, reader)

    async def aside(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """What ``function(llm, *args)`` returns or raises, between two steps of all others."""
        with self._unless_leaving():
            return await self.llm.aside(function, *args, **kwargs)

    @contextmanager
    def _unless_leaving(self) -> Iterator[None]:
        """ReplicaLostError where it leaves, instead of what a closed engine says of itself."""
        why = f"replica {self.name} is leaving"
        if self._leaving:
            raise ReplicaLostError(why)
        try:
            yield
        except InputError:
            raise
        except CutawayError as error:
            if self._leaving:
                raise ReplicaLostError(why) from error
            raise

    @property
    def jobs(self) -> int:
        """How many are being written."""
        return sum(len(front.jobs) for front in self._connected())

    async def leave(self, within: float) -> None:
        """Take no more jobs, have all Fronts take theirs elsewhere, and wait until they have."""
        self._leaving = True
        for front in self._connected():
            front.connection.send(Leaving())
        until = monotonic() + within
        while self.jobs and monotonic() < until:
            await asyncio.sleep(0.01)

    def cut(self) -> None:
        """Tell nobody anything more."""
        self._leaving = True
        for front in self._connected():
            front.connection.cut()

    async def close(self) -> None:
        """End all that runs."""
        self.cut()
        tasks = [self._beat, *(f.listening for f in self._connected() if f.listening)]
        self._beat.cancel()
        await self.llm.aclose()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- Fronts ----------------------------------------------------------------------------------

    def _check(self, job: Job) -> None:
        own = self._computed_by
        for what, wanted in job.computed_by.items():
            if own.get(what) != wanted:
                raise OtherBitsError(
                    f"replica {self.name} computes other bits: its {what} is {own.get(what)}, and "
                    f"the text needs {wanted}"
                )
        if any(request.adapter not in self._adapters for request, _ in job.asked):
            raise OtherBitsError(f"replica {self.name} lacks the adapter that the text needs")

    async def _front(self, address: Address) -> "_Front":
        if address not in self._fronts:
            self._fronts[address] = asyncio.create_task(self._connect(address))
        try:
            return await asyncio.shield(self._fronts[address])
        except ConnectionLostError as error:
            self._fronts.pop(address, None)
            raise ReplicaLostError(f"replica {self.name}: {error}") from error

    async def _connect(self, address: Address) -> "_Front":
        front = _Front(await connect(address))
        front.connection.send(Hello(self.name, os.getpid(), self.llm.model.computer))
        front.listening = asyncio.create_task(self._listen(address, front))
        return front

    async def _listen(self, address: Address, front: "_Front") -> None:
        try:
            await front.listen()
        finally:
            self._fronts.pop(address, None)

    def _connected(self) -> "list[_Front]":
        done = [task for task in self._fronts.values() if task.done() and not task.cancelled()]
        return [task.result() for task in done if not task.exception()]

    # -- health ----------------------------------------------------------------------------------

    async def _tell_pulse(self) -> None:
        answer = self.llm.engine.ask(_nothing)
        while True:
            await asyncio.sleep(PULSE_S)
            self.waited_s += PULSE_S
            if answer.done():
                answer, self.waited_s = self.llm.engine.ask(_nothing), 0.0
            for front in self._connected():
                front.connection.send(Pulse(self.llm.state(), self.waited_s))


class _Front:
    """One Front, and the jobs that are written for it."""

    def __init__(self, connection: Connection) -> None:
        self.connection, self.jobs = connection, dict[str, Reader]()
        self.listening: asyncio.Task[None] | None = None
        self._news: dict[str, list[Arrival]] = {}

    async def write(self, job: Job, reader: Reader) -> None:
        """Tell of it what comes, to its end."""
        self.jobs[job.id] = reader
        self.connection.send(Accepted(job.id, job.why))
        try:
            while news := await reader.read():
                self._tell(job.id, news)
        except CutawayError:
            return  # one of its texts failed, and its end said so
        finally:
            reader.close()
            self.jobs.pop(job.id, None)
        if self.connection.is_cut:
            raise ReplicaLostError("the connection to the Front was lost")

    async def listen(self) -> None:
        """Hear which jobs are not wanted any more; none is where the Front is gone."""
        try:
            while True:
                match await self.connection.receive():
                    case Abort(job) if job in self.jobs:
                        self.jobs[job].close()
        except ConnectionLostError:
            for reader in [*self.jobs.values()]:
                reader.close()

    def _tell(self, job: str, news: list[Arrival]) -> None:
        """Once all jobs have read what a step brought, which they do before this event loop's next
        turn, it goes out as one message."""
        if not self._news:
            asyncio.get_running_loop().call_soon(self._send)
        self._news.setdefault(job, []).extend(news)

    def _send(self) -> None:
        news, self._news = self._news, {}
        self.connection.send(News(tuple(news.items())))


def _nothing() -> None:
    """A question that only shows that the engine answers."""
