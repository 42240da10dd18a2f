"""How many replicas of what: plain data, checked before anything is started."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

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

    model     keywords of ``LLM``, all of which each replica gets
    draft     what ``speculate`` says, where that names a draft model: each replica loads it
    fewest, most  how many replicas; Ray starts and ends some where these are two
    cores     of each replica, which it has to itself

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
                f"threads must be at most the {self.cores} cores of a replica, not {threads}"
            )

    @classmethod
    def of(
        cls, replicas: object, cores: int | None, model: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> Self:  # fmt: skip
        """Of a command's or an application's arguments.

        replicas  "2", or "1..8" for as many as the load wants
        cores     None: as many as this machine has for the most of them, or one
        model     keywords of ``LLM``
        options   keywords of all requests
        """
        fewest, most = read_replicas(replicas)
        if cores is None:
            cores = max(1, len(usable_cores()) // most)
        draft = parse_options(options).draft
        return cls(
            model={
                **model,
                "model": _found_anywhere(model.get("model", DEFAULT_MODEL)),
                **_adapters(model),
            },
            draft=draft and f"draft:{_found_anywhere(draft)}",
            fewest=fewest, most=most, cores=cores,
        )  # fmt: skip

    @property
    def most_calls(self) -> int:
        """How many calls Ray sends a replica at once: more than its own queue has room for, which
        refuses them in a sentence. Those above would wait at their Front, and nobody would say so.
        """
        waiting = self.model.get("max_waiting")
        running: int = self.model.get("max_num_seqs", MAX_RUNNING)
        return 2 * (running + (MAX_WAITING if waiting is None else waiting))

    def check_room(self, cores: int, where: str) -> None:
        """InputError where so many cores are too few for the replicas that are to be there."""
        if (wanted := self.fewest * self.cores) > cores:
            raise InputError(
                f"--replicas {self.fewest} with --cores {self.cores} need {wanted} cores, and "
                f"{where} has {cores}: take fewer of either"
            )


def _found_anywhere(name: str) -> str:
    """A model's name; one that is a path here is one in a process that began in another folder."""
    path = Path(name).expanduser()
    return str(path.resolve()) if path.exists() else name


def _adapters(model: Mapping[str, Any]) -> dict[str, Any]:
    """The files of adapters, likewise."""
    given = {name: model[name] for name in ("lora", "adapters") if model.get(name)}
    files = {name: str(asked) for name, asked in Setup(**given).adapter_files().items()}
    return {"lora": files[""]} if "" in files else {"adapters": files} if files else {}


def read_replicas(given: object) -> tuple[int, int]:
    """The fewest and the most: "2", or "1..8" for as many as the load wants."""
    first, dots, last = str(given).partition("..")
    if not (first.isdecimal() and (last.isdecimal() if dots else True)):
        raise InputError(
            f"--replicas must be a number such as 2, or a range such as 1..8, not {shown(given)}"
        )
    fewest, most = int(first), int(last or first)
    if not 1 <= fewest <= most <= MOST_REPLICAS:
        raise InputError(
            f"--replicas must be 1 to {MOST_REPLICAS}, and the first of a range not above the "
            f"second, not {given}"
        )
    return fewest, most
