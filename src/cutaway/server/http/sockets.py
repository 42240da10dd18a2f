"""Listening sockets: from --host and --port to bound sockets, or a sentence that says why not."""

import errno
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from cutaway.base import system
from cutaway.errors import CutawayError, InputError

_TRIES = 16
_WAITING = 2048
"""Connections that wait to be accepted, as while models are loaded: one more would try again after
a second, then after two, and so on. The system may allow fewer (net.core.somaxconn)."""
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)


class ListeningSocket(socket.socket):
    """A listening socket for the case that no file descriptor is free for a connection.

    asyncio would write a traceback for each attempt to accept, thousands a second.
    make_room  closes another connection soon; False where it cannot
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.make_room: Callable[[], bool] = lambda: False
        self._spare: int | None = os.open(os.devnull, os.O_RDONLY)

    def accept(self) -> tuple[socket.socket, Any]:
        """As a socket does. BlockingIOError where no descriptor is free: asyncio tries again."""
        try:
            return super().accept()
        except OSError as error:
            if error.errno not in _NO_DESCRIPTOR:
                raise
        if not self.make_room():
            self._turn_away()
        raise BlockingIOError(errno.EAGAIN, "no file descriptor is free")

    def _turn_away(self) -> None:
        """Accept and close a connection: one that waits would be reported again and again."""
        self._close_spare()
        with suppress(OSError):  # the client may have left
            super().accept()[0].close()
        with suppress(OSError):  # another thread may have taken the descriptor
            self._spare = os.open(os.devnull, os.O_RDONLY)

    def _close_spare(self) -> None:
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None

    def close(self) -> None:
        """Close the socket and its spare descriptor."""
        self._close_spare()
        super().close()


_Address = tuple[socket.AddressFamily, tuple[Any, ...]]
"""As getaddrinfo has it: (host, port) or, of IPv6, (host, port, flow, scope)."""


def bind(host: str, port: int, *, patience: float = 60.0) -> list[ListeningSocket]:
    """Sockets that listen on every address of a host; for port 0 a free one is chosen for all.

    patience: seconds after which the connection of a client that takes no data is closed (Linux)
    ``getsockname()[1]`` is the port. Clients can connect at once, and wait until ``run`` answers.
    InputError or CutawayError, naming --host or --port, where that cannot be.
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


def _bind_all(addresses: list[_Address], port: int, patience: float) -> list[ListeningSocket]:
    """One socket for each address that this machine has; OSError where it has none of them."""
    sockets: list[ListeningSocket] = []
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


def _bind_one(address: _Address, port: int, patience: float) -> ListeningSocket:
    family, (name, _, *scope) = address
    # Named as TCP, or asyncio does not see that it is, and lets packets wait for each other.
    made = ListeningSocket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if not system.IS_WINDOWS:  # there it would let two programs have the port
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # an ASGI app cannot hang up by itself
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(patience * 1000))
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind((name, port, *scope))
        made.listen(_WAITING)  # or another program that starts now could still take the port
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
