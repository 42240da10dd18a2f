"""Find the processors and memory that this process may use, within its container's limits.

It reads Linux's files for them (/proc, /sys, control groups of both versions). A limit that the
operating system does not state does not apply.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from cutaway.base import system

_ROOT = Path("/")


@dataclass(frozen=True)
class Threads:
    """How many threads to compute with, and why."""

    count: int
    reason: str


class Memory(NamedTuple):
    """Free memory in bytes, and its source: "this machine" or "its container"."""

    free: int
    owner: str


def default_threads() -> Threads:
    """Return one thread for each processor at full speed, since the slowest sets the pace.

    A processor that the container may only use in part is not counted: a thread that is stopped in
    the middle of a step would keep the others waiting.
    """
    allowed, fast = system.processors(), usable_cores()
    threads = Threads(len(fast), f"all {len(fast)} processors that this process may use")
    if fast != allowed:
        threads = Threads(len(fast), f"the {len(fast)} performance cores of {len(allowed)}")
    quota = _quota()
    if quota < threads.count:
        return Threads(max(int(quota), 1), f"its container's limit of {quota:g} processors")
    return threads


def usable_cores() -> set[int]:
    """Return the processors that this process may use and that compute at full speed."""
    allowed = system.processors()
    return (_performance_cores() & allowed) or allowed


def free_memory(*, swap: bool = True) -> Memory | None:
    """Return the memory left for programs, including droppable file pages; None if unknown.

    swap: count swap space, too
    """
    figures = dict(_pairs(_ROOT / "proc/meminfo"))
    if "MemAvailable" not in figures:
        return None
    swapped = figures.get("SwapFree", 0) * 1024 if swap else 0
    memory = Memory(figures["MemAvailable"] * 1024 + swapped, "this machine")
    for group in _groups("memory"):
        limit = _number(group, "memory.max", "memory.limit_in_bytes")
        if limit is None:
            continue
        used = _number(group, "memory.current", "memory.usage_in_bytes") or 0
        stat = dict(_pairs(group / "memory.stat"))
        files = sum(
            stat.get(f"total_{name}", stat.get(name, 0))
            for name in ("inactive_file", "active_file")
        )
        left = Memory(max(limit - used + files, 0) + swapped, "its container")
        memory = min(memory, left)
    return memory


def file_system(folder: Path) -> str:
    """Return the kind of a folder's file system, such as "ext4"; "" if it is unknown."""
    return system.mounted_as(folder.stat().st_dev, _text(_ROOT / "proc/self/mountinfo"))


def _performance_cores() -> set[int]:
    """Return the faster of two kinds of processors; none if all are alike.

    Linux lists Intel's faster ones. On ARM, each processor has a capacity; that of a slower one is
    at most half of the largest.
    """
    text = _text(_ROOT / "sys/devices/cpu_core/cpus")
    cores = set[int]()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        cores |= set(range(int(first), int(last or first) + 1))
    if cores := cores or system.performance_cores():
        return cores
    capacity = {
        int(path.parent.name.removeprefix("cpu")): int(_text(path) or 0)
        for path in (_ROOT / "sys/devices/system/cpu").glob("cpu[0-9]*/cpu_capacity")
    }
    return {cpu for cpu, of in capacity.items() if 2 * of > max(capacity.values())}


def _quota() -> float:
    """Return the processor time that the container may use, in processors."""
    least = float("inf")
    for group in _groups("cpu"):
        quota = _text(group / "cpu.max").split()  # "200000 100000" or "max 100000"
        if not quota:
            quota = [_text(group / "cpu.cfs_quota_us"), _text(group / "cpu.cfs_period_us")]
        if len(quota) == 2 and all(part.isdigit() for part in quota) and int(quota[1]):
            least = min(least, int(quota[0]) / int(quota[1]))
    return least


def _groups(controller: str) -> Iterator[Path]:
    """Yield the folders of this process's control groups, the innermost first."""
    for line in _text(_ROOT / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = _ROOT / "sys/fs/cgroup" / (controller if controllers else "")
        folder = top / path.lstrip("/")
        yield from (at for at in (folder, *folder.parents) if at.is_relative_to(top))


def _number(group: Path, *names: str) -> int | None:
    """Return the number in the first of these files that has one; None for "max"."""
    texts = (_text(group / name) for name in names)
    return next((int(text) for text in texts if text.isdigit()), None)


def _pairs(path: Path) -> Iterator[tuple[str, int]]:
    """Yield (name, number) of lines like "MemFree:  123 kB" and "inactive_file 123"."""
    for line in _text(path).splitlines():
        name, number, *_ = [*line.split(), "", ""]
        if number.isdigit():
            yield name.rstrip(":"), int(number)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
