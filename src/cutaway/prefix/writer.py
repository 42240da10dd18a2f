"""Writing a saved prefix, whole or not at all. Refuses to know where blocks come from."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cutaway.prefix.head import Head
from cutaway.whole_files import whole_file

Add = Callable[[int, Sequence[NDArray[np.uint8]]], None]


@contextmanager
def write_prefix(path: Path, head: Head) -> Iterator[Add]:
    """Takes (place, memory) of each block in order, and then writes what the head says of them.

    Raises CutawayError where it cannot be written; whatever is raised, nothing is left behind.
    """
    digests: list[bytes] = []
    with whole_file(path) as out:
        out.seek(head.sizes.head)

        def add(place: int, memory: Sequence[NDArray[np.uint8]]) -> None:
            assert place == len(digests)
            digest = sha256()
            for piece in memory:
                digest.update(piece.data)
                out.write(piece.data)
            digests.append(digest.digest())

        yield add
        assert len(digests) == head.blocks
        out.seek(0)
        out.write(replace(head, digests=tuple(digests)).to_bytes())
