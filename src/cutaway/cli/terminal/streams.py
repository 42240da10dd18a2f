"""Standard streams that may be closed, full, or no longer read by anybody."""

import io
import json
import os
import sys
from typing import Any, TextIO

from cutaway.base import system
from cutaway.errors import InputError


def open_std_streams() -> None:
    """Make the three standard streams usable, whatever the shell did to them."""
    # A closed stream is None in Python, and whoever prints expects a file.
    sys.stdin = sys.stdin or open(os.devnull, encoding="utf-8")  # noqa: PTH123, SIM115
    # Whatever is written to a closed standard output is an OSError, and not lost.
    sys.stdout = sys.stdout or os.fdopen(os.open(os.devnull, os.O_RDONLY), "w", encoding="utf-8")
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a character shows ?
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")  # refused where the text is encoded


def in_one_file(a: TextIO, b: TextIO) -> bool:
    """Whether two streams are written to the same file, pipe or terminal."""
    try:
        return os.path.samestat(os.fstat(a.fileno()), os.fstat(b.fileno()))
    except OSError:  # not every stream is a file: io.UnsupportedOperation
        return False


def are_a_screen() -> bool:
    """Whether a person sits at both ends, with a terminal whose keys ``screen`` can read."""
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    return is_terminal and os.environ.get("TERM") != "dumb" and not system.IS_WINDOWS


def print_json(document: Any) -> None:
    """One JSON document on standard output, in characters that its encoding has."""
    is_unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    print(json.dumps(document, ensure_ascii=not is_unicode))


def print_utf_8(text: str) -> None:
    """A file's text on standard output: every character of it, whatever a terminal would show."""
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode())


def check_output(option: str, path: str | None) -> None:
    """InputError where the file that an option names cannot be written: before any work is done."""
    from pathlib import Path  # not at every start

    file = Path(path or "")
    if path is not None and (
        file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK)
    ):
        raise InputError(f"{option}: {path} cannot be written; name a file in a folder that can")


def flush_stderr() -> None:
    """Write what standard error still holds: at exit, a failure would change the exit code."""
    try:
        sys.stderr.flush()
    except OSError:
        detach(sys.stderr)


def detach(stream: TextIO) -> None:
    """Drop what is still buffered: it would raise once more when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
