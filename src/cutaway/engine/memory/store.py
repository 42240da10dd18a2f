"""The seam between the prefix cache and what keeps its blocks elsewhere, such as a disk.

Knows what an engine tells a store and asks it for. Does not know where a store keeps blocks.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from cutaway.engine.memory.block_manager import Salt


class BlockPart(StrEnum):
    """A part of a KV block. A text is continued where all the parts that it reads are found.

    WINDOW is what layers with a sliding window keep, STATE the recurrent state after the last
    token, and KV all else. Each is stored and dropped by itself.
    """

    KV = "kv"
    WINDOW = "window"
    STATE = "state"


class StoreCounts(NamedTuple):
    """What a store has done since it was made, and what it holds.

    hit_tokens     tokens that were not computed because the store had them
    read_bytes     bytes of these tokens' blocks
    written_bytes  bytes that were written
    missed_bytes   bytes that were dropped, because the store could not write them fast enough
    damaged        blocks that were found damaged, and dropped
    unreadable     blocks that could not be read, for example after a disk error; they stay stored
    bytes          all that the store holds, of other processes too, when it was last counted
    oldest_s       seconds since the least recently used block was used
    """

    hit_tokens: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    missed_bytes: int = 0
    damaged: int = 0
    unreadable: int = 0
    bytes: int = 0
    oldest_s: float = 0.0


class BlockStore(Protocol):
    """Keeps blocks of the prefix cache for later. It is called between two runs of the model."""

    def name_of(self, parent: bytes, salt: str, token_ids: Sequence[int]) -> bytes:
        """Return a block's name, which depends on all its text; parent: the name of the one before.

        salt: the salt's name, if it begins in the block
        """
        ...

    def fetch(self, token_ids: Sequence[int], salt: Salt | None) -> bool:
        """Put a few blocks that a text lacks into the prefix cache; return whether more can come.

        A text waits in the queue until none can. No call takes much longer than a step.
        """
        ...

    def save(self, block_id: int) -> None:
        """Copy a published block before its memory is reused; never wait for a disk.

        A block loses all its parts when another text takes it, or its window or state alone.
        """
        ...

    def rest(self) -> None:
        """Note that the engine has no text left, so that there is time to write."""
        ...

    def serve(self, call: Callable[[Callable[[], Any]], Any]) -> None:
        """Take the engine owner's method that calls a function between two steps."""
        ...

    def flush(self) -> None:
        """Write what is not written yet, the newest first, for a few seconds.

        Nobody else may use the engine meanwhile.
        """
        ...

    def flush_at_exit(self) -> None:
        """Do as ``flush`` does, when Python ends and the engine's owner was not closed."""
        ...

    def counts(self) -> StoreCounts:
        """Return the counts; any thread may ask."""
        ...
