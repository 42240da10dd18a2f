"""Write a trace while its run continues: as data, or into a file that is readable at any time.

Knows the order of records, and how the engine's events become records.
"""

import json
import os
import stat
import zlib
from collections.abc import Callable, Iterable
from hashlib import sha256
from json.encoder import encode_basestring
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self
from weakref import finalize

from cutaway.base import system
from cutaway.base.checks import shown
from cutaway.engine.events import Ended, Pass, Step
from cutaway.errors import CutawayError, InputError
from cutaway.trace import steps
from cutaway.trace.check import VERSION, to_version
from cutaway.trace.record import End, Head, Json, Token

if TYPE_CHECKING:
    from cutaway.trace.read import Trace


# -- records, as lines or as data --------------------------------------------------------------

TokenOf = Callable[[int], Token]
"""Returns the token of an id; called once for each id."""


class TraceSink(Protocol):
    """The receiver of a trace after its head."""

    @property
    def closed(self) -> bool:
        """Whether the receiver takes no more records."""

    def add(self, event: Step | Pass) -> None:
        """Append a step, which the engine was asked to observe, or a pass over a canvas."""

    def end(self, end: End) -> None:
        """Append the end, the last record."""


class _Records:
    """Turns events into records. A token's record precedes the first step or pass with its id."""

    def __init__(self, token_of: TokenOf, known_ids: Iterable[int] = ()) -> None:
        self._token_of, self._known_ids = token_of, {*known_ids}

    def new_tokens(self, ids: Iterable[int]) -> list[Token]:
        """Return the tokens that have no record yet, in the order of ids."""
        new = sorted({*ids} - self._known_ids)
        self._known_ids.update(new)
        return [self._token_of(token_id) for token_id in new]

    def records_of(self, event: Step | Pass) -> tuple[list[Token], Json]:
        """Return the new tokens of a step or a pass, and its record."""
        if isinstance(event, Pass):
            return self.new_tokens(steps.tokens_of_pass(event)), steps.pass_to_json(event)
        return self.new_tokens(steps.tokens_of(event)), steps.step_to_json(event)


class TraceLines:
    """Writes records as lines of JSON.

    known_ids  ids of the tokens that already have a line, in a trace that is continued
    version    version of the format of that trace
    """

    def __init__(
        self, token_of: TokenOf, known_ids: Iterable[int] = (), version: int = VERSION
    ) -> None:
        self._records, self._version = _Records(token_of, known_ids), version

    def head(self, head: Head) -> list[bytes]:
        """Return the first lines: the head and its tokens."""
        return [self._line(head.to_json()), *self.tokens(head)]

    def tokens(self, head: Head) -> list[bytes]:
        """Return lines for those of the head's tokens that have no line yet."""
        return [*map(token_line, self._records.new_tokens(head.token_ids))]

    def add(self, event: Step | Pass) -> list[bytes]:
        """Return lines of a step, which the engine was asked to observe, or of a pass."""
        tokens, record = self._records.records_of(event)
        return [*map(token_line, tokens), self._line(record)]

    def end(self, end: End) -> list[bytes]:
        """Return the last line."""
        return [self._line(end.to_json())]

    def _line(self, record: Json) -> bytes:
        return line(to_version(record, self._version))


class TraceBuffer:
    """A trace in memory, which a server sends while the trace grows.

    ``take`` makes the records. A server calls it outside of its event loop: 128 steps of 1,000
    candidates take a second.
    """

    def __init__(self, head: Head, token_of: TokenOf) -> None:
        self._records, self.closed = _Records(token_of), False
        self._pending: list[Head | Step | Pass | End] = [head]

    def add(self, event: Step | Pass) -> None:
        """Append a step, which the engine was asked to observe, or a pass over a canvas."""
        self._pending.append(event)

    def end(self, end: End) -> None:
        """Append the end, the last record."""
        self._pending.append(end)
        self.closed = True

    def take(self) -> list[Json]:
        """Return the records since the last call."""
        pending, self._pending = self._pending, []
        return [
            record for record_or_event in pending for record in self._to_records(record_or_event)
        ]

    def _to_records(self, record_or_event: Head | Step | Pass | End) -> list[Json]:
        if isinstance(record_or_event, End):
            return [record_or_event.to_json()]
        if isinstance(record_or_event, Head):
            tokens = self._records.new_tokens(record_or_event.token_ids)
            return [record_or_event.to_json(), *(token.to_json() for token in tokens)]
        tokens, record = self._records.records_of(record_or_event)
        return [*(token.to_json() for token in tokens), record]


_encode = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False, check_circular=False
).encode


def line(record: Json) -> bytes:
    """Return a record's line; CutawayError if a figure is not finite."""
    try:
        text = _encode(record)
    except ValueError:
        raise CutawayError("trace: a figure is not finite, for which JSON has no form") from None
    return text.encode("utf-8", "replace") + b"\n"  # a model's name may be invalid Unicode


