"""Writing a saved prefix, whole or not at all."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from cutaway.base.whole_files import whole_file
from cutaway.files.prefix.header import PrefixHeader


class PrefixWriter:
    """Writes the blocks of a file, then its header. nbytes: the size so far."""

    def __init__(self, out: BinaryIO, head: PrefixHeader) -> None:
        self._out, self._head = out, head
        self.nbytes = out.seek(head.sizes.head)
        self._sizes: list[int] = []
        self._digests: list[bytes] = []

    def add(self, place: int, memory: Sequence[NDArray[np.uint8]]) -> None:
        """Write the text's next block, given in one piece or several."""
        assert place == len(self._digests)
        digest = sha256()
        for piece in memory:
            digest.update(piece.data)
            self._out.write(piece.data)
        self._digests.append(digest.digest())
        self._sizes.append(sum(piece.nbytes for piece in memory))
        self.nbytes += self._sizes[-1]

    def finish(self) -> None:
        """Write the header, once all blocks are there."""
        assert len(self._digests) == self._head.blocks
        digests, sizes = tuple(self._digests), tuple(self._sizes)
        self._out.seek(0)
        self._out.write(replace(self._head, digests=digests, block_bytes=sizes).to_bytes())


@contextmanager
def write_prefix(path: Path, head: PrefixHeader) -> Iterator[PrefixWriter]:
    """A writer of the header's blocks; the file exists once the `with` block has ended.

    Raises CutawayError where it cannot be written; whatever is raised, nothing is left behind.
    """
    with whole_file(path) as out:
        writer = PrefixWriter(out, head)
        yield writer
        writer.finish()
