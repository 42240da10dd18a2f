"""Reading a saved prefix: its header first, then block by block into given memory.

A block is hashed in the memory that it was read into, so that what is used is what was checked,
even if the file changes meanwhile. The file is not mapped: if another program truncated a mapped
file, this process would be killed.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import FormatError, InputError
from cutaway.files.prefix.header import START, PrefixHeader, Sizes

Memory = Sequence[NDArray[np.uint8]]


class PrefixReader:
    """An open file. InputError where it cannot be read, FormatError where it is damaged.

    head    its header
    nbytes  the size of the file
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._explained():
            if not path.is_file():
                raise InputError(f"{path} is no file; 'cutaway cache save' writes one")
            self._file = path.open("rb", buffering=0)
        try:
            with self._explained():
                self.head, first = self._read_head()
        except BaseException:
            self._file.close()
            raise
        self._starts = [*accumulate(self.head.block_bytes, initial=first)]
        self.nbytes = self._starts[-1]

    def _read_head(self) -> tuple[PrefixHeader, int]:
        nbytes = self._file.seek(0, 2)
        start = np.empty(min(nbytes, START), np.uint8)
        self._read_at(0, start)
        sizes = Sizes.read(start.tobytes())
        if nbytes != sizes.file:
            what = "is truncated" if nbytes < sizes.file else "is too long"
            raise FormatError(f"{what} ({nbytes} bytes instead of {sizes.file}): save it again")
        head = np.empty(sizes.head, np.uint8)
        self._read_at(0, head)
        return PrefixHeader.from_bytes(head.tobytes()), sizes.head

    def read(self, place: int, memory: Memory) -> None:
        """Read a block into memory of its size. FormatError where it was changed."""
        at, digest = self._starts[place], sha256()
        with self._explained():
            if sum(piece.nbytes for piece in memory) != self.head.block_bytes[place]:
                raise FormatError("has blocks of another size than its model: save it again")
            for piece in memory:
                self._read_at(at, piece)
                digest.update(piece.data)
                at += piece.nbytes
            if digest.digest() != self.head.digests[place]:
                raise FormatError(f"is damaged in block {place}: save it again")

    def has(self, place: int, memory: Memory) -> bool:
        """Whether a block is the beginning of this memory, as its hash has it.

        What follows is of windows and states, which a file has of the text's end alone.
        """
        left, digest = self.head.block_bytes[place], sha256()
        for piece in memory:
            digest.update(piece.data[:left])
            left -= min(left, piece.nbytes)
        return left == 0 and digest.digest() == self.head.digests[place]

    def check(self, on_progress: Callable[[int], object] = lambda _done: None) -> None:
        """Read all blocks. on_progress: called with the bytes read so far"""
        done, memory = 0, np.empty(max(self.head.block_bytes, default=0), np.uint8)
        for place, nbytes in enumerate(self.head.block_bytes):
            self.read(place, [memory[:nbytes]])
            on_progress(done := done + nbytes)

    def _read_at(self, at: int, into: NDArray[np.uint8]) -> None:
        self._file.seek(at)
        left = into.data
        while len(left):
            got = self._file.readinto(left)
            if not got:
                raise FormatError("was truncated while it was read: save it again")
            left = left[got:]

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Put the file's name in front of errors."""
        try:
            yield
        except FormatError as error:
            raise FormatError(f"{self.path} {error}") from None
        except OSError as error:
            raise InputError(f"{self.path} cannot be read: {error.strerror}") from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
