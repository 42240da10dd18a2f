"""Closes connections on which no request runs, so that they cannot use up all file descriptors.

Only the time until a request's head has arrived is limited here: bodies and responses have timeouts
of their own (guard.py), and uvicorn limits how long a connection waits for its next request.
"""

from collections.abc import Iterable
from typing import Any

_Idle = tuple[Any, float]
"""The connection's last request, if there was one, and since when there is no newer one."""


class IdleConnections:
    """Which connections were seen without a running request, and since when."""

    def __init__(self) -> None:
        self._seen: dict[Any, _Idle] = {}

    def close(self, connections: Iterable[Any], now: float, patience: float) -> None:
        """Close those without a request for ``patience`` seconds. Call it regularly.

        connections: all that uvicorn has; now: in seconds, on any clock
        """
        seen, self._seen = self._seen, {}
        for connection in filter(_is_idle, connections):
            last, since = seen.get(connection, (None, now))
            since = since if last is connection.cycle else now
            self._seen[connection] = connection.cycle, since
            if now - since >= patience:
                connection.transport.close()

    def close_longest(self, connections: Iterable[Any], now: float) -> bool:
        """Close the connection that has been idle longest; False where none is."""
        idle = [c for c in connections if _is_idle(c) and not c.transport.is_closing()]
        longest = min(idle, key=lambda c: self._seen.get(c, (None, now))[1], default=None)
        if longest is not None:
            longest.transport.close()
        return longest is not None


def _is_idle(connection: Any) -> bool:
    return connection.cycle is None or connection.cycle.response_complete
