"""Messages between Fronts and replicas: plain data, pickled and length-prefixed, over TCP.

Unpickling can run any code. So before either side reads a message, both prove that they know the
address's secret, which only Ray transmits.
"""

import asyncio
import hmac
import pickle
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from secrets import token_bytes
from typing import Any, NamedTuple, Protocol, Self, TypeVar

from cutaway.compute.backends import Computer
from cutaway.engine import Arrival, EngineState, Request
from cutaway.errors import CutawayError

_NONCE = 32  # bytes, as many as a proof has
_REPLICA, _FRONT = b"replica", b"front"  # part of the proofs: neither passes for the other's
_LENGTH = 4
_MOST_BYTES = 1 << 30
_MOST_UNSENT = 1 << 26
_WITHIN_S = 10.0


class ConnectionLostError(CutawayError):
    """The connection to the other side was lost."""


class Address(NamedTuple):
    """Where a Front receives the events of its jobs."""

    host: str
    port: int
    secret: bytes


class Connection:
    """Messages to and from one other process."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def send(self, message: Any) -> None:
        """Queue a message. A receiver that reads too slowly is cut off."""
        if self.is_cut:
            return
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        self._writer.write(len(data).to_bytes(_LENGTH, "big") + data)
        if self._writer.transport.get_write_buffer_size() > _MOST_UNSENT:
            self.cut()

    async def receive(self) -> Any:
        """Wait for the next message; ConnectionLostError if none can come."""
        try:
            length = int.from_bytes(await self._reader.readexactly(_LENGTH), "big")
            if length > _MOST_BYTES:
                self.cut()
                raise ConnectionLostError(f"a message of {length} bytes is no message")
            return pickle.loads(await self._reader.readexactly(length))
        except (OSError, asyncio.IncompleteReadError) as error:
            self.cut()
            raise ConnectionLostError("the connection was lost") from error

    @property
    def is_cut(self) -> bool:
        """Whether the connection is known to be closed, by either side."""
        return self._writer.is_closing()

    def cut(self) -> None:
        """Close the connection at once; unsent messages are dropped."""
        self._writer.transport.abort()


async def connect(address: Address) -> Connection:
    """Connect to a Front. ConnectionLostError if nothing listens or the secret differs.

    The secret can differ where another process has taken the port of a Front that has ended.
    """
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(_WITHIN_S):
            reader, writer = await asyncio.open_connection(address.host, address.port)
            front_nonce, nonce = await reader.readexactly(_NONCE), token_bytes(_NONCE)
            writer.write(_proof(address.secret, _REPLICA + front_nonce) + nonce)
            proof = await reader.readexactly(_NONCE)
            if not hmac.compare_digest(proof, _proof(address.secret, _FRONT + nonce)):
                raise ConnectionRefusedError
    except BaseException as error:
        if writer:
            writer.transport.abort()
        if not isinstance(error, OSError | asyncio.IncompleteReadError | TimeoutError):
            raise
        message = f"nobody listens at {address.host}:{address.port}"
        raise ConnectionLostError(message) from error
    return Connection(reader, writer)


class Listener:
    """A Front's port, to which replicas connect.

    serve  called with each connection, which is cut when the call returns
    """

    def __init__(self, serve: Callable[[Connection], Awaitable[None]]) -> None:
        self._serve, self._secret = serve, token_bytes(_NONCE)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.address = Address("", 0, b"")

    async def open(self, host: str) -> Self:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._accept, host, 0)
        port = self._server.sockets[0].getsockname()[1]
        self.address = Address(host, port, self._secret)
        return self

    async def close(self) -> None:
        """Cut all connections."""
        if self._server:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        connection = Connection(reader, writer)
        try:
            if await self._authenticate(reader, writer):
                await self._serve(connection)
        except (ConnectionLostError, asyncio.CancelledError):
            pass  # the connection has ended
        finally:
            self._tasks.discard(task)
            connection.cut()

    async def _authenticate(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Whether the other side knows the secret; call this before reading any message."""
        nonce = token_bytes(_NONCE)
        writer.write(nonce)
        proof = _proof(self._secret, _REPLICA + nonce)
        try:
            async with asyncio.timeout(_WITHIN_S):
                if not hmac.compare_digest(await reader.readexactly(_NONCE), proof):
                    return False
                writer.write(_proof(self._secret, _FRONT + await reader.readexactly(_NONCE)))
                return True
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            return False


def _proof(secret: bytes, nonce: bytes) -> bytes:
    return hmac.digest(secret, nonce, "sha256")


# -- the messages ----------------------------------------------------------------------------------


T = TypeVar("T")


class OtherBitsError(CutawayError):
    """A replica computes bits that differ from those that were delivered."""


@dataclass
class Job:
    """Texts for one replica to generate.

    id           the attempt's id; an attempt at another replica has another id
    requests     the requests with their seeds, and the number of samples of each request
    computed_by  must equal the replica's ``LoadedModel.computed_by``
    reply_to     the Front that gets the events
    avoid        names of replicas that must not be chosen
    replica, why  the replica that the router has chosen, and a sentence that says why
    """

    id: str
    requests: tuple[tuple[Request, int], ...]
    computed_by: Mapping[str, str]
    reply_to: Address
    avoid: frozenset[str] = frozenset()
    replica: str = ""
    reason: str = ""


class Replicas(Protocol):
    """A Front's calls to its replicas, by Ray's handle or by a test's handle."""

    async def write(self, job: Job) -> None:
        """Send the job to a replica, which sends the Front its events; return when the job ends.

        Raises ReplicaLostError if the replica is lost, and the replica's error if it refuses.
        """
        ...

    async def run_blocking(self, function: Callable[..., T], *args: Any) -> T:
        """Call ``function(llm, *args)`` at one of the replicas; return its result or raise its
        error."""
        ...


# -- messages of a replica -------------------------------------------------------------------------


class Hello(NamedTuple):
    """The first message: the replica, its process, and its ``Computer``."""

    replica: str
    pid: int
    computer: Computer


class JobAccepted(NamedTuple):
    """The job's texts are queued."""

    job: str
    reason: str


class Update(NamedTuple):
    """The events of a step, for all jobs of a Front."""

    jobs: tuple[tuple[str, list[Arrival]], ...]


class Pulse(NamedTuple):
    """A heartbeat. waited_s: seconds for which the replica's engine has not answered."""

    state: EngineState
    waited_s: float


class Leaving(NamedTuple):
    """The replica shuts down: its jobs must continue elsewhere."""


# -- messages of a Front ---------------------------------------------------------------------------


class Abort(NamedTuple):
    """The replica must abort the job."""

    job: str
