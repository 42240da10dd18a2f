"""A file that is read whole, if it has an end: a device or a file by mistake fills no memory."""

from os import PathLike
from pathlib import Path
from typing import BinaryIO

from cutaway.base.progress import megabytes
from cutaway.errors import InputError

MOST_BYTES = 1 << 28
"""What one file may have that people write, or that is read whole."""


def read_bounded(path: str | PathLike[str], most: int = MOST_BYTES) -> bytes:
    """All of a file. InputError where it has more; OSError where it cannot be read."""
    with Path(path).open("rb") as file:
        return read_all(file, str(path), most)


def read_all(file: BinaryIO, name: str, most: int = MOST_BYTES) -> bytes:
    """What is left of an open file; ``name`` is for errors. InputError where that is more."""
    pieces, left = [], most + 1
    while left and (piece := file.read(min(left, 1 << 20))):  # a pipe gives what it has
        pieces.append(piece)
        left -= len(piece)
    if not left:
        raise InputError(f"{name}: more than {megabytes(most)}; name a smaller file")
    return b"".join(pieces)