def token_line(token: Token) -> bytes:
    """Return ``line(token.to_json())``, but faster for plain text: a step has many new tokens."""
    try:
        text = encode_basestring(token.bytes.decode())
    except UnicodeDecodeError:
        return line(token.to_json())
    if token.name:
        return line(token.to_json())
    return f'{{"kind":"tok","id":{token.id},"text":{text}}}\n'.encode()


def end_of(event: Ended) -> End:
    """Return the record of the event that ends a text."""
    return End(
        reason="error" if event.error else str(event.reason),
        matched=event.matched,
        usage=event.usage._asdict(),
        fingerprint=f"{event.fingerprint:016x}",
        text=event.held_text,
        error=str(event.error) if event.error else None,
        speculation=event.speculation.to_json(),
    )


# -- the writer --------------------------------------------------------------------------------


class TraceWriter:
    """Writes a trace file step by step, gzipped if the name ends in .gz.

    path      a file that does not exist or is empty, a pipe, or a device
    token_of  returns the token of an id; called once for each id
    rest_of   the trace of a cut run in that file, which the writer continues

    Raises InputError if the file cannot be opened, and CutawayError if writing fails.
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
        """Append the end, and close the file."""
        self._write(self._lines.end(end))
        self.close()

    @property
    def closed(self) -> bool:
        """Whether the file is closed."""
        return not self._close.alive

    def close(self) -> None:
        """Close the file as it is. Without an end, the trace is that of a cut run."""
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
        """Write whole lines at once, so that a reader never sees half a line."""
        data = b"".join(lines)
        if not self._is_whole:  # an earlier write was cut: append nothing
            return
        self._is_whole = False  # until all is written: Ctrl-C may interrupt the write
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
    """Return the path of a new trace; InputError if no trace can be written there."""
    if (
        not isinstance(path, (str, PathLike))
        or not isinstance(fspath(path), str)
        or not fspath(path)
    ):
        raise InputError("trace", f" must be the name of a file, not {shown(path)}")
    file = Path(path)
    try:
        status = file.stat()
    except FileNotFoundError:
        if not os.access(file.parent, os.W_OK | os.X_OK):
            raise InputError("trace", f": no file can be made in {file.parent}") from None
        return file
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError("trace", f": {shown(str(path))} cannot be written: {reason}") from error
    if stat.S_ISDIR(status.st_mode):
        raise InputError("trace", f": {file} is a folder; name a file in it")
    if not os.access(file, os.W_OK):
        raise InputError("trace", f": {file} may not be written to")
    _refuse_to_overwrite(file, status)
    return file


def numbered_path(path: str | PathLike[str], number: int) -> Path:
    """Return the path of the n-th sample's trace: run.jsonl, run.2.jsonl, run.3.jsonl …"""
    file, ending = Path(path), ".gz" if Path(path).suffix == ".gz" else ""
    plain = Path(file.name.removesuffix(ending))
    return file if number == 1 else file.with_name(f"{plain.stem}.{number}{plain.suffix}{ending}")


def _begin(path: Path) -> int:
    """Open a path that ``check_path`` allowed, and check again: another process may be faster."""
    flags = os.O_WRONLY | system.AS_BYTES
    try:
        try:
            descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            descriptor = os.open(path, flags)
    except OSError as error:
        raise InputError("trace", f": {path} cannot be written: {error.strerror}") from error
    try:
        _refuse_to_overwrite(path, os.fstat(descriptor))
        _lock(path, descriptor)
    except InputError:
        os.close(descriptor)
        raise
    return descriptor


def _continue(path: Path, digest: str) -> int:
    """Open and lock the trace of a cut run, to append after its last complete line."""
    try:
        file = path.open("r+b", buffering=0)
    except OSError as error:
        raise InputError("trace", f": {path} cannot be written: {error.strerror}") from error
    with file:
        _lock(path, file.fileno())
        data = file.read()
        if sha256(data).hexdigest() != digest:
            raise InputError(
                "trace", f": {path} is still being written: wait for its end, or stop it"
            )
        file.truncate(data.rindex(b"\n") + 1)
        file.seek(0, os.SEEK_END)
        return os.dup(file.fileno())


def _lock(path: Path, descriptor: int) -> None:
    """Lock the file for this process until the file is closed or the process ends."""
    try:
        system.lock(descriptor)
    except BlockingIOError:
        raise InputError(
            "trace", f": {path} is still being written: wait for its end, or stop it"
        ) from None
    except OSError:  # a pipe, a device, a folder on a network
        pass


def _refuse_to_overwrite(path: Path, status: os.stat_result) -> None:
    if stat.S_ISREG(status.st_mode) and status.st_size:
        raise InputError("trace", f": {path} exists already; name another file, or remove it")
