"""Write files that exist whole or not at all, resume them after an interruption, and read them.

A file is written under another name next to its own, flushed to the disk, and renamed at the end.

A file that is written in pieces can be resumed: the size and the checksum of each written piece are
noted next to the file. Resuming reads the pieces again, and continues after the last one that
matches its note: after a power failure, pieces that a process had written may be lost.

Reading is limited, so that a device or a wrong file does not fill the memory.
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
    """Raise InputError, before any work is done, if no file can be written at this path."""
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
    """Open a new file to write, which takes the name when the block ends.

    A file that had the name is replaced. Where the name is a link, its target is. Two writers at
    once have a file each, and the last to end gets the name. Raises CutawayError if it cannot be
    written, DiskFullError if the disk is full; after any exception no part is left. Parts that a
    killed process left are removed by the next writer, once they are an hour old.
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
    """Return whether an error means that a disk is full."""
    is_out_of_room = isinstance(error, OSError) and error.errno in (ENOSPC, EDQUOT)
    return is_out_of_room or isinstance(error, DiskFullError)


def only_owner(path: str, flags: int) -> int:
    """Open a file that only its owner may read; an ``opener`` for ``open``."""
    return os.open(path, flags, 0o600)


def part_of(place: Path, key: str) -> Path:
    """Return the path of a part of a file, next to it. key: distinguishes it from other parts."""
    return place.with_name(f"{_part_prefix(place)}{key}.part")


def sweep(place: Path, keep: str = "no part") -> None:
    """Remove parts of a file whose writers are gone. keep: beginning of the keys that stay."""
    for part in place.parent.glob(f"{_part_prefix(place)}*.part"):
        if part.name.startswith(_part_prefix(place) + keep):
            continue
        with suppress(OSError):  # another process was faster, or we may not remove it
            if time() - part.stat().st_mtime > _STALE_S:
                part.unlink()


def _part_prefix(place: Path) -> str:
    return f".{crc32(os.fsencode(place.name)):08x}-"  # the name itself may have the maximum length


# -- piece by piece --------------------------------------------------------------------------------

_READ = 1 << 20  # bytes at once


class Pieces:
    """The pieces of a file that is being written; num_kept: how many an earlier process wrote."""

    def __init__(self, out: BinaryIO, notes: BinaryIO) -> None:
        self._out, self._notes = out, notes
        self.num_kept = 0
        end, notes_end = 0, 0
        for line in notes:
            size, is_whole = _check(out, line)
            if not is_whole:
                break
            self.num_kept, end, notes_end = self.num_kept + 1, end + size, notes_end + len(line)
        self.count = self.num_kept
        for file, at in ((out, end), (notes, notes_end)):
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
    """Return the size of the next piece, and whether it matches its note."""
    try:
        size, expected = int(line.split()[0]), int(line.split()[1], 16)
    except (ValueError, IndexError):  # the line was cut
        return 0, False
    checksum, left = 0, size
    while left and (read := file.read(min(left, _READ))):
        checksum, left = crc32(read, checksum), left - len(read)
    return size, left == 0 and checksum == expected


@contextmanager
def resumable_file(path: Path, key: str) -> Iterator[Pieces]:
    """Open a file of pieces, which takes the name when the block ends.

    key: determines every byte of the file. After Ctrl-C or SystemExit the pieces are kept next to
    the file, if there is more than one, for the next call with the same key; after any other
    exception nothing is left. InputError if another process writes the same file; CutawayError if
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
                    with _open(part) as out, _open(notes) as notes_file:
                        pieces = Pieces(out, notes_file)
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
"""The limit of a file that people write, or that is read whole."""


def read_bounded(path: str | PathLike[str], max_bytes: int = MOST_BYTES) -> bytes:
    """Read a whole file; InputError if it has more than max_bytes, OSError if it is unreadable."""
    with Path(path).open("rb") as file:
        return read_all(file, str(path), max_bytes)


def read_all(file: BinaryIO, name: str, max_bytes: int = MOST_BYTES) -> bytes:
    """Read the rest of an open file; InputError, with ``name``, if this is more than max_bytes."""
    pieces, left = [], max_bytes + 1
    while left and (piece := file.read(min(left, 1 << 20))):  # a pipe gives what it has
        pieces.append(piece)
        left -= len(piece)
    if not left:
        raise InputError(f"{name}: more than {megabytes(max_bytes)}; name a smaller file")
    return b"".join(pieces)
