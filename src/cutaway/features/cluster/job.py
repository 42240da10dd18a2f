"""The messages between Fronts and replicas: plain data that can be pickled."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

from cutaway.compute.backends import Computer
from cutaway.engine import Arrival, EngineState, Request
from cutaway.errors import CutawayError
from cutaway.features.cluster.wire import Address

T = TypeVar("T")


class OtherBitsError(CutawayError):
    """A replica computes other bits than those that were delivered."""


@dataclass
class Job:
    """Texts for one replica to generate.

    id           of this attempt; the same texts at another replica have another
    requests     with their seeds, and how many samples of each
    computed_by  must equal the replica's ``LoadedModel.computed_by``
    reply_to     the Front that gets the events
    avoid        names of replicas that must not be chosen
    replica, why  the replica that the router has chosen, and a sentence that says why
    """

    id: str
    requests: tuple[tuple[Request, int], ...]
    computed_by: Mapping[str, str]
    reply_to: Address
    avoid: frozenset[str] = frozenset()
    replica: str = ""
    why: str = ""


class Replicas(Protocol):
    """How a Front calls its replicas: Ray's handle, or a test's."""

    async def write(self, job: Job) -> None:
        """Have a replica generate the job and send its events to the Front; returns at its end.

        Raises ReplicaLostError where the replica is lost, and the error of a refused job.
        """
        ...

    async def run_blocking(self, function: Callable[..., T], *args: Any) -> T:
        """Call ``function(llm, *args)`` at one of the replicas; returns or raises as it does."""
        ...


# -- what a replica sends --------------------------------------------------------------------------


class Hello(NamedTuple):
    """The first message: the replica, its process, and what computes there."""

    replica: str
    pid: int
    computer: Computer


class JobAccepted(NamedTuple):
    """The job's texts are queued."""

    job: str
    why: str


class Update(NamedTuple):
    """The events of a step, for all jobs of a Front."""

    jobs: tuple[tuple[str, list[Arrival]], ...]


class Pulse(NamedTuple):
    """A heartbeat. waited_s: for how long its engine has not answered."""

    state: EngineState
    waited_s: float


class Leaving(NamedTuple):
    """The replica shuts down: its jobs must continue elsewhere."""


# -- what a Front sends ----------------------------------------------------------------------------


class Abort(NamedTuple):
    """The job is to be aborted."""

    job: str
