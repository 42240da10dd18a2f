"""Whether a model fits into the free memory, and how fast it can write at most.

A new token reads the weights that compute it (of experts only the chosen ones), and the keys and
values of the tokens before it. How many bytes of that memory gives in a second is measured; all
else that takes time is left out, so a text is written more slowly than this limit, never faster.
"""

from dataclasses import dataclass
from functools import cache

from cutaway.base.progress import megabytes
from cutaway.base.resources import Memory, default_threads
from cutaway.compute.backends import KV_BLOCK, KVLayout

_LARGEST_BUFFER = 256 << 20
"""Bytes to measure reading by. Most processors have smaller caches."""


@dataclass(frozen=True, slots=True)
class MemoryFit:
    """A model's needs of memory, beside what is free.

    weights      the bytes of weights in memory
    kv           how keys and values are stored
    active       the bytes of weights that one token reads
    context      the tokens of the longest text that is asked for
    free         the free memory; None if unknown
    """

    weights: int
    kv: KVLayout
    active: int
    context: int
    free: Memory | None

    @property
    def memory(self) -> int:
        """The bytes of weights, keys and values for a text of ``context`` tokens."""
        return self.weights + self.kv.bytes_stored(self.context)

    @property
    def fits(self) -> bool | None:
        """Whether the memory is free; None if that is unknown."""
        return None if self.free is None else self.memory <= self.free.free

    def longest_text(self, limit: int) -> int | None:
        """Return how many tokens, ``limit`` at most, a text that fits may have; None if unknown."""
        if self.free is None:
            return None
        low, high = 0, -(-limit // KV_BLOCK)  # the most KV blocks that fit are between these
        while low < high:
            middle = (low + high + 1) // 2
            if self.weights + self.kv.bytes_stored(middle * KV_BLOCK) <= self.free.free:
                low = middle
            else:
                high = middle - 1
        return min(low * KV_BLOCK, limit)

    def read(self, tokens: int) -> int:
        """Return the bytes that a new token reads which has this many tokens before it."""
        return self.active + self.kv.bytes_read(tokens)

    def describe(self, bandwidth: float) -> str:
        """Say what the model takes, and how fast it can write at this rate of reading (bytes/s)."""
        free = (
            f", of {megabytes(self.free.free)} of {self.free.owner} that are free"
            if self.free
            else ""
        )
        first, last = (bandwidth / self.read(tokens) for tokens in (0, self.context))
        return (
            f"{megabytes(self.memory)} with the keys and values of {self.context:,} tokens{free}; "
            f"each token reads {megabytes(self.active)} of weights, and memory gives "
            f"{megabytes(round(bandwidth))} a second: at most {format_rate(first)} tokens a "
            f"second, {format_rate(last)} at the end of such a text"
        )


def format_rate(rate: float) -> str:
    """Return a rate with one decimal below 10, and none above."""
    return f"{rate:.1f}" if rate < 10 else f"{rate:,.0f}"


def measure_bandwidth(nbytes: int, threads: int | None = None) -> float:
    """Return how many bytes a second the threads of a load read together.

    nbytes: the bytes that a token reads; as many are read, since a small model stays in the caches,
        but no more than what no cache holds, which is measured once
    """
    return _measure(min(nbytes, _LARGEST_BUFFER), threads or default_threads().count)


@cache
def _measure(buffer: int, threads: int) -> float:
    from cutaway.base import _native
    from cutaway.base.reading_rate import ReadingRate

    return ReadingRate(_native.Pool(threads), buffer).measure()
