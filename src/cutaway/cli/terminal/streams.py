"""Standard streams that may be closed, full, or no longer read by anybody.

Knows file descriptors, encodings and permissions. Refuses to know what is written.
"""

import io
import json
import os
import sys
from contextlib import suppress
from typing import Any, TextIO

from cutaway.errors import InputError


def prepare() -> None:
    """Make the three streams fit to be used, whatever the shell did to them."""
    # A closed stream is None in Python, and whoever prints expects a file.
    sys.stdin = sys.stdin or open(os.devnull, encoding="utf-8")  # noqa: PTH123, SIM115
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a character shows ?
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")  # refused where the text is encoded


def tell(text: str) -> None:
    """One line on standard error, where it never mixes with the text."""
    with suppress(OSError):  # a log that is full is no reason to lose the text
        print(text, file=sys.stderr, flush=True)


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


def settle() -> None:
    """Nothing left in standard error may fail at exit, where it would change the exit code."""
    try:
        sys.stderr.flush()
    except OSError:
        forget(sys.stderr)


def forget(stream: TextIO) -> None:
    """Let what is still buffered vanish: it would raise once more when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
