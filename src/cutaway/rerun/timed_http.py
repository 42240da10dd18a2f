"""HTTP whose answers end in time: a server that sends a byte now and then holds nobody up.

Knows urllib's connections and sockets, and nothing of what is asked.
"""

import io
import socket
from http.client import HTTPConnection, HTTPSConnection
from time import monotonic
from typing import Any
from urllib.request import HTTPHandler, HTTPSHandler

SILENT_S = 600
"""How long a server may send nothing, such as while it loads a model."""


class _Arriving(io.RawIOBase):
    """What a socket brings until a time, on the clock of ``monotonic``; then TimeoutError."""

    def __init__(self, sock: socket.socket, until: float) -> None:
        self._sock, self._raw, self._until = sock, sock.makefile("rb", buffering=0), until

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if (left := self._until - monotonic()) <= 0:
            raise TimeoutError("it takes too long")
        self._sock.settimeout(min(left, SILENT_S))
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _TimedSocket:
    """A socket whose answer must have come in some seconds."""

    def __init__(self, sock: socket.socket, seconds: float) -> None:
        self._sock, self._until = sock, monotonic() + seconds

    def makefile(self, *_: Any, **__: Any) -> io.BufferedReader:
        return io.BufferedReader(_Arriving(self._sock, self._until))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


def _timed(kind: type[HTTPConnection], seconds: float) -> type[HTTPConnection]:
    class Timed(kind):  # type: ignore[valid-type,misc]
        def connect(self) -> None:
            super().connect()
            self.sock: Any = _TimedSocket(self.sock, seconds)

    return Timed


def http_handlers(seconds: float) -> tuple[HTTPHandler, HTTPSHandler]:
    """urllib's handlers for connections whose answers may take so many seconds in all."""
    return _Handler(seconds), _SecureHandler(seconds)


class _Handler(HTTPHandler):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._kind = _timed(HTTPConnection, seconds)

    def http_open(self, req: Any) -> Any:
        req.timeout = SILENT_S
        return self.do_open(self._kind, req)


class _SecureHandler(HTTPSHandler):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._kind = _timed(HTTPSConnection, seconds)

    def https_open(self, req: Any) -> Any:
        req.timeout = SILENT_S
        return self.do_open(self._kind, req)
