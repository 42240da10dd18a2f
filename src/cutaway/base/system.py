"""What Linux, macOS and Windows offer each in a way of its own, or not at all.

Knows which system this is, as no other module does. What a system does not offer does nothing, or
is said to be none.
"""

import os
import signal
import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from signal import Signals

IS_WINDOWS = sys.platform == "win32"
AS_BYTES = getattr(os, "O_BINARY", 0)
"""Of os.open: line ends stay as they are."""
NO_LINK = getattr(os, "O_NOFOLLOW", 0)
"""Of os.open: a name that is a link is refused."""

# Signals: to end (but for Ctrl-C), to wait (Ctrl-Z), to look at the window again.
if sys.platform == "win32":
    ENDING: tuple[Signals, ...] = (signal.SIGTERM,)
    PAUSING: tuple[Signals, ...] = ()
    RESIZING: tuple[Signals, ...] = ()
else:
    ENDING = signal.SIGTERM, signal.SIGHUP
    PAUSING = (signal.SIGTSTP,)
    RESIZING = (signal.SIGWINCH,)


def processors() -> set[int]:
    """The numbers of those that this process may use."""
    if sys.platform == "linux":
        with suppress(OSError):  # a sandbox may have no such call
            return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def pin(cores: Collection[int]) -> None:
    """Let this thread, and those that it starts from now on, run on these alone; only on Linux."""
    if sys.platform == "linux":
        os.sched_setaffinity(0, cores)


def performance_cores() -> set[int]:
    """Where macOS says that some processors are faster than others: the faster ones."""
    if sys.platform != "darwin":
        return set()
    import ctypes

    count = ctypes.c_int(0)
    size = ctypes.c_size_t(ctypes.sizeof(count))
    ctypes.CDLL(None).sysctlbyname(
        b"hw.perflevel0.logicalcpu", ctypes.byref(count), ctypes.byref(size), None, 0
    )
    return set(range(count.value))


def mounted_as(device: int, mounts: str) -> str:
    """The kind of the file system with this number, by Linux's mountinfo; "" if it says none."""
    if sys.platform != "win32":
        for line in mounts.splitlines():
            mount, _, kind = line.partition(" - ")
            if mount.split()[2] == f"{os.major(device)}:{os.minor(device)}":
                return kind.split()[0]
    return ""


def ticks_per_second() -> int:
    """The unit of the times in /proc."""
    if sys.platform == "win32":
        return 1
    return os.sysconf("SC_CLK_TCK")


# -- files ---------------------------------------------------------------------------------------
# Advice that the system does not take changes nothing: a host may have locked its memory
# (mlockall), and a sandbox or a file system may have no such call.


def lock(file: int, *, wait: bool = False) -> None:
    """Lock this file against other processes while it is open.

    wait: for one that has locked it; otherwise that is a BlockingIOError. (Windows waits for 10 s.)
    """
    if sys.platform == "win32":
        import msvcrt

        place = os.lseek(file, 0, os.SEEK_CUR)
        os.lseek(file, 1 << 62, os.SEEK_SET)  # others could not read what is locked
        try:
            msvcrt.locking(file, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
        except PermissionError as error:
            raise BlockingIOError(*error.args) from None
        finally:
            os.lseek(file, place, os.SEEK_SET)
    else:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def reserve(file: int, nbytes: int) -> None:
    """Make a file so long, on Linux with all its room on the disk."""
    if sys.platform == "linux":
        os.posix_fallocate(file, 0, nbytes)
    else:
        os.truncate(file, nbytes)


def keep_no_copy(file: int, nbytes: int) -> None:
    """Drop a file's first bytes from the page cache: now the disk is read."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.posix_fadvise(file, 0, nbytes, os.POSIX_FADV_DONTNEED)


# -- the terminal --------------------------------------------------------------------------------


def take_keys() -> Callable[[], None]:
    """Let standard input give each key at once, and not show it. Returns what undoes it."""
    if sys.platform == "win32":
        raise OSError("a terminal of Windows cannot be waited for")
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)

    def give_back() -> None:
        try:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        except termios.error as error:
            raise OSError(*error.args) from error

    return give_back


# -- this process and its user --------------------------------------------------------------------


def user() -> int:
    """The number that this user's files have as their owner; 0 where there are none."""
    if sys.platform == "win32":
        return 0
    return os.getuid()


def limit_memory(nbytes: int) -> None:
    """Allocations beyond it fail. (Only Linux keeps to it.)"""
    if sys.platform == "linux":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (nbytes, nbytes))


def limit_time(seconds: int) -> None:
    """End this process once it has computed for so long from now on; not on Windows."""
    if sys.platform != "win32":
        import resource

        used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        resource.setrlimit(resource.RLIMIT_CPU, (int(used) + 1 + seconds, hard))


def step_back() -> None:
    """Lower this process's priority, and write no core dump where it is killed."""
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.nice(5)
