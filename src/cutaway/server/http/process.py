"""A process that serves: its sockets, its signals, and how it ends.

Knows addresses, signals and uvicorn. Refuses to know what is served: the application is told
when it is ready, when to take no more, and when to let go of what it has.
"""

import asyncio
import errno
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from time import monotonic
from typing import Any

import uvicorn

from cutaway.errors import CutawayError, InputError
from cutaway.server.http.idle import Idle

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]
"""An ASGI application."""

CUT_AFTER_S = 3.0
"""How long answers may take to end once grace is over."""
HEAD_WITHIN_S = 10.0
"""How long a connection may be there without a request."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_TRIES = 16


def run(
    app: App,
    sockets: list[socket.socket],
    *,
    grace: float,
    on_ready: Callable[[], object],
    on_stop: Callable[[], object],
    on_grace_over: Callable[[], object],
) -> int:
    """Serve until SIGTERM or SIGINT, and return the exit code: 0, or 130 after SIGINT.

    sockets        as ``bind`` gave them; they are closed at the end
    grace          seconds that running answers have after the signal
    on_ready       called once requests are answered
    on_stop        called at the signal, when nobody is let in any more
    on_grace_over  called after ``grace``, or at a second signal, if answers still run: end them.
                   What is not done CUT_AFTER_S later, or at a third signal, is cut; of one
                   more signal the process dies

    A signal during the start ends it at once. Raises what the application's lifespan raised,
    CutawayError where it only said that it failed. Call it on the main thread.
    """
    watched = _Watched(app)
    config = uvicorn.Config(
        watched, loop="asyncio", ws="none", lifespan="on", workers=1,
        log_config=None, access_log=False, server_header=False,
    )  # fmt: skip
    server = _Server(config, grace, on_ready, on_stop, on_grace_over)
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        asyncio.run(server.serve(sockets))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for each in sockets:
            each.close()
    if watched.error:
        raise watched.error
    return 130 if server.signal == signal.SIGINT else 0


class _Server(uvicorn.Server):
    """uvicorn's, which ends in stages; the next comes at its time, or with a signal.

    signal  the first that came
    """

    def __init__(
        self,
        config: uvicorn.Config,
        grace: float,
        on_ready: Callable[[], object],
        on_stop: Callable[[], object],
        on_grace_over: Callable[[], object],
    ) -> None:
        super().__init__(config)
        self.signal: int | None = None
        self._on_ready, self._on_stop = on_ready, on_stop
        self._stages: Iterator[tuple[Callable[[], object], float | None]] = iter(
            [(self._stop, grace), (on_grace_over, CUT_AFTER_S), (self._cut, None)]
        )
        self._timer: asyncio.TimerHandle | None = None
        self._starting: asyncio.Task[None] | None = None
        self._idle = Idle()

    # -- what uvicorn calls ------------------------------------------------------------------

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take signals ourselves: uvicorn would raise them again at the end, and die of them."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._signalled, number)
        try:
            yield
        finally:
            _let_go_of_signals()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, unless a signal comes first."""
        self._starting = asyncio.create_task(self._start(sockets))
        await asyncio.wait([self._starting])
        if not self._starting.cancelled():
            self._starting.result()
        if not self.should_exit:
            self._on_ready()

    async def on_tick(self, counter: int) -> bool:
        """Hang up on who sends nothing: uvicorn would wait for ever, and connections run out."""
        self._idle.hang_up(list(self.server_state.connections), monotonic(), HEAD_WITHIN_S)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait for answers, then end the lifespan, also where uvicorn would leave that out."""
        await super().shutdown(sockets)
        if self._timer:
            self._timer.cancel()
        if self.force_exit:
            await self.lifespan.shutdown()

    async def _start(self, sockets: list[socket.socket] | None) -> None:
        try:
            await super().startup(sockets)
        except SystemExit:  # the lifespan failed, and ``run`` knows with what
            self.should_exit = True

    # -- the end, stage by stage -------------------------------------------------------------

    def _signalled(self, number: int) -> None:
        self.signal = self.signal or number
        self._next_stage()

    def _next_stage(self) -> None:
        if self._timer:
            self._timer.cancel()
        stage, seconds = next(self._stages, (None, None))
        if seconds is not None:  # before the stage, which may raise
            self._timer = asyncio.get_running_loop().call_later(seconds, self._next_stage)
        if stage:
            stage()

    def _stop(self) -> None:
        """Let nobody in, and everybody out."""
        self.should_exit = True
        if not self.started and self._starting:
            self._starting.cancel()
            return
        for server in self.servers:
            server.close()
        self._on_stop()

    def _cut(self) -> None:
        """Hang up, and wait for nobody."""
        self.force_exit = True
        for connection in list(self.server_state.connections):
            connection.transport.abort()  # since 3.12 asyncio's own server waits for each
        for task in self.server_state.tasks:
            task.cancel()
        _let_go_of_signals()


def _let_go_of_signals() -> None:
    for number in _SIGNALS:
        asyncio.get_running_loop().remove_signal_handler(number)


class _Watched:
    """The application, and what its lifespan failed with, which uvicorn writes and forgets."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._told = ""
        self.error: BaseException | None = None

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _live(self, scope: Message, receive: Receive, send: Send) -> None:
        async def tell(message: Message) -> None:
            self._told = message["type"]
            if self._told.endswith(".failed"):
                reason = message.get("message") or "it gave no reason"
                self.error = CutawayError(f"the application sent {self._told}: {reason}")
            await send({"type": self._told})

        try:
            await self._app(scope, receive, tell)
        except BaseException as error:
            self.error = None if isinstance(error, asyncio.CancelledError) else error
            if not self._told.endswith(".failed"):  # or uvicorn would write the traceback, too
                stage = "shutdown" if self._told else "startup"
                await send({"type": f"lifespan.{stage}.failed"})
            raise


