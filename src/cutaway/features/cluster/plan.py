"""The plan of a cluster: its model, replicas and cores, checked before anything is started."""

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

    model     keywords of ``LLM``, the same for each replica
    draft     the value of ``speculate``, where it names what each replica must load to draft
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
        cores     None: this machine's, divided by the most replicas, at least one
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
            },
            draft=draft and _draft_found_anywhere(draft),
            fewest=fewest, most=most_replicas, cores=cores,
        )  # fmt: skip

    @property
    def most_calls(self) -> int:
        """The most calls that Ray sends a replica at once.

        This is more than the replica's queue takes. So the replica refuses the calls above it,
        which would otherwise wait unnoticed at their Front.
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
    """Return draft:MODEL or eagle:PATH with a name or absolute path; mtp as it is."""
    kind, colon, name = draft.partition(":")
    return f"{kind}:{_found_anywhere(name)}" if colon else draft


def _adapters(model: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords that name adapter files, with absolute paths."""
    keywords = {name: model[name] for name in ("lora", "adapters") if model.get(name)}
    files = {name: str(path) for name, path in Setup(**keywords).adapter_files().items()}
    return {"lora": files[""]} if "" in files else {"adapters": files} if files else {}


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
