"""Standard streams that may be closed, full, or no longer read by anybody.

Knows file descriptors and encodings. Refuses to know what is written.
"""

import io
import json
import os
import sys
from contextlib import suppress
from typing import Any, TextIO


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


def settle() -> None:
    """Nothing left in standard error may fail at exit, where it would change the exit code."""
    try:
        sys.stderr.flush()
    except OSError:
        forget(sys.stderr)


def forget(stream: TextIO) -> None:
    """Let what is still buffered vanish: it would raise once more when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
