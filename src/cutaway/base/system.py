"""Services that Linux, macOS and Windows offer in different ways, or not at all.

Only this module knows which operating system this is. If a service is missing, its function does
nothing, or returns that there is none.
"""

import os
import signal
import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from signal import Signals

IS_WINDOWS = sys.platform == "win32"
AS_BYTES = getattr(os, "O_BINARY", 0)
"""A flag of os.open: line ends stay as they are."""
NO_LINK = getattr(os, "O_NOFOLLOW", 0)
"""A flag of os.open: a name that is a link is refused."""

# Signals to end (except Ctrl-C), to pause (Ctrl-Z), and that the window's size changed.
if sys.platform == "win32":
    ENDING: tuple[Signals, ...] = (signal.SIGTERM,)
    PAUSING: tuple[Signals, ...] = ()
    RESIZING: tuple[Signals, ...] = ()
else:
    ENDING = signal.SIGTERM, signal.SIGHUP
    PAUSING = (signal.SIGTSTP,)
    RESIZING = (signal.SIGWINCH,)


def processors() -> set[int]:
    """Return the numbers of the processors that this process may use."""
    if sys.platform == "linux":
        with suppress(OSError):  # a sandbox may have no such call
            return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def pin(cores: Collection[int]) -> None:
    """On Linux, run this thread and the threads that it starts later on these cores only."""
    if sys.platform == "linux":
        os.sched_setaffinity(0, cores)


def performance_cores() -> set[int]:
    """Return the faster processors if macOS says that some are faster than others."""
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
    """Return the kind of a device's file system by Linux's mountinfo; "" if it is not listed."""
    if sys.platform != "win32":
        for line in mounts.splitlines():
            mount, _, kind = line.partition(" - ")
            if mount.split()[2] == f"{os.major(device)}:{os.minor(device)}":
                return kind.split()[0]
    return ""


def ticks_per_second() -> int:
    """Return how many of /proc's units of time make a second."""
    if sys.platform == "win32":
        return 1
    return os.sysconf("SC_CLK_TCK")


# -- files ---------------------------------------------------------------------------------------
# Advice that the operating system does not take is ignored: memory may be locked (mlockall), and
# a sandbox or a file system may lack the call.


def lock(file: int, *, wait: bool = False) -> None:
    """Lock this file against other processes while it is open.

    wait: wait until it is free; otherwise BlockingIOError if it is locked. (Windows waits 10 s.)
    """
    if sys.platform == "win32":
        import msvcrt

        place = os.lseek(file, 0, os.SEEK_CUR)
        os.lseek(file, 1 << 62, os.SEEK_SET)  # past the data, so that others can read that
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
    """Give a file this length; on Linux, also reserve the space on the disk."""
    if sys.platform == "linux":
        os.posix_fallocate(file, 0, nbytes)
    else:
        os.truncate(file, nbytes)


def keep_no_copy(file: int, nbytes: int) -> None:
    """Drop a file's first bytes from the page cache, so that the disk is read."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.posix_fadvise(file, 0, nbytes, os.POSIX_FADV_DONTNEED)


# -- the terminal --------------------------------------------------------------------------------


def take_keys() -> Callable[[], None]:
    """Make standard input give each key at once, without echo; return a function that undoes it."""
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
    """Return this user's number, the owner of its files; 0 if the operating system has none."""
    if sys.platform == "win32":
        return 0
    return os.getuid()


def limit_memory(nbytes: int) -> None:
    """Make allocations beyond this many bytes fail; on Linux only."""
    if sys.platform == "linux":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (nbytes, nbytes))


def limit_time(seconds: int) -> None:
    """End this process once it has computed for this long from now; not on Windows."""
    if sys.platform != "win32":
        import resource

        used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        resource.setrlimit(resource.RLIMIT_CPU, (int(used) + 1 + seconds, hard))


def step_back() -> None:
    """Lower this process's priority, and write no core dump if it is killed."""
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.nice(5)
