"""A Front's connections to its replicas: jobs out, events in, and the detection of lost replicas.

``front`` decides what happens to a job whose replica is lost.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

from cutaway.compute.backends import Computer
from cutaway.engine import Arrival, EngineState, Request
from cutaway.engine.events import as_cutaway_error
from cutaway.errors import ReplicaLostError
from cutaway.features.cluster.wire import (
    Abort,
    Connection,
    ConnectionLostError,
    Hello,
    Job,
    JobAccepted,
    Leaving,
    Listener,
    Pulse,
    Replicas,
    Update,
)

_EVERY_S = 0.5


class JobOwner(Protocol):
    """A job's reader, which is told of an attempt's events and of its end."""

    def on_accepted(self, attempt: "Attempt") -> None:
        """A replica has queued the job."""

    def receive(self, attempt: "Attempt", arrivals: list[Arrival]) -> None:
        """Events of the attempt have come."""

    def on_refused(self, attempt: "Attempt", error: Exception) -> None:
        """The replica refuses the job."""

    def on_lost(self, attempt: "Attempt", reason: str) -> None:
        """The attempt's replica is lost, and no more events come."""

    def fail(self, error: Exception) -> None:
        """End the job with this error, no matter which attempt is running."""


@dataclass(eq=False)
class Attempt:
    """A job at a replica, or on its way there.

    owner     receives the job's events
    last_replica  the replica that the router had chosen at the last check
    silent_s  seconds for which that replica was not connected, or its call had ended
    """

    job: Job
    owner: JobOwner
    last_replica: str = ""
    silent_s: float = 0.0
    call: "asyncio.Task[None] | None" = None
    remote: "Remote | None" = None


@dataclass(eq=False)
class Remote:
    """A connected replica. silent_s: seconds since its last message."""

    connection: Connection
    name: str = "?"
    pid: int = 0
    state: EngineState | None = None
    silent_s: float = 0.0
    jobs: set[str] = field(default_factory=set)


