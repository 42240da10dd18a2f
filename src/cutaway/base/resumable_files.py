"""A file that is written piece by piece, and goes on where an interruption left it.

Each piece is noted beside the file with its size and its checksum once it is written. Whoever goes
on reads the pieces again, and begins after the last that is as it was noted: a machine that lost
its power may have lost pieces that a process had written.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from zlib import crc32

from cutaway.base.whole_files import part_of, sweep
from cutaway.errors import CutawayError, InputError

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
