"""A file of requests and a file of their records, from which a killed run can be resumed."""

import json
import re
import shutil
import sys
from array import array
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from cutaway.base import system
from cutaway.errors import CutawayError, InputError

_HEAD = re.compile(rb'\{"line": (\d{1,18}), "')
_CUT_HEAD = re.compile(rb'\{"line": \d{1,18}(, ?)?')
_START = b'{"line": '


def open_input(path: str) -> IO[bytes]:
    """A file that can seek; standard input ("-") and pipes are read to their end first."""
    try:
        if path == "-":
            return _copy(sys.stdin.buffer)
        source = Path(path).open("rb")  # noqa: SIM115  as this
        if source.seekable():
            return source
        with source:
            return _copy(source)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error


def _copy(source: IO[bytes]) -> IO[bytes]:
    copy = TemporaryFile()  # noqa: SIM115  the caller closes it
    shutil.copyfileobj(source, copy)
    return copy


class Lines:
    """The lines of a file, by number from 1; nine bytes of memory a line.

    count   of the lines that are not blank
    done    how many of them have a record; failed: how many of these hold an error
    """

    def __init__(self, file: IO[bytes], salt: str) -> None:
        """salt: what a request depends on besides its line; it goes into the hash of the record."""
        self._file, self._salt = file, salt.encode() + b"\n"
        self._starts, self._is_open, start = array("Q"), bytearray(), 0
        file.seek(0)
        for line in file:
            self._starts.append(start)
            self._is_open.append(not line.isspace())
            start += len(line)
        self.count, self.done, self.failed = sum(self._is_open), 0, 0

    def left(self) -> Iterator[int]:
        """The numbers of those without a record, in order."""
        return (number for number, is_open in enumerate(self._is_open, 1) if is_open)

    def read(self, number: int) -> bytes:
        """A line, without its end."""
        self._file.seek(self._starts[number - 1])
        return self._file.readline().rstrip(b"\r\n")

    def head(self, number: int) -> dict[str, Any]:
        """What the record of a line begins with."""
        digest = sha256(self._salt + self.read(number)).hexdigest()
        return {"line": number, "request_sha256": digest}

    def wants(self, number: int) -> bool:
        """Whether there is such a line, not blank and without a record."""
        return 0 < number <= len(self._is_open) and bool(self._is_open[number - 1])

    def close(self, record: dict[str, Any]) -> None:
        """Note that a line has its record."""
        self._is_open[record["line"] - 1] = 0
        self.done += 1
        self.failed += bool(record.get("error"))  # null where all is well


class Records:
    """A file of records, each appended whole; standard output for "-", which is only written.

    An existing file is checked first: InputError, and not a byte changed, unless it holds nothing
    but records of these lines. A last record that was cut off in the middle is removed.
    """

    def __init__(self, path: str, lines: Lines) -> None:
        self._path, self._lines, self._file = path, lines, _open_output(path)
        if self._file.readable():
            try:
                self._lock()
                self._resume()
            except BaseException:
                self._file.close()
                raise

    def __enter__(self) -> "Records":
        return self

    def __exit__(self, raised: type[BaseException] | None, *_: object) -> None:
        if self._path == "-":
            return
        try:
            self._file.close()
        except OSError:
            if raised is None:
                raise  # else it was told when a record was written

    def write(self, record: dict[str, Any]) -> None:
        """Append a record of a line; it begins with the line's head."""
        try:
            self._file.write(json.dumps(record).encode("ascii") + b"\n")
            self._file.flush()
        except OSError as error:
            if self._path == "-":
                raise
            raise CutawayError(f"cannot write {self._path}: {error.strerror}") from error
        self._lines.close(record)

    def _lock(self) -> None:
        """Two runs at once would write every line twice. The lock ends with the process."""
        try:
            system.lock(self._file.fileno())
        except BlockingIOError:
            raise InputError(f"{self._path}: another process writes to it: wait for it") from None

    def _resume(self) -> None:
        whole = 0
        self._file.seek(0)
        for place, text in enumerate(self._file, 1):
            if not text.endswith(b"\n"):
                if not self._is_begun(text):
                    raise self._refusal("its end is not the beginning of a record of this input")
                self._file.truncate(whole)
                return
            self._check(place, text)
            whole += len(text)

    def _check(self, place: int, text: bytes) -> None:
        record: Any = None
        with suppress(ValueError, RecursionError):
            record = json.loads(text)
        number = record.get("line") if isinstance(record, dict) else None
        if type(number) is not int:
            raise self._refusal(f"line {place} is not a record that cutaway wrote")
        if not (self._lines.wants(number) and record | self._lines.head(number) == record):
            raise self._refusal(
                f"line {place} is a record of another input, model or options, or not the first "
                "of its line"
            )
        self._lines.close(record)

    def _is_begun(self, text: bytes) -> bool:
        """Whether it can be the beginning of a record; nothing else may be removed."""
        if not (found := _HEAD.match(text)):
            return _START.startswith(text) or bool(_CUT_HEAD.fullmatch(text))
        if not self._lines.wants(number := int(found[1])):
            return False
        head = json.dumps(self._lines.head(number)).encode().removesuffix(b"}")
        return text.startswith(head) or head.startswith(text)

    def _refusal(self, why: str) -> InputError:
        return InputError(f"{self._path}: {why}: choose another output, or move this one away")


def _open_output(path: str) -> IO[bytes]:
    """A file to append to; a regular one is readable, too."""
    if path == "-":
        return sys.stdout.buffer
    try:
        plain = Path(path).is_file() or not Path(path).exists()
        return Path(path).open("a+b" if plain else "ab")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error