class Exchange:
    """One Front's side of the connections to all replicas.

    on_computer  called with each replica's ``Computer``
    silent_s  a replica that sends nothing for this many seconds is lost; it sends a pulse a second
    hung_s    a replica whose engine does not answer for this many seconds is lost
    """

    def __init__(
        self,
        replicas: Replicas,
        on_computer: Callable[[Computer], object],
        *,
        silent_s: float = 10.0,
        hung_s: float = 120.0,
    ) -> None:
        self.replicas, self._silent_s, self._hung_s = replicas, silent_s, hung_s
        self._on_computer = on_computer
        self._computed_by: Mapping[str, str] = {}
        self._attempts: dict[str, Attempt] = {}
        self._listener, self._ids = Listener(self._hear), count()
        self._watching: asyncio.Task[None] | None = None
        self._calls: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self.owners: set[JobOwner] = set()
        self.remotes: list[Remote] = []
        self.preemptions: dict[str, int] = {}  # by replica, also lost ones: a counter metric

    async def open(self, host: str, computed_by: Mapping[str, str]) -> None:
        """Listen for replicas. computed_by: see ``Job.computed_by``."""
        self._computed_by = computed_by
        await self._listener.open(host)
        self._watching = asyncio.create_task(self._watch())

    def fail(self, error: Exception) -> None:
        """End all attempts with this error."""
        for owner in [*self.owners]:
            owner.fail(error)

    async def wait_until_idle(self) -> None:
        """Return once no job is left."""
        while self.owners:
            self._idle.clear()
            await self._idle.wait()

    def leave(self, owner: JobOwner) -> None:
        """Note that a job has ended."""
        self.owners.discard(owner)
        self._idle.set()

    async def close(self) -> None:
        """Cut all connections; call this once no job is left."""
        if self._watching:
            self._watching.cancel()
        for call in self._calls:  # of jobs that have ended, at replicas that were lost since
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        await self._listener.close()

    def begin(
        self,
        owner: JobOwner,
        requests: tuple[tuple[Request, int], ...],
        avoid: frozenset[str],
    ) -> Attempt:
        """Have a replica generate the texts of these requests; ``owner`` gets the events."""
        self.owners.add(owner)
        address = self._listener.address
        id = f"{address.port}.{next(self._ids)}"
        attempt = Attempt(Job(id, requests, self._computed_by, address, avoid), owner)
        self._attempts[id] = attempt
        attempt.call = asyncio.create_task(self._write(attempt))
        self._calls.add(attempt.call)
        attempt.call.add_done_callback(self._calls.discard)
        return attempt

    def drop(self, attempt: Attempt) -> None:
        """Abort an attempt; its owner gets no more events."""
        if self._attempts.pop(attempt.job.id, None) is None:
            return
        if attempt.call:
            attempt.call.cancel()
        if attempt.remote:
            attempt.remote.jobs.discard(attempt.job.id)
            attempt.remote.connection.send(Abort(attempt.job.id))

    # -- messages of replicas --------------------------------------------------------------------

    async def _hear(self, connection: Connection) -> None:
        remote = Remote(connection)
        self.remotes.append(remote)
        reason = "its connection was lost"
        try:
            while True:
                message = await connection.receive()
                remote.silent_s = 0.0
                self._take(remote, message)
        except ConnectionLostError as error:
            reason = str(error)
        finally:
            self.remotes.remove(remote)
            self._lose(remote, reason)

    def _take(self, remote: Remote, message: object) -> None:
        match message:
            case Update(jobs):
                for id, arrivals in jobs:
                    if attempt := self._attempts.get(id):
                        attempt.owner.receive(attempt, arrivals)
            case Pulse(state, waited_s):
                remote.state = state
                self.preemptions[remote.name] = state.preemptions
                if waited_s > self._hung_s:
                    self._lose(remote, f"its engine has not answered for {waited_s:.0f} s")
                    remote.connection.cut()
            case JobAccepted(id, reason):
                self._accept(remote, id, reason)
            case Hello(name, pid, computer):
                remote.name, remote.pid = name, pid
                self._on_computer(computer)
            case Leaving():
                self._lose(remote, "it is leaving")

    def _accept(self, remote: Remote, id: str, reason: str) -> None:
        if attempt := self._attempts.get(id):
            attempt.remote, attempt.job.replica, attempt.job.reason = remote, remote.name, reason
            remote.jobs.add(id)
            attempt.owner.on_accepted(attempt)
        else:
            remote.connection.send(Abort(id))

    def finish(self, attempt: Attempt) -> None:
        """Note that all texts of an attempt have ended."""
        self._attempts.pop(attempt.job.id, None)
        if attempt.remote:
            attempt.remote.jobs.discard(attempt.job.id)

    # -- lost replicas ---------------------------------------------------------------------------

    async def _write(self, attempt: Attempt) -> None:
        try:
            await self.replicas.write(attempt.job)
        except ReplicaLostError as error:
            self._lose_attempt(attempt, str(error))
        except Exception as error:
            if self._attempts.pop(attempt.job.id, None):
                attempt.owner.on_refused(attempt, as_cutaway_error(error))

    def _lose(self, remote: Remote, reason: str) -> None:
        for id in [*remote.jobs]:
            if attempt := self._attempts.get(id):
                self._lose_attempt(attempt, f"replica {remote.name}: {reason}")

    def _lose_attempt(self, attempt: Attempt, reason: str) -> None:
        if attempt.job.id in self._attempts:
            self.drop(attempt)
            attempt.owner.on_lost(attempt, reason)

    async def _watch(self) -> None:
        """Find replicas that send nothing, because they hang or are cut off.

        Silence is counted in iterations. So a time in which this process itself was stopped or
        busy counts as one iteration.
        """
        while True:
            await asyncio.sleep(_EVERY_S)
            for remote in [*self.remotes]:
                remote.silent_s += _EVERY_S
                if remote.silent_s > self._silent_s:
                    remote.connection.cut()
                    self._lose(remote, f"it sent nothing for {self._silent_s:g} s")
            connected = {remote.name for remote in self.remotes}
            for attempt in [*self._attempts.values()]:
                if not attempt.remote:
                    self._wait(attempt, connected)

    def _wait(self, attempt: Attempt, connected: Collection[str]) -> None:
        """Give up on a replica that does not accept the job, unless it is connected and called.

        Such a replica may be compiling a grammar.
        """
        name, is_calling = attempt.job.replica, attempt.call and not attempt.call.done()
        if not name or name != attempt.last_replica or (is_calling and name in connected):
            attempt.last_replica, attempt.silent_s = name, 0.0
        attempt.silent_s += _EVERY_S
        if name and attempt.silent_s > self._silent_s:
            self._lose_attempt(attempt, f"replica {name} did not take it")
