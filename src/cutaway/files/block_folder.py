"""A folder with KV blocks on a disk, which the processes of a machine share.

    DIR/MODEL/model.json        what computed the blocks: {"model", "computed_by"}
    DIR/MODEL/ab/abcd….PART     a part of a block: its name in hex, the first two digits before it

    a part's file   0   8   "cutaway" and a byte
                    8   8   when it was written: nanoseconds since 1970
                    16  32  SHA-256 of its name, of bytes 8 to 15, and of the rest of the file
                    48      the part's bytes

MODEL is a hash of all that the bits depend on besides the text. Numbers are little-endian. A file
is written whole or not at all, and never changes; its time of modification is the time of its last
use. So processes need no lock: two that write one file write the same, and a file that another
process removed is a block that the folder does not have. Knows no model, and nothing of texts.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from logging import getLogger
from pathlib import Path
from stat import S_IMODE
from time import time, time_ns
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cutaway.base import strict_json
from cutaway.base.whole_files import whole_file
from cutaway.errors import CutawayError, FormatError, InputError

Bytes = NDArray[np.uint8]

_MAGIC, _HEAD = b"cutaway\x0d", 48
_STALE_S = 3600  # a file that is still being written is younger
_ROOM = 0.95  # a folder that is full is emptied to this share of its size
_COUNT_EVERY = 0.02  # the share of its size that a process writes between two counts
_ABOUT = "model.json"
_LOG = getLogger("cutaway.cache")


class PartReadError(CutawayError):
    """A part cannot be read now: the disk fails, or too many files are open."""


class StoredFile(NamedTuple):
    """A part's file, as the disk lists it.

    used_ns  when it was last used
    """

    path: Path
    nbytes: int
    used_ns: int


class BlockFolder:
    """The blocks of one model in a folder; any number of processes may use it at once.

    root       the folder, which may have several models' blocks
    size       the most bytes that all of them take; the least recently used go first
    nbytes     the bytes of all of them at the last count, and what this process wrote since
    oldest_ns  when the least recently used of them was used, at the last count; 0 for none
    """

    def __init__(self, root: Path, size: int, model: str, computed_by: Mapping[str, str]) -> None:
        """computed_by: all that the bits depend on besides the text, by name"""
        self.root, self.size = root, size
        about = {"model": model, "computed_by": {**computed_by}}
        key = sha256(json.dumps(about["computed_by"], sort_keys=True).encode()).hexdigest()[:32]
        self.nbytes, self.oldest_ns = 0, 0
        self._folder = root / key
        self._uncounted: int | None = None  # bytes since the last count; None: before the first
        self._about = json.dumps(about).encode()
        self._warned: set[str] = set()  # what the log says once

    def path(self, name: bytes, part: str) -> Path:
        """Return the path of a part of a block."""
        text = name.hex()
        return self._folder / text[:2] / f"{text}.{part}"

    def has(self, name: bytes, part: str) -> bool:
        """Whether the folder has a part of a block; not if the disk does not say so."""
        return self._exists(self.path(name, part))

    def _exists(self, path: Path) -> bool:
        try:
            return path.exists()
        except OSError as error:
            self._warn("cannot read", path, error)
            return False

    def _warn(self, failure: str, path: Path, error: OSError) -> None:
        """Note a failure in the log; later ones of its kind are not noted."""
        if failure not in self._warned:
            self._warned.add(failure)
            _LOG.warning("the prompt cache %s %s: %s", failure, path, error.strerror)

    # -- reading -----------------------------------------------------------------------------

    def read(self, name: bytes, part: str, memory: Bytes) -> bool:
        """Read a part into memory of its size; return False if the folder does not have it.

        FormatError if the file is damaged; it is removed, so that it will be written again.
        PartReadError if it cannot be read; it stays.
        """
        path = self.path(name, part)
        try:
            with path.open("rb", buffering=0) as file:
                head = file.read(_HEAD)
                is_whole = _fill(file, memory) and not file.read(1)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise PartReadError(f"{path} cannot be read: {error.strerror}") from error
        if not is_whole or head != _head(path.name, head[8:16], memory):
            end = "was removed" if self._remove(path) else "cannot be removed"
            raise FormatError(f"{path} is damaged, and {end}")
        return True

    def touch(self, name: bytes, part: str, used_ns: int) -> None:
        """Note when a part was used."""
        with suppress(OSError):  # it is not there any more
            os.utime(self.path(name, part), ns=(used_ns, used_ns))

    # -- writing -----------------------------------------------------------------------------

    def write(self, name: bytes, part: str, data: Bytes, used_ns: int) -> None:
        """Write a part; CutawayError if it cannot be written, DiskFullError if the disk is full."""
        path, stamp = self.path(name, part), used_ns.to_bytes(8, "little")
        try:
            for folder in (self.root, self._folder, path.parent):
                folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise CutawayError(f"{path.parent} cannot be made: {error.strerror}") from error
        if not self._exists(self._folder / _ABOUT):
            with whole_file(self._folder / _ABOUT, private=True) as out:
                out.write(self._about)
        with whole_file(path, private=True) as out:
            out.write(_head(path.name, stamp, data))
            out.write(data.data)
        self.touch(name, part, used_ns)
        if self._uncounted is not None:
            self._uncounted += _HEAD + data.nbytes
        self.nbytes += _HEAD + data.nbytes

    def trim(self) -> set[str] | None:
        """Remove what was not used for the longest time, if the folder is full.

        Return the names of this model's files; None if there was no need to count them.
        """
        is_fresh = self._uncounted is not None and self._uncounted <= self.size * _COUNT_EVERY
        if is_fresh and self.nbytes <= self.size:
            return None
        files = sorted(stored_files(self.root), key=lambda file: file.used_ns)
        self.nbytes, self._uncounted = sum(file.nbytes for file in files), 0
        limit = self.size * _ROOM if self.nbytes > self.size else self.size
        left = []
        for file in files:
            if self.nbytes > limit and self._remove(file.path):
                self.nbytes -= file.nbytes
            else:
                left.append(file)
        sweep_parts(self.root)
        self.oldest_ns = left[0].used_ns if left else 0
        return {file.path.name for file in left if file.path.parent.parent == self._folder}

    def _remove(self, path: Path) -> bool:
        """Remove a file; return whether it is gone."""
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            self._warn("cannot remove", path, error)
            return False
        return True


def _fill(file: Any, memory: Bytes) -> bool:
    """Read from a file until the memory is full; return whether there were as many bytes."""
    left = memory.data
    while len(left):
        if not (got := file.readinto(left)):
            return False
        left = left[got:]
    return True


def _head(name: str, stamp: bytes, data: Bytes) -> bytes:
    """Return the first bytes of a file of this name."""
    digest = sha256(name.encode())
    digest.update(stamp)
    digest.update(data.data)
    return _MAGIC + stamp + digest.digest()


# -- a folder of several models' blocks --------------------------------------------------------


def make_private(root: Path) -> None:
    """Make a folder that its owner alone can read; InputError if it can be none.

    Whoever can write into a folder can put wrong keys and values into it, which no hash would find.
    """
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = root.stat()
    except OSError as error:
        raise InputError("cache_dir", f": {root} cannot be a folder: {error.strerror}") from error
    if hasattr(os, "geteuid") and status.st_uid != os.geteuid():
        raise InputError(
            "cache_dir",
            f": {root} belongs to another user, who could change what models read there: name a "
            "folder of your own, or one that does not exist",
        )
    if os.name == "posix" and S_IMODE(status.st_mode) & 0o022:
        raise InputError(
            "cache_dir",
            f": others can write into {root}, and could change what models read there: name a "
            "folder of your own, or one that does not exist",
        )
    if not os.access(root, os.R_OK | os.W_OK | os.X_OK):
        raise InputError("cache_dir", f": {root} cannot be read and written; name another folder")


def stored_files(root: Path) -> Iterator[StoredFile]:
    """Yield the files of blocks in a folder; those that are removed meanwhile may be left out."""
    for entry in _entries(root):
        if _FILE.fullmatch(entry.name):
            with suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                yield StoredFile(Path(entry.path), status.st_size, status.st_mtime_ns)


def sweep_parts(root: Path) -> None:
    """Remove files that writers left unfinished an hour ago or earlier."""
    for entry in _entries(root):
        if entry.name.endswith(".part"):
            with suppress(OSError):
                if entry.stat().st_mtime < time() - _STALE_S:
                    Path(entry.path).unlink()


_MODEL, _INNER = re.compile("[0-9a-f]{32}"), re.compile("[0-9a-f]{2}")
_FILE = re.compile(r"[0-9a-f]{64}\.(kv|window|state)")
"""Names that this module gives: nothing else is removed, whichever folder is named."""


def _entries(root: Path) -> Iterator[os.DirEntry[str]]:
    """Yield the files in all folders of blocks."""
    for model in _folders(root, _MODEL):
        for inner in _folders(model.path, _INNER):
            with suppress(OSError), os.scandir(inner) as entries:
                yield from [e for e in entries if e.is_file(follow_symlinks=False)]


def _folders(root: str | Path, pattern: re.Pattern[str]) -> list[os.DirEntry[str]]:
    """Return the folders in a folder whose names match."""
    with suppress(OSError), os.scandir(root) as entries:
        matching = (entry for entry in entries if pattern.fullmatch(entry.name))
        return [entry for entry in matching if entry.is_dir(follow_symlinks=False)]
    return []


class StoredModel(NamedTuple):
    """What a folder has of one model.

    model        the model's name
    computed_by  all that the bits depend on besides the text
    blocks       the number of its blocks
    read_again   how many of these were used after they were written
    bytes        the size of all its files
    oldest_s, newest_s  seconds since the last use of the block that was not used for the longest
                 time, and of the one that was used last
    """

    model: str
    computed_by: Mapping[str, str]
    blocks: int
    read_again: int
    bytes: int
    oldest_s: float
    newest_s: float


def stored_models(root: Path) -> list[StoredModel]:
    """Return what a folder has of each model, the latest used first; InputError for no folder."""
    _check_folder(root)
    files = sorted(stored_files(root), key=lambda file: file.used_ns)
    models = (_read_model(Path(folder.path), files) for folder in _folders(root, _MODEL))
    return sorted(filter(None, models), key=lambda model: model.newest_s)


def _read_model(folder: Path, files: Sequence[StoredFile]) -> StoredModel | None:
    """Read what a model's folder has; None if it has no blocks. files: the oldest first"""
    model_files = [file for file in files if file.path.parent.parent == folder]
    if not model_files:
        return None
    try:
        about = strict_json.parse((folder / _ABOUT).read_bytes())
        model, computed_by = str(about["model"]), dict(about["computed_by"])
    except (OSError, InputError, KeyError, TypeError, ValueError):  # only its name is lost
        model, computed_by = folder.name, {}
    blocks = [file for file in model_files if file.path.suffix == ".kv"]
    ages = [(time_ns() - file.used_ns) / 1e9 for file in (model_files[0], model_files[-1])]
    return StoredModel(
        model, computed_by, len(blocks), sum(map(_was_read_again, blocks)),
        sum(file.nbytes for file in model_files), *ages,
    )  # fmt: skip


