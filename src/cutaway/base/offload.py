"""Keep weights in a file on a disk, for a model that is larger than memory.

This module knows which file systems are suitable, how much space is free, how fast the disk reads,
and how much of the file memory can keep.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from errno import ENOSPC
from pathlib import Path
from shutil import disk_usage
from tempfile import TemporaryFile
from time import perf_counter

from cutaway.base import system
from cutaway.base.checks import shown
from cutaway.base.progress import megabytes
from cutaway.base.resources import Memory, file_system, free_memory
from cutaway.errors import InputError

_IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")
_PROBE = 1 << 20, 32  # bytes of a piece, and how many pieces are written and read again
_SPARE = 8  # 1 / 8 of the free memory is left for buffers, the file's next pages, other programs


def check_folder(folder: object) -> Path:
    """Return the folder that ``offload_folder`` names; InputError if weights cannot be in it."""
    if not isinstance(folder, str | os.PathLike) or not (name := os.fsdecode(folder)):
        raise InputError("offload_folder", f" must be a folder's name, not {shown(folder)}")
    place, wrong = Path(name), ""
    try:
        if not place.exists():
            wrong = "there is no such folder; make it first"
        elif not place.is_dir():
            wrong = "it is not a folder; name one"
        elif not os.access(place, os.W_OK | os.X_OK):
            wrong = "it cannot be written to; name another folder"
        elif (kind := file_system(place)) in _IN_MEMORY:
            wrong = f"it is memory ({kind}); name a folder on a disk"
    except (OSError, ValueError) as error:  # a name that no folder can have
        wrong = f"it cannot be a folder's name: {getattr(error, 'strerror', None) or error}"
    if wrong:
        raise InputError("offload_folder", f" {shown(name)}: {wrong}")
    return place


@dataclass(frozen=True)
class Reads:
    """Bytes of a model's weights, and how many of them computing a token reads.

    size     bytes of all weights
    always   bytes that every token reads
    experts  bytes of all experts of a mixture
    active   bytes of the experts that one token uses
    """

    size: int
    always: int
    experts: int = 0
    active: int = 0

    def kept_share(self, room: int) -> float:
        """Return the share of the experts that fits into ``room`` bytes besides other weights."""
        if not self.experts:
            return 1.0
        return min(max(room - (self.size - self.experts), 0) / self.experts, 1.0)

    def from_file(self, room: int) -> int:
        """Return the bytes that a token reads from the file if all experts are equally likely."""
        rest = min(max(self.size - self.experts - room, 0), self.always)
        return rest + round(self.active * (1 - self.kept_share(room)))


@dataclass(frozen=True)
class Offload:
    """A folder for a model's weights, and the memory available for them.

    reserved  bytes of memory for what cannot be in a file: keys and values
    tell      called with a sentence about what will happen, before anything is written
    room      bytes of the file that stay in memory while no other program needs it
    """

    folder: Path
    reserved: int
    tell: Callable[[str], None]
    memory: Memory | None = field(default_factory=lambda: free_memory(swap=False))

    @property
    def room(self) -> int:
        """The free memory, less a spare part and what is reserved."""
        if self.memory is None:
            return 1 << 62  # the operating system decides
        return max(self.memory.free - self.memory.free // _SPARE - self.reserved, 0)

    @contextmanager
    def open(self, reads: Reads) -> Iterator[int]:
        """Open a new file for these weights, to be written in the block and then on the disk.

        It has no name, so that no other program sees it, and it is gone with the last descriptor
        and mapping, however this process ends. InputError if it cannot be written.
        """
        nbytes = reads.size
        try:
            with TemporaryFile(dir=self.folder, buffering=0) as file:
                if nbytes > disk_usage(self.folder).free:
                    raise self._full(nbytes)
                system.reserve(file.fileno(), nbytes)  # or others may fill the disk first
                self.tell(self._plan(reads, file.fileno()))
                yield file.fileno()
                os.fsync(file.fileno())  # or an error would be lost
        except OSError as error:
            if error.errno == ENOSPC:
                raise self._full(nbytes) from error
            raise InputError(
                "offload_folder",
                f" {shown(str(self.folder))}: {megabytes(nbytes)} of weights cannot "
                f"be written into a file there: {error.strerror}; name another folder",
            ) from error

    def _full(self, nbytes: int) -> InputError:
        return InputError(
            "offload_folder",
            f" {shown(str(self.folder))}: the weights take {megabytes(nbytes)}, and "
            f"{megabytes(disk_usage(self.folder).free)} are free there; make room or name another "
            "folder",
        )

    def _plan(self, reads: Reads, file: int) -> str:
        nbytes = reads.size
        start = f"{megabytes(nbytes)} of weights go into a file in {self.folder}"
        room = self.room
        if nbytes <= room or self.memory is None:
            return f"{start} and stay in memory, too, while no other program needs it"
        free, owner = self.memory
        passing = reads.from_file(room)
        rate = _read_speed(file, nbytes) / max(passing, 1)
        return (
            f"{start}: {megabytes(free)} of {owner} are free, of which "
            f"{megabytes(self.reserved)} are for keys and values (kv_tokens) and "
            f"{megabytes(room)} for weights; each token reads "
            f"{'about' if reads.experts else 'up to'} {megabytes(passing)} from the file, "
            f"and the disk allows about {rate:.2g} tokens a second"
            + (", more where it is often the same experts" if reads.experts else "")
        )


def _read_speed(file: int, nbytes: int) -> float:
    """Return the bytes per second that the disk reads when memory has no copy."""
    size, pieces = _PROBE
    pieces = max(min(pieces, nbytes // size), 1)
    piece = os.urandom(min(size, nbytes))  # a file system may compress
    for _ in range(pieces):
        os.write(file, piece)
    os.fsync(file)
    system.keep_no_copy(file, nbytes)
    os.lseek(file, 0, os.SEEK_SET)
    started = perf_counter()
    for _ in range(pieces):
        os.read(file, len(piece))
    return pieces * len(piece) / (perf_counter() - started)
