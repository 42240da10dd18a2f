"""A file that has its name when it is complete: written beside it, flushed to the disk, renamed."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EDQUOT, ENOSPC
from pathlib import Path
from time import time
from typing import BinaryIO
from zlib import crc32

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