def _was_read_again(file: StoredFile) -> bool:
    """Whether a file was used after it was written."""
    try:
        with file.path.open("rb", buffering=0) as opened:
            written_ns = int.from_bytes(opened.read(_HEAD)[8:16], "little")
            return file.used_ns > written_ns
    except OSError:
        return False


def clear_folder(root: Path) -> tuple[int, int]:
    """Remove all blocks in a folder; return their number and bytes. Other files stay."""
    _check_folder(root)
    try:
        return _clear(root)
    except OSError as error:
        raise CutawayError(
            f"{root} cannot be cleared: {error.filename}: {error.strerror}; the other blocks stay"
        ) from error


def _clear(root: Path) -> tuple[int, int]:
    count = nbytes = 0
    for file in stored_files(root):
        with suppress(FileNotFoundError):
            file.path.unlink()
            count, nbytes = count + (file.path.suffix == ".kv"), nbytes + file.nbytes
    for model in _folders(root, _MODEL):
        folder = Path(model.path)
        for inner in _folders(folder, _INNER):
            _remove_empty(Path(inner.path))
        if [file.name for file in folder.iterdir()] == [_ABOUT]:
            (folder / _ABOUT).unlink(missing_ok=True)
        _remove_empty(folder)
    return count, nbytes


def _check_folder(root: Path) -> None:
    try:
        is_folder = root.is_dir()
    except OSError as error:
        raise InputError(f"{root} cannot be read: {error.strerror}") from error
    if not is_folder:
        raise InputError(f"{root} is no folder of a prompt cache; --cache-dir makes one")


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):  # something is in it
        folder.rmdir()
