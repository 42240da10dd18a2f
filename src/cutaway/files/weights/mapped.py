"""A file's bytes as the system maps them.

Knows how a file is mapped, and how the system learns which pages come next and which were read.
"""

import os
from mmap import ACCESS_READ, PAGESIZE, mmap
from pathlib import Path

from cutaway.base import system
from cutaway.errors import FormatError, InputError

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


def expect(data: mmap, start: int, end: int) -> None:
    """Tell the system that these bytes will be read soon."""
    first = start // PAGESIZE * PAGESIZE
    system.expect(data, first, end - first)


def forget(data: mmap, start: int, end: int) -> None:
    """Tell the system that these bytes were read: they need no memory any more."""
    first = start // _MAPPED_AROUND * _MAPPED_AROUND
    system.forget(data, first, -(-end // _MAPPED_AROUND) * _MAPPED_AROUND - first)
