"""Connections on which no request runs: whose head does not come in time is hung up on.

Knows uvicorn's connections. Refuses to know requests: their bodies and answers have clocks of
their own, and uvicorn has one for connections that wait for another request.
"""

from collections.abc import Iterable
from typing import Any

_Idle = tuple[Any, float]
"""The last request, if there was one, and since when there is no other."""


class Idle:
    """Those that were seen without a request, and since when."""

    def __init__(self) -> None:
        self._seen: dict[Any, _Idle] = {}

    def hang_up(self, connections: Iterable[Any], now: float, patience: float) -> None:
        """Close what had no request for ``patience`` seconds. Call it again and again.

        connections: all there are; now: on any clock of seconds
        """
        seen, self._seen = self._seen, {}
        for connection in connections:
            request = connection.cycle
            if request and not request.response_complete:
                continue
            last, since = seen.get(connection, (None, now))
            since = since if last is request else now
            self._seen[connection] = request, since
            if now - since >= patience:
                connection.transport.close()
