"""Measures how fast this machine's threads read memory together.

Each new token reads all weights that compute it, so this rate bounds how fast a model writes.
"""

from cutaway.base import _native

STREAMS = (1, 2, 4, 8)
"""The numbers of streams that a thread may read at once; the fastest number is taken."""


class ReadingRate:
    """Reads a buffer again and again; nbytes: its size, on which the effect of caches depends."""

    def __init__(self, pool: _native.Pool, nbytes: int) -> None:
        self._pool, self._probe = pool, _native.ReadProbe(pool, nbytes)

    def measure(self) -> float:
        """Return bytes/s, with the fastest number of streams; it takes at least 1 GB of reading."""
        return max(self._probe.run(self._pool, streams) for streams in STREAMS)
