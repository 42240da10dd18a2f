"""Listening sockets, bound to --host and --port, or an error that says why they cannot be bound."""

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
"""The most connections that wait to be accepted, for example while models are loaded. A client that
finds so many waiting tries again after 1 s, then after 2 s, and so on. The operating system may
allow fewer (net.core.somaxconn)."""
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)


class ListeningSocket(socket.socket):
    """A listening socket that still works when no file descriptor is free for a connection.

    Without it, asyncio writes a traceback for each attempt to accept, thousands a second.

    make_room  closes another connection soon; returns False if none can be closed
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.make_room: Callable[[], bool] = lambda: False
        self._spare: int | None = os.open(os.devnull, os.O_RDONLY)

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection; BlockingIOError if no descriptor is free: asyncio tries again."""
        try:
            return super().accept()
        except OSError as error:
            if error.errno not in _NO_DESCRIPTOR:
                raise
        if not self.make_room():
            self._turn_away()
        raise BlockingIOError(errno.EAGAIN, "no file descriptor is free")

    def _turn_away(self) -> None:
        """Accept a connection and close it: while it waits, asyncio would try again and again."""
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
"""A family, and getaddrinfo's address: (host, port), or for IPv6 (host, port, flow, scope)."""


def bind(host: str, port: int, *, patience: float = 60.0) -> list[ListeningSocket]:
    """Listen on every address of a host; port 0 means one port that is free on all addresses.

    ``getsockname()[1]`` of a socket is the port. Clients can connect at once, and wait until
    ``process.run`` answers.

    patience: seconds after which the connection of a client that takes no data is closed (Linux)

    InputError or CutawayError if an address cannot be bound; the error names --host or --port.
    """
    if not 0 <= port <= 65535:
        raise InputError(f"--port must be from 0 to 65535, not {port}")
    addresses = _addresses(host)
    for _ in range(_TRIES):
        try:
            return _bind_all(addresses, port, patience)
        except OSError as error:
            # The port that was chosen on the first address may be in use on the second.
            if port or error.errno != errno.EADDRINUSE:
                raise _explain(error, host, port) from error
    raise CutawayError(f"no port is free on all addresses of --host {host}: name a --port")


def _addresses(host: str) -> list[_Address]:
    """Return the addresses of a host, each once."""
    try:
        infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError, ValueError) as error:
        raise InputError(f"--host {host!r} is no address and no known name: {error}") from error
    return list(dict.fromkeys((family, address) for family, _, _, _, address in infos))


def _bind_all(addresses: list[_Address], port: int, patience: float) -> list[ListeningSocket]:
    """Bind a socket to each address that this machine has; OSError if it has none of them."""
    sockets: list[ListeningSocket] = []
    missing: OSError | None = None
    try:
        for address in addresses:
            try:
                sockets.append(_bind_one(address, port, patience))
            except OSError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                missing = error  # such as ::1 for "localhost" without IPv6
            else:
                port = sockets[0].getsockname()[1]
    except OSError:
        for listener in sockets:
            listener.close()
        raise
    if missing and not sockets:
        raise missing
    return sockets


def _bind_one(address: _Address, port: int, patience: float) -> ListeningSocket:
    family, (name, _, *scope) = address
    # asyncio sets TCP_NODELAY only for a socket that names IPPROTO_TCP.
    listener = ListeningSocket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if not system.IS_WINDOWS:  # on Windows, two programs could then bind the port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # an ASGI app cannot close a connection
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(patience * 1000))
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((name, port, *scope))
        listener.listen(_WAITING)  # now, or another program could still take the port
    except OSError:
        listener.close()
        raise
    return listener


def _explain(error: OSError, host: str, port: int) -> CutawayError:
    """Return the error as one sentence that names the option."""
    if error.errno == errno.EADDRINUSE:
        return CutawayError(f"--port {port} of {host} is in use: choose another, or 0 for any")
    if error.errno in (errno.EACCES, errno.EPERM):
        return CutawayError(f"--port {port} is not for this user: choose one from 1024 up")
    if error.errno == errno.EADDRNOTAVAIL:
        return CutawayError(
            f"--host {host} is no address of this machine: choose one, or 0.0.0.0 for all"
        )
    return CutawayError(f"--host {host} --port {port} cannot be served: {error.strerror}")
