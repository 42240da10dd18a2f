"""Files that are there whole or not at all: written, gone on with after an interruption, read.

A file has its name when it is complete: it is written beside it, flushed to the disk, renamed.

One that is written piece by piece goes on where an interruption left it: each piece is noted beside
the file with its size and its checksum once it is written. Whoever goes on reads the pieces again,
and begins after the last that is as it was noted: a machine that lost its power may have lost
pieces that a process had written.

A file is read whole if it has an end: a device or a file by mistake fills no memory.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from errno import EDQUOT, ENOSPC
from os import PathLike
from pathlib import Path
from time import time
from typing import BinaryIO
from zlib import crc32

from cutaway.base.progress import megabytes
from cutaway.errors import CutawayError, DiskFullError, InputError

_STALE_S = 3600


def check_place(path: Path) -> None:
    """InputError where no file can be written: before any work is done."""
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"{path} is not a regular file; name a new one")
        if not path.parent.is_dir():
            raise InputError(f"there is no folder {path.parent}; make it first")
        if not os.access(path.parent, os.W_OK):
            raise InputError(f"{path.parent} cannot be written to; name another folder")
    except OSError as error:
        raise InputError(f"{path} cannot be a file: {error.strerror}") from error


@contextmanager
def whole_file(path: Path, *, private: bool = False) -> Iterator[BinaryIO]:
    """A new file to write into, which takes the name when the block ends.

    A file that had the name before is replaced; a link stays, and what it names is. Of two that
    write at once each has a file of its own, and the last to end has the name. Raises CutawayError
    where it cannot be written, DiskFullError for want of room; whatever is raised, no part of it is
    left. What a process that was killed left, the next to write the file removes, once it is an
    hour old.
    private: only its owner may read it
    """
    place = Path(os.path.realpath(path))
    part = part_of(place, os.urandom(8).hex())
    try:
        sweep(place)
        try:
            with open(part, "xb", opener=only_owner if private else None) as out:
                yield out
                out.flush()
                os.fsync(out.fileno())
            part.replace(place)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        kind = DiskFullError if is_full(error) else CutawayError
        raise kind(
            f"{path} cannot be written: {error.strerror}; nothing was left behind"
        ) from error


def is_full(error: Exception) -> bool:
    """Whether a disk had no room."""
    known = isinstance(error, OSError) and error.errno in (ENOSPC, EDQUOT)
    return known or isinstance(error, DiskFullError)


def only_owner(path: str, flags: int) -> int:
    """The ``opener`` of a file with what people wrote: nobody else may read it."""
    return os.open(path, flags, 0o600)


def part_of(place: Path, key: str) -> Path:
    """Where a part of a file is, beside it; key: tells it from other parts."""
    return place.with_name(f"{_own(place)}{key}.part")


def sweep(place: Path, keep: str = "no part") -> None:
    """Remove parts of a file whose writers are gone; keep: how keys of those begin that stay."""
    for part in place.parent.glob(f"{_own(place)}*.part"):
        if part.name.startswith(_own(place) + keep):
            continue
        with suppress(OSError):  # another was faster, or it is not ours to remove
            if time() - part.stat().st_mtime > _STALE_S:
                part.unlink()


def _own(place: Path) -> str:
    return f".{crc32(os.fsencode(place.name)):08x}-"  # the name itself may be as long as one can be


# -- piece by piece --------------------------------------------------------------------------------

_READ = 1 << 20  # bytes at once


class Pieces:
    """The pieces of a file that is being written; kept: how many an earlier process wrote."""

    def __init__(self, out: BinaryIO, notes: BinaryIO) -> None:
        self._out, self._notes = out, notes
        self.kept = 0
        end, noted = 0, 0
        for line in notes:
            size, is_whole = _check(out, line)
            if not is_whole:
                break
            self.kept, end, noted = self.kept + 1, end + size, noted + len(line)
        self.count = self.kept
        for file, at in ((out, end), (notes, noted)):
            file.seek(at)
            file.truncate()

    def write(self, parts: Iterable[bytes | memoryview]) -> None:
        """Write one piece."""
        size, checksum = 0, 0
        for part in parts:
            size, checksum = size + self._out.write(part), crc32(part, checksum)
        self._out.flush()
        self._notes.write(f"{size} {checksum:08x}\n".encode())
        self._notes.flush()
        self.count += 1


def _check(file: BinaryIO, line: bytes) -> tuple[int, bool]:
    """The size of the piece that comes next, and whether it is as it was noted."""
    try:
        size, noted = int(line.split()[0]), int(line.split()[1], 16)
    except (ValueError, IndexError):  # the line was cut
        return 0, False
    checksum, left = 0, size
    while left and (read := file.read(min(left, _READ))):
        checksum, left = crc32(read, checksum), left - len(read)
    return size, left == 0 and checksum == noted


@contextmanager
def resumable_file(path: Path, key: str) -> Iterator[Pieces]:
    """A file of pieces, which takes the name when the block ends.

    key: what decides every byte of the file. What Ctrl-C or SystemExit interrupts is kept beside
    the file, if it has more than one piece, for the next with the same key; whatever else is
    raised, nothing is left. InputError where another process writes the same; CutawayError where
    it cannot be written.
    """
    from filelock import FileLock, Timeout  # not at every start

    place = Path(os.path.realpath(path))
    part, notes, lock = (part_of(place, key + end) for end in ("", ".notes", ".lock"))
    keeps, pieces = False, None
    try:
        sweep(place, key)
        try:
            with FileLock(lock, timeout=0):
                try:
                    with _open(part) as out, _open(notes) as noted:
                        pieces = Pieces(out, noted)
                        yield pieces
                        os.fsync(out.fileno())
                    part.replace(place)
                except (KeyboardInterrupt, SystemExit):
                    keeps = pieces is not None and pieces.count > 1
                    raise
                finally:
                    for file in () if keeps else (part, notes, lock):
                        file.unlink(missing_ok=True)
        except Timeout:
            raise InputError(f"{path} is being written by another process; wait for it") from None
    except OSError as error:
        raise CutawayError(
            f"{path} cannot be written: {error.strerror}; nothing was left behind"
        ) from error


def _open(path: Path) -> BinaryIO:
    path.touch()
    return path.open("r+b")


# -- read whole ------------------------------------------------------------------------------------

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
