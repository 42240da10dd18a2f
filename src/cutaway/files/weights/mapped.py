"""A file's bytes as the system maps them, and views of the tensors in them.

Knows how a file is mapped, and how the system learns which pages come next and which were read.
"""

import os
from abc import ABC, abstractmethod
from mmap import ACCESS_READ, PAGESIZE, mmap
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cutaway.base import system
from cutaway.errors import FormatError, InputError
from cutaway.files.weights.cursor import quoted

_MAPPED_AROUND = max(PAGESIZE, 1 << 16)  # the system maps this much where one byte is read


def map_file(path: Path, suffix: str) -> mmap:
    """Map a regular file that is not empty; suffix: of the files that can be named instead."""
    try:
        if not path.exists():
            raise InputError(f"{path}: there is no such file")
        if not path.is_file():  # opening a pipe would wait for ever
            raise FormatError(f"{path}: this is not a regular file; name the {suffix} file itself")
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise FormatError(f"{path}: the file is empty; download it again")
            return mmap(file.fileno(), 0, access=ACCESS_READ)
    except OSError as error:
        raise InputError(f"{path}: the file cannot be opened: {error.strerror}") from error


def forget(data: mmap, start: int, end: int) -> None:
    """Tell the system that these bytes were read: they need no memory any more."""
    first = start // _MAPPED_AROUND * _MAPPED_AROUND
    system.forget(data, first, -(-end // _MAPPED_AROUND) * _MAPPED_AROUND - first)


class MappedTensors(ABC):
    """The tensors of a mapped file."""

    path: Path
    _map: mmap | None

    @abstractmethod
    def _span(self, name: str) -> tuple[int, int]:
        """A tensor's first byte in the file, and the one after its last; raises as `raw` does."""

    def raw(self, name: str) -> NDArray[np.uint8]:
        """See `ModelFile`; a view, no copy."""
        start, end = self._span(name)
        if self._map is None:
            raise InputError(f"{self.path}: the file is closed, so {quoted(name)} cannot be read")
        return np.frombuffer(self._map, np.uint8, end - start, start)

    def expect(self, name: str) -> None:
        """See `ModelFile`."""
        start, end = self._span(name)
        if self._map is not None:
            first = start // PAGESIZE * PAGESIZE
            system.expect(self._map, first, end - first)

    def release(self, name: str) -> None:
        """See `ModelFile`; its neighbours' bytes may go too, where the system has such a call."""
        start, end = self._span(name)
        if self._map is not None:
            forget(self._map, start, end)

    def close(self) -> None:
        """Close the file; its bytes stay mapped until the last view of them is gone."""
        # Closing the mmap itself would raise while a view exists. Dropping the reference
        # leaves that to the last one dropped, and no view can ever dangle.
        self._map = None
