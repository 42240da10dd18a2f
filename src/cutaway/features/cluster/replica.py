"""A replica: an engine that generates the jobs of any number of Fronts, and sends heartbeats."""

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any, TypeVar

from cutaway.api.async_llm import AsyncLLM
from cutaway.engine import Arrival, ArrivalReader
from cutaway.errors import CutawayError, InputError, ReplicaLostError
from cutaway.features.cluster.wire import (
    Abort,
    Address,
    Connection,
    ConnectionLostError,
    Hello,
    Job,
    JobAccepted,
    Leaving,
    OtherBitsError,
    Pulse,
    Update,
    connect,
)

T = TypeVar("T")

PULSE_S = 1.0


class Replica:
    """One engine, in the event loop in which it is created.

    name      its name in Fronts and logs
    waited_s  seconds for which the engine has not answered, counted in pulses, so that time in
              which this process itself was stopped does not count

    Creating a replica reads the whole model file, once per version; see ``LoadedModel.identity``.
    """

    def __init__(self, llm: AsyncLLM, name: str) -> None:
        self.llm, self.name = llm, name
        self._computed_by = llm.model.computed_by
        self._adapters = {
            "",
            *(llm.model.with_adapter(adapter).adapter for adapter in llm.model.adapters),
            *(llm.model.with_task(task).adapter for task in llm.model.tasks),
        }
        self._fronts: dict[Address, asyncio.Task[_Front]] = {}
        self._leaving = False
        self.waited_s = 0.0
        self._beat = asyncio.create_task(self._send_pulses())

    async def write(self, job: Job) -> None:
        """Generate a job's texts and send their events; return when all texts have ended.

        Raises OtherBitsError if this engine computes other bits, ReplicaLostError if the replica
        shuts down or the Front cannot be reached, and the engine's errors.
        """
        with self._unless_leaving():
            self._check(job)
            front = await self._front(job.reply_to)
            reader = await self.llm.queue(job.requests)
        if self._leaving or front.connection.is_cut:  # meanwhile: nobody could abort the texts
            reader.close()
            raise ReplicaLostError(f"replica {self.name} is leaving, or lost its Front")
        await front.write(job, reader)

    async def run_blocking(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call ``function(llm, *args, **kwargs)``; its calls of the engine run between steps."""
        with self._unless_leaving():
            return await self.llm.run_blocking(function, *args, **kwargs)

    @contextmanager
    def _unless_leaving(self) -> Iterator[None]:
        """Raise ReplicaLostError if the replica shuts down, instead of a closed engine's error."""
        reason = f"replica {self.name} is leaving"
        if self._leaving:
            raise ReplicaLostError(reason)
        try:
            yield
        except InputError:
            raise
        except CutawayError as error:
            if self._leaving:
                raise ReplicaLostError(reason) from error
            raise

    @property
    def jobs(self) -> int:
        """The number of jobs that are running."""
        return sum(len(front.jobs) for front in self._connected_fronts())

    async def leave(self, within: float) -> None:
        """Take no more jobs, and wait up to ``within`` seconds for Fronts to move their jobs."""
        self._leaving = True
        for front in self._connected_fronts():
            front.connection.send(Leaving())
        until = monotonic() + within
        while self.jobs and monotonic() < until:
            await asyncio.sleep(0.01)

    def cut(self) -> None:
        """Cut all connections."""
        self._leaving = True
        for front in self._connected_fronts():
            front.connection.cut()

    async def close(self) -> None:
        """Cut all connections, and end the engine and the heartbeats."""
        self.cut()
        tasks = [self._beat, *(f.listening for f in self._connected_fronts() if f.listening)]
        self._beat.cancel()
        await self.llm.aclose()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- Fronts ----------------------------------------------------------------------------------

    def _check(self, job: Job) -> None:
        computed_by = self._computed_by
        for part, needed_hash in job.computed_by.items():
            if computed_by.get(part) != needed_hash:
                raise OtherBitsError(
                    f"replica {self.name} computes other bits: its {part} is "
                    f"{computed_by.get(part)}, and the text needs {needed_hash}"
                )
        if any(request.adapter not in self._adapters for request, _ in job.requests):
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

    def _connected_fronts(self) -> "list[_Front]":
        done = [task for task in self._fronts.values() if task.done() and not task.cancelled()]
        return [task.result() for task in done if not task.exception()]

    # -- health ----------------------------------------------------------------------------------

    async def _send_pulses(self) -> None:
        answer = self.llm.engine.ask(lambda: None)
        while True:
            await asyncio.sleep(PULSE_S)
            self.waited_s += PULSE_S
            if answer.done():
                answer, self.waited_s = self.llm.engine.ask(lambda: None), 0.0
            for front in self._connected_fronts():
                front.connection.send(Pulse(self.llm.state(), self.waited_s))


class _Front:
    """One Front, and its jobs here."""

    def __init__(self, connection: Connection) -> None:
        self.connection, self.jobs = connection, dict[str, ArrivalReader]()
        self.listening: asyncio.Task[None] | None = None
        self._arrivals: dict[str, list[Arrival]] = {}

    async def write(self, job: Job, reader: ArrivalReader) -> None:
        """Send a job's events until the job ends."""
        self.jobs[job.id] = reader
        self.connection.send(JobAccepted(job.id, job.reason))
        try:
            while arrivals := await reader.read():
                self._queue(job.id, arrivals)
        except CutawayError:
            return  # one of its texts failed, and its Ended event has said so
        finally:
            reader.close()
            self.jobs.pop(job.id, None)
        if self.connection.is_cut:
            raise ReplicaLostError("the connection to the Front was lost")

    async def listen(self) -> None:
        """Close the jobs that the Front aborts; close all when the Front is gone."""
        try:
            while True:
                match await self.connection.receive():
                    case Abort(job) if job in self.jobs:
                        self.jobs[job].close()
        except ConnectionLostError:
            for reader in [*self.jobs.values()]:
                reader.close()

    def _queue(self, job: str, arrivals: list[Arrival]) -> None:
        """Send one message for each step: all jobs read a step's events in one iteration of the
        event loop."""
        if not self._arrivals:
            asyncio.get_running_loop().call_soon(self._send)
        self._arrivals.setdefault(job, []).extend(arrivals)

    def _send(self) -> None:
        arrivals, self._arrivals = self._arrivals, {}
        self.connection.send(Update(tuple(arrivals.items())))
