"""Reserves cores of a machine for a process, among the processes that use this module.

Ray counts cores without pinning processes to them. So the process that computes on a core locks
that core's lock file; the kernel releases the lock however the process ends.
"""

import os
import stat
from pathlib import Path
from tempfile import gettempdir
from time import monotonic, sleep
from typing import Self

from cutaway.base import system
from cutaway.base.checks import check_int
from cutaway.base.resources import usable_cores
from cutaway.errors import InputError

_AGAIN_S = 0.1


class Claim:
    """Cores that no other process can claim until this is released or its process ends.

    cores  their numbers
    """

    def __init__(self, locks: dict[int, int]) -> None:
        self._locks = locks
        self.cores = tuple(sorted(locks))

    def pin(self) -> None:
        """Run this thread, and those that it will start, on these cores only. Linux only."""
        system.pin(self.cores)

    def release(self) -> None:
        """Release the cores."""
        while self._locks:
            os.close(self._locks.popitem()[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def claim(count: int, folder: Path | None = None, *, patience_s: float = 0) -> Claim:
    """Claim ``count`` free cores that this process may use, the lowest numbers first.

    folder      of the lock files; None: a folder that all processes of this user share
    patience_s  seconds to wait for cores, such as those of a process that is ending

    Raises InputError if fewer cores are free.
    """
    count = check_int("cores", count, 1)
    folder = _make_private(folder or Path(gettempdir()) / f"cutaway-cores-{system.user()}")
    until = monotonic() + patience_s
    while len((claimed := _try(count, folder)).cores) < count:
        claimed.release()
        if monotonic() >= until:
            raise InputError(
                "cores",
                f": {count} are wanted, and {len(claimed.cores)} of the "
                f"{len(usable_cores())} that this process may use are free: take fewer, or end "
                "what runs on the others",
            )
        sleep(_AGAIN_S)
    return claimed


def _try(count: int, folder: Path) -> Claim:
    """Claim up to ``count`` cores that are free now."""
    locks = dict[int, int]()
    one_at_a_time = _open(folder / "claiming")  # else two processes could each get half their cores
    try:
        system.lock(one_at_a_time, wait=True)
        for core in sorted(usable_cores()):
            if len(locks) < count and (lock := _try_lock(folder / str(core))) is not None:
                locks[core] = lock
    finally:
        os.close(one_at_a_time)
    return Claim(locks)


def _try_lock(file: Path) -> int | None:
    """Return a descriptor with the file's lock; None if another process has it."""
    descriptor = _open(file)
    try:
        system.lock(descriptor)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _open(file: Path) -> int:
    """Open a lock file; child processes, which may outlive this one, do not inherit it."""
    return os.open(file, os.O_RDWR | os.O_CREAT | system.NO_LINK, 0o600)


def _make_private(folder: Path) -> Path:
    """Return the folder, created if needed, to which no other user may write."""
    folder.mkdir(0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != system.user():
        raise InputError(f"{folder} is for locks of cores and belongs to another user: remove it")
    return folder
