"""Writing a trace into a file while its run goes on; after every step it can be read."""

import os
import stat
import zlib
from hashlib import sha256
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Self
from weakref import finalize

from cutaway.base import system
from cutaway.base.checks import shown
from cutaway.engine.events import Pass, Step
from cutaway.errors import CutawayError, InputError
from cutaway.trace.record import End, Head
from cutaway.trace.sinks import TokenOf, TraceLines

if TYPE_CHECKING:
    from cutaway.trace.read import Trace


class TraceWriter:
    """A trace that grows step by step. Gzipped where the name ends in .gz.

    path      a file that does not exist or is empty, or something to write to: a pipe, a device
    token_of  the token of an id; called once for each id that occurs
    rest_of   the trace in that file, whose run was cut: it is continued

    Raises InputError where the file cannot be opened, and CutawayError where writing fails.
    """

    def __init__(
        self, path: str | PathLike[str], head: Head, token_of: TokenOf, *,
        rest_of: "Trace | None" = None,
    ) -> None:  # fmt: skip
        self.path = check_path(path) if rest_of is None else Path(path)
        rest = (rest_of.tokens, rest_of.version) if rest_of else ()
        self._lines = TraceLines(token_of, *rest)
        self._file = _begin(self.path) if rest_of is None else _continue(self.path, rest_of.sha256)
        self._close = finalize(self, os.close, self._file)
        self._zip = zlib.compressobj(wbits=31) if self.path.suffix == ".gz" else None
        self._is_whole = True
        self._write((self._lines.tokens if rest_of else self._lines.head)(head))

    def add(self, event: Step | Pass) -> None:
        """Append a step, which the engine was asked to observe, or a pass over a canvas."""
        self._write(self._lines.add(event))

    def end(self, end: End) -> None:
        """Append why the text ended, and close the file."""
        self._write(self._lines.end(end))
        self.close()

    @property
    def closed(self) -> bool:
        """Whether nothing can follow."""
        return not self._close.alive

    def close(self) -> None:
        """Leave the file as it is: without an end, the run was cut short."""
        if self.closed:
            return
        try:
            if self._zip and self._is_whole:
                self._put(self._zip.flush())
        finally:
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, lines: list[bytes]) -> None:
        """Whole lines in one write, so that a reader never sees half a line."""
        data = b"".join(lines)
        if not self._is_whole:  # nothing can follow a line that was cut
            return
        self._is_whole = False  # until all is written: Ctrl-C may come between
        if self._zip:
            data = self._zip.compress(data) + self._zip.flush(zlib.Z_SYNC_FLUSH)
        self._put(data)
        self._is_whole = True

    def _put(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._file, left) :]
        except OSError as error:
            raise CutawayError(f"trace: {self.path} cannot be written: {error.strerror}") from error


# -- the file ------------------------------------------------------------------------------------


def check_path(path: str | PathLike[str]) -> Path:
    """The path of a trace to write; InputError where none can be written there."""
    if (
        not isinstance(path, (str, PathLike))
        or not isinstance(fspath(path), str)
        or not fspath(path)
    ):
        raise InputError(f"trace must be the name of a file, not {shown(path)}")
    file = Path(path)
    try:
        found = file.stat()
    except FileNotFoundError:
        if not os.access(file.parent, os.W_OK | os.X_OK):
            raise InputError(f"trace: no file can be made in {file.parent}") from None
        return file
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"trace: {shown(str(path))} cannot be written: {why}") from error
    if stat.S_ISDIR(found.st_mode):
        raise InputError(f"trace: {file} is a folder; name a file in it")
    if not os.access(file, os.W_OK):
        raise InputError(f"trace: {file} may not be written to")
    _refuse_to_overwrite(file, found)
    return file


def numbered(path: str | PathLike[str], number: int) -> Path:
    """Where the trace of the n-th of several samples goes: run.jsonl, run.2.jsonl, run.3.jsonl …"""
    file, ending = Path(path), ".gz" if Path(path).suffix == ".gz" else ""
    plain = Path(file.name.removesuffix(ending))
    return file if number == 1 else file.with_name(f"{plain.stem}.{number}{plain.suffix}{ending}")


def _begin(path: Path) -> int:
    """Open what ``check_path`` allowed, and check again: another process may have been faster."""
    how = os.O_WRONLY | system.AS_BYTES
    try:
        try:
            descriptor = os.open(path, how | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            descriptor = os.open(path, how)
    except OSError as error:
        raise InputError(f"trace: {path} cannot be written: {error.strerror}") from error
    try:
        _refuse_to_overwrite(path, os.fstat(descriptor))
        _lock(path, descriptor)
    except InputError:
        os.close(descriptor)
        raise
    return descriptor


def _continue(path: Path, digest: str) -> int:
    """Open the trace of a cut run for appending after its last whole line, and lock it."""
    try:
        file = path.open("r+b", buffering=0)
    except OSError as error:
        raise InputError(f"trace: {path} cannot be written: {error.strerror}") from error
    with file:
        _lock(path, file.fileno())
        data = file.read()
        if sha256(data).hexdigest() != digest:
            raise InputError(f"trace: {path} is still being written: wait for its end, or stop it")
        file.truncate(data.rindex(b"\n") + 1)
        file.seek(0, os.SEEK_END)
        return os.dup(file.fileno())


def _lock(path: Path, descriptor: int) -> None:
    """Let this process alone write to the file until it is closed, or the process is killed."""
    try:
        system.lock(descriptor)
    except BlockingIOError:
        raise InputError(
            f"trace: {path} is still being written: wait for its end, or stop it"
        ) from None
    except OSError:  # a pipe, a device, a folder on a network
        pass


def _refuse_to_overwrite(path: Path, found: os.stat_result) -> None:
    if stat.S_ISREG(found.st_mode) and found.st_size:
        raise InputError(f"trace: {path} exists already; name another file, or remove it")
