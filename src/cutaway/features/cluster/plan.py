"""The plan of a cluster, checked before anything is started; and the cores that processes reserve.

Ray counts cores without pinning processes to them. So the process that computes on a core locks
that core's lock file; the kernel releases the lock however the process ends.
"""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import gettempdir
from time import monotonic, sleep
from typing import Any, Self

from cutaway.base import system
from cutaway.base.checks import check_int, shown
from cutaway.base.resources import usable_cores
from cutaway.compute.loading.setup import Setup
from cutaway.errors import InputError
from cutaway.files.hub import DEFAULT_MODEL
from cutaway.requests.options import parse_options

MOST_REPLICAS = 4096
MAX_RUNNING, MAX_WAITING = 64, 256


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Replicas of one model.

    model     keywords of ``LLM``, the same for each replica
    draft     the value of ``speculate``, where each replica must load something in order to draft
    fewest, most  number of replicas; between the two, Ray adapts the number to the load
    cores     number of cores that each replica has for itself

    Raises InputError naming the field.
    """

    model: Mapping[str, Any] = field(default_factory=dict)
    draft: str | None = None
    fewest: int = 1
    most: int = 1
    cores: int = 1

    def __post_init__(self) -> None:
        check_int("cores", self.cores, 1)
        check_int("replicas", self.fewest, 1, MOST_REPLICAS)
        check_int("replicas", self.most, self.fewest, MOST_REPLICAS)
        if (threads := self.model.get("threads")) is not None and threads > self.cores:
            raise InputError(
                "threads", f" must be at most the {self.cores} cores of a replica, not {threads}"
            )

    @classmethod
    def from_arguments(
        cls, replicas: object, cores: int | None, model: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> Self:  # fmt: skip
        """Make a plan of the arguments of a command or an application.

        replicas  "2", or "1..8" for as many as the load needs
        cores     the cores of each replica; None: this machine's cores divided by the most
                  replicas, but at least 1
        model     keywords of ``LLM``
        options   keywords of all requests
        """
        fewest, most_replicas = read_replicas(replicas)
        if cores is None:
            cores = max(1, len(usable_cores()) // most_replicas)
        draft = parse_options(options).draft
        return cls(
            model={
                **model,
                "model": _found_anywhere(model.get("model", DEFAULT_MODEL)),
                **_adapters(model),
                **_cache_dir(model),
            },
            draft=draft and _draft_found_anywhere(draft),
            fewest=fewest, most=most_replicas, cores=cores,
        )  # fmt: skip

    @property
    def most_calls(self) -> int:
        """The most calls that Ray sends a replica at once.

        This is more than the replica's queue takes. So the replica refuses the calls for which the
        queue has no room; these calls would otherwise wait unnoticed at their Front.
        """
        waiting = self.model.get("max_waiting")
        running: int = self.model.get("max_num_seqs", MAX_RUNNING)
        return 2 * (running + (MAX_WAITING if waiting is None else waiting))

    def check_room(self, cores: int, place: str) -> None:
        """Raise InputError if these cores are too few for the fewest replicas."""
        if (needed_cores := self.fewest * self.cores) > cores:
            raise InputError(
                f"--replicas {self.fewest} with --cores {self.cores} need {needed_cores} cores, "
                f"and {place} has {cores}: take fewer of either"
            )


def _found_anywhere(name: str) -> str:
    """Return a model's name or absolute path, which any process can open from any folder."""
    path = Path(name).expanduser()
    return str(path.resolve()) if path.exists() else name


def _draft_found_anywhere(draft: str) -> str:
    """Return draft:MODEL, eagle:PATH, … with a name or an absolute path; return mtp unchanged."""
    kind, colon, name = draft.partition(":")
    return f"{kind}:{_found_anywhere(name)}" if colon else draft


def _adapters(model: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords that name adapter files, with absolute paths."""
    keywords = {name: model[name] for name in ("lora", "adapters") if model.get(name)}
    files = {name: str(path) for name, path in Setup(**keywords).adapter_files().items()}
    return {"lora": files[""]} if "" in files else {"adapters": files} if files else {}


def _cache_dir(model: Mapping[str, Any]) -> dict[str, str]:
    """The keyword that names the folder of the prompt cache, with an absolute path."""
    name = model.get("cache_dir")
    return {} if name is None else {"cache_dir": str(Path(name).expanduser().resolve())}


def read_replicas(text: object) -> tuple[int, int]:
    """Read (fewest, most) from "2", or from "1..8" for as many as the load needs."""
    first, dots, last = str(text).partition("..")
    if not (first.isdecimal() and (last.isdecimal() if dots else True)):
        raise InputError(
            f"--replicas must be a number such as 2, or a range such as 1..8, not {shown(text)}"
        )
    fewest, most = int(first), int(last or first)
    if not 1 <= fewest <= most <= MOST_REPLICAS:
        raise InputError(
            f"--replicas must be 1 to {MOST_REPLICAS}, and the first of a range not above the "
            f"second, not {text}"
        )
    return fewest, most


# -- cores, reserved for a process among those that use this module -------------------------------


_AGAIN_S = 0.1


class Claim:
    """Cores that no other process can claim until this is released or its process ends.

    cores  the numbers of the cores
    """

    def __init__(self, locks: dict[int, int]) -> None:
        self._locks = locks
        self.cores = tuple(sorted(locks))

    def pin(self) -> None:
        """On Linux, run this thread and the threads that it will start on these cores only."""
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

    folder      the folder of the lock files; None: one that all processes of this user share
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
    """Return the folder, created if needed; no other user may write to it."""
    folder.mkdir(0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != system.user():
        raise InputError(f"{folder} is for locks of cores and belongs to another user: remove it")
    return folder
