"""Standard streams, which may be closed, full, or no longer read by anybody."""

import io
import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from select import select
from typing import TYPE_CHECKING, Any, TextIO

from cutaway.base import system
from cutaway.base.progress import STEERING, inert
from cutaway.errors import InputError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

OUTPUT = "standard output"
"""The ``filename`` of OSErrors from standard output, and of no other OSError."""


@contextmanager
def usable() -> Iterator[None]:
    """Make the standard streams usable in the block, even if they are closed, full or replaced.

    The first failed write to standard output raises an OSError whose filename is OUTPUT; later
    output is dropped. Standard error drops text that cannot be written: a full log is no failure.
    """
    before = sys.stdin, sys.stdout, sys.stderr
    with ExitStack() as opened:

        def devnull(mode: str, flags: int) -> Any:
            file = os.fdopen(os.open(os.devnull, flags), mode, encoding="utf-8")
            return opened.enter_context(file)

        # A closed stream is None in Python, and print would drop the text. A file that is opened
        # only to read makes each write to a closed standard output an OSError.
        sys.stdin = stdin = _reading(sys.stdin or devnull("r", os.O_RDONLY))
        sys.stdout = stdout = _writing(sys.stdout or devnull("w", os.O_RDONLY), OUTPUT)
        sys.stderr = _writing(sys.stderr or devnull("w", os.O_WRONLY), "")
        try:
            yield
        finally:
            sys.stdin, sys.stdout, sys.stderr = before
            with suppress(OSError):  # the block has already raised this error
                stdout.flush()
            if isinstance(stdin, _Read):
                stdin.detach()  # or the wrapper would close the host's stream


def _reading(stream: TextIO) -> TextIO:
    if not isinstance(stream, io.TextIOWrapper):
        return stream  # a host's
    return _Read(stream.buffer, stream.encoding, "surrogateescape")


class _Read(io.TextIOWrapper):
    """Standard input; bytes that are not UTF-8 are refused when the text is encoded."""


def _writing(stream: TextIO, name: str) -> TextIO:
    if not isinstance(stream, io.TextIOWrapper):
        return stream  # a host's
    with suppress(OSError):  # the next write will raise the same error
        stream.flush()
    raw: Any = _Written(stream, name)
    if isinstance(stream.buffer, io.BufferedIOBase):  # unless PYTHONUNBUFFERED is set
        raw = io.BufferedWriter(raw)
    return io.TextIOWrapper(
        raw,
        stream.encoding,
        errors="replace" if name else stream.errors,  # a terminal that lacks a character shows ?
        newline="" if not system.IS_WINDOWS else None,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


class _Written(io.RawIOBase):
    """A stream's raw bytes, for ``usable``. name: the filename of OSErrors; "": none is raised"""

    def __init__(self, stream: io.TextIOWrapper, name: str) -> None:
        buffer = stream.buffer
        # Not the stream's own buffer, which would keep bytes that failed, and try them again.
        self._file: Any = buffer.raw if isinstance(buffer, io.BufferedWriter) else buffer
        self._stream, self._name, self._drops = stream, name, False

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def write(self, data: "ReadableBuffer", /) -> int:
        """See ``io.RawIOBase``."""
        size = memoryview(data).nbytes
        if self._drops:
            return size
        try:
            while (count := self._file.write(data)) is None:  # a pipe that does not block
                select([], [self.fileno()], [])
            self._file.flush()
            return int(count)
        except OSError as error:
            if not self._name:
                return size
            self._drops, error.filename = True, self._name
            raise


def are_one_file(a: TextIO, b: TextIO) -> bool:
    """Whether two streams are written to the same file, pipe or terminal."""
    try:
        return os.path.samestat(os.fstat(a.fileno()), os.fstat(b.fileno()))
    except OSError:  # not every stream is a file: io.UnsupportedOperation
        return False


def are_a_screen() -> bool:
    """Whether input and output are a terminal whose keys ``screen`` can read."""
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    return is_terminal and os.environ.get("TERM") != "dumb" and not system.IS_WINDOWS


def print_json(document: Any) -> None:
    """Print one JSON document to standard output; escape characters that its encoding lacks."""
    is_unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    text = json.dumps(document, ensure_ascii=not is_unicode)
    if sys.stdout.isatty():  # JSON escapes the control characters C0, but not C1
        text = STEERING.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
    print(text)


def print_utf_8(text: str) -> None:
    """Print a file's text as UTF-8; on a terminal, escape the terminal's commands."""
    sys.stdout.flush()
    sys.stdout.buffer.write(inert(text, sys.stdout).encode())


def check_output(option: str, path: str | None) -> None:
    """Check, before any work, that an option's file can be written; InputError if not."""
    from pathlib import Path  # not at every start

    file = Path(path or "")
    if path is not None and (
        file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK)
    ):
        raise InputError(f"{option}: {path} cannot be written; name a file in a folder that can")
