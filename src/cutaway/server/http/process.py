"""The serving process: signals, shutdown in stages, and running out of file descriptors.

Knows sockets and uvicorn, and runs any ASGI application.
"""

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from cutaway.base import system
from cutaway.errors import CutawayError
from cutaway.server.http.log import event
from cutaway.server.http.sockets import ListeningSocket

CUT_AFTER_S = 3.0
"""Seconds from the end of grace until the connections that are still open are aborted."""
HEAD_WITHIN_S = 10.0
"""Seconds that a connection may be idle until the head of its request has arrived."""

_WARN_EVERY_S = 10.0
_SWITCH_S = 0.002
"""Seconds that a thread keeps the interpreter lock while another waits for it.

The event loop waits that long after each of its reads and writes. With Python's 5 ms, requests took
0.3 s longer while a thread encoded a large answer (``bench/largest_answers.py``).
"""


def run(
    app: ASGIApp,
    sockets: list[ListeningSocket],
    *,
    grace: float,
    on_ready: Callable[[], object],
    on_stop: Callable[[], object],
    on_grace_over: Callable[[], object],
) -> int:
    """Serve until SIGTERM, SIGHUP or SIGINT, and return the exit code: 0, or 130 after SIGINT.

    sockets        the sockets of ``bind``; they are closed at the end
    grace          seconds that running answers have after the first signal
    on_ready       called when the server begins to answer requests
    on_stop        called at the first signal, when no more connections are accepted
    on_grace_over  called after ``grace``, or at a second signal, to end the answers that still run.
                   Connections that are open CUT_AFTER_S later, or at a third signal, are aborted;
                   one more signal kills the process

    Python's switch interval is _SWITCH_S while the server runs. A signal during the start ends the
    start at once. Raises the error of the application's lifespan, or CutawayError if the lifespan
    reported a failure without an error. Must be called on the main thread.
    """
    watched = _Watched(app)
    config = uvicorn.Config(
        watched, loop="asyncio", http=_Protocol, ws="none", lifespan="on", workers=1,
        log_config=None, access_log=False, server_header=False,
    )  # fmt: skip
    server = _Server(config, grace, on_ready, on_stop, on_grace_over)
    for listener in sockets:
        listener.make_room = server.make_room
    before = {number: signal.getsignal(number) for number in server.ending_signals}
    switch_s = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    try:
        asyncio.run(server.serve([*sockets]))
    finally:
        sys.setswitchinterval(switch_s)
        for number, handler in before.items():
            signal.signal(number, handler)
        for listener in sockets:
            listener.close()
    if watched.error:
        raise watched.error
    return 130 if server.signal == signal.SIGINT else 0


class _Protocol(H11Protocol):
    """uvicorn's HTTP/1.1, without its advice to install a WebSocket library."""

    def _should_upgrade(self) -> bool:
        return False  # a server may ignore Upgrade (RFC 9110, 7.8) and answer in HTTP/1.1