# -- sockets -----------------------------------------------------------------------------------

_Address = tuple[socket.AddressFamily, tuple[Any, ...]]
"""As getaddrinfo has it: (host, port) or, of IPv6, (host, port, flow, scope)."""


def bind(host: str, port: int, *, patience: float = 60.0) -> list[socket.socket]:
    """Sockets that listen on every address of a host; a port of 0 is chosen, for all the same.

    patience: seconds after which a client that takes no data is hung up on, where Linux does that
    ``getsockname()[1]`` tells the port. Who connects waits until ``run`` answers. InputError or
    CutawayError, naming --host or --port, where that cannot be.
    """
    if not 0 <= port <= 65535:
        raise InputError(f"--port must be from 0 to 65535, not {port}")
    addresses = _addresses(host)
    for _ in range(_TRIES):
        try:
            return _bind_all(addresses, port, patience)
        except OSError as error:
            # A port that the first address chose may be taken on the second.
            if port or error.errno != errno.EADDRINUSE:
                raise _explained(error, host, port) from error
    raise CutawayError(f"no port is free on all addresses of --host {host}: name a --port")


def _addresses(host: str) -> list[_Address]:
    """The addresses of a host, each once."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError, ValueError) as error:
        raise InputError(f"--host {host!r} is no address and no known name: {error}") from error
    return list(dict.fromkeys((family, address) for family, _, _, _, address in found))


def _bind_all(addresses: list[_Address], port: int, patience: float) -> list[socket.socket]:
    """One socket for each address that this machine has; OSError where it has none of them."""
    sockets: list[socket.socket] = []
    missing: OSError | None = None
    try:
        for address in addresses:
            try:
                sockets.append(_bind_one(address, port, patience))
            except OSError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                missing = error  # as ::1 of "localhost" where there is no IPv6
            else:
                port = sockets[0].getsockname()[1]
    except OSError:
        for each in sockets:
            each.close()
        raise
    if missing and not sockets:
        raise missing
    return sockets


def _bind_one(address: _Address, port: int, patience: float) -> socket.socket:
    family, (name, _, *scope) = address
    # Named as TCP, or asyncio does not see that it is, and lets packets wait for each other.
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # an ASGI app cannot hang up by itself
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(patience * 1000))
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind((name, port, *scope))
        made.listen()  # or another program that starts now could still take the port
    except OSError:
        made.close()
        raise
    return made


def _explained(error: OSError, host: str, port: int) -> CutawayError:
    """The same failure in one sentence."""
    if error.errno == errno.EADDRINUSE:
        return CutawayError(f"--port {port} of {host} is in use: choose another, or 0 for any")
    if error.errno in (errno.EACCES, errno.EPERM):
        return CutawayError(f"--port {port} is not for this user: choose one from 1024 up")
    if error.errno == errno.EADDRNOTAVAIL:
        return CutawayError(
            f"--host {host} is no address of this machine: choose one, or 0.0.0.0 for all"
        )
    return CutawayError(f"--host {host} --port {port} cannot be served: {error.strerror}")