class _Server(uvicorn.Server):
    """uvicorn's server, which ends in stages: a stage begins after a time, or at the next signal.

    signal          the first signal that came; None before it
    ending_signals  the signals that end the server; under nohup, SIGHUP is not among them
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
        ending = [n for n in system.ENDING if signal.getsignal(n) != signal.SIG_IGN]
        self.ending_signals = {signal.SIGTERM, signal.SIGINT, *ending}
        self._on_ready, self._on_stop = on_ready, on_stop
        self._stages: Iterator[tuple[Callable[[], object], float | None]] = iter(
            [(self._stop, grace), (on_grace_over, CUT_AFTER_S), (self._cut, None)]
        )
        self._timer: asyncio.TimerHandle | None = None
        self._starting: asyncio.Task[None] | None = None
        self._idle = IdleConnections()
        self._next_warning = 0.0

    # -- methods that uvicorn calls ----------------------------------------------------------

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals here: uvicorn would raise them again at the end and kill the process."""
        loop = asyncio.get_running_loop()
        for number in self.ending_signals:
            loop.add_signal_handler(number, self._on_signal, number)
        try:
            yield
        finally:
            self._remove_handlers()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application and listen, unless a signal comes first."""
        self._starting = asyncio.create_task(self._start(sockets))
        await asyncio.wait([self._starting])
        if not self._starting.cancelled():
            self._starting.result()
        if not self.should_exit:
            self._on_ready()

    async def on_tick(self, counter: int) -> bool:
        """Close idle connections: uvicorn would keep them, and file descriptors would run out."""
        self._idle.close(list(self.server_state.connections), monotonic(), HEAD_WITHIN_S)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait for answers, then end the lifespan, which uvicorn skips after a forced exit."""
        await super().shutdown(sockets)
        if self._timer:
            self._timer.cancel()
        if self.force_exit:
            await self.lifespan.shutdown()

    async def _start(self, sockets: list[socket.socket] | None) -> None:
        try:
            await super().startup(sockets)
        except SystemExit:  # the lifespan failed, and ``run`` raises its error
            self.should_exit = True

    def make_room(self) -> bool:
        """Close the longest idle connection, to free a file descriptor; False if none is idle."""
        now, connections = monotonic(), self.server_state.connections
        if now >= self._next_warning:
            self._next_warning = now + _WARN_EVERY_S
            event("accept_failed", level=logging.WARNING, connections=len(connections),
                  message="no file descriptor is free for another connection: idle ones are "
                  "closed; raise `ulimit -n` for more")  # fmt: skip
        return self._idle.close_longest(connections, now)

    # -- the end, stage by stage -------------------------------------------------------------

    def _on_signal(self, number: int) -> None:
        self.signal = self.signal or number
        self._next_stage()

    def _next_stage(self) -> None:
        if self._timer:
            self._timer.cancel()
        stage, seconds = next(self._stages, (None, None))
        if seconds is not None:  # set before the stage runs, since the stage may raise
            self._timer = asyncio.get_running_loop().call_later(seconds, self._next_stage)
        if stage:
            stage()

    def _stop(self) -> None:
        """Accept no more connections; running answers continue."""
        self.should_exit = True
        if not self.started and self._starting:
            self._starting.cancel()
            return
        for server in self.servers:
            server.close()
        self._on_stop()

    def _cut(self) -> None:
        """Abort all connections and tasks."""
        self.force_exit = True
        for connection in list(self.server_state.connections):
            connection.transport.abort()  # from Python 3.12 on, asyncio's server waits for each
        for task in self.server_state.tasks:
            task.cancel()
        self._remove_handlers()

    def _remove_handlers(self) -> None:
        for number in self.ending_signals:
            asyncio.get_running_loop().remove_signal_handler(number)


class _Watched:
    """The application; keeps the error of its lifespan, which uvicorn would only log.

    error: what the lifespan raised, or a CutawayError for a failure that it reported; else None
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._last_message = ""
        self.error: BaseException | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_on(message: Message) -> None:
            self._last_message = message["type"]
            if self._last_message.endswith(".failed"):
                reason = message.get("message") or "it gave no reason"
                self.error = CutawayError(f"the application sent {self._last_message}: {reason}")
            await send({"type": self._last_message})

        try:
            await self._app(scope, receive, send_on)
        except BaseException as error:
            self.error = None if isinstance(error, asyncio.CancelledError) else error
            if not self._last_message.endswith(
                ".failed"
            ):  # or uvicorn would write the traceback, too
                stage = "shutdown" if self._last_message else "startup"
                await send({"type": f"lifespan.{stage}.failed"})
            raise


# -- connections on which no request runs ------------------------------------------------------
# Idle connections are closed, so that they cannot use up all file descriptors. This limits only the
# time until a request's head has arrived: bodies and responses have their own timeouts (guard.py),
# and uvicorn limits the time between two requests.


_Idle = tuple[Any, float]
"""A connection's last request, or None, and since when the connection is idle."""


class IdleConnections:
    """The connections without a running request, and since when each has been idle."""

    def __init__(self) -> None:
        self._seen: dict[Any, _Idle] = {}

    def close(self, connections: Iterable[Any], now: float, patience: float) -> None:
        """Close connections that were idle for ``patience`` seconds. Must be called regularly.

        connections: all connections of uvicorn; now: the time in seconds, on any clock
        """
        seen, self._seen = self._seen, {}
        for connection in filter(_is_idle, connections):
            last, since = seen.get(connection, (None, now))
            since = since if last is connection.cycle else now
            self._seen[connection] = connection.cycle, since
            if now - since >= patience:
                connection.transport.close()

    def close_longest(self, connections: Iterable[Any], now: float) -> bool:
        """Close the connection that has been idle longest; False if none is idle."""
        idle = [c for c in connections if _is_idle(c) and not c.transport.is_closing()]
        longest = min(idle, key=lambda c: self._seen.get(c, (None, now))[1], default=None)
        if longest is not None:
            longest.transport.close()
        return longest is not None


def _is_idle(connection: Any) -> bool:
    return connection.cycle is None or connection.cycle.response_complete
