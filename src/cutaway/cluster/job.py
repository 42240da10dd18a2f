"""What a Front asks of a replica, and what both tell each other. Plain data that can be pickled.

Refuses to know how it travels, and how a replica is chosen.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

from cutaway.cluster.wire import Address
from cutaway.compute.backends import Computer
from cutaway.engine import Arrival, EngineState, Request
from cutaway.errors import CutawayError

T = TypeVar("T")


class OtherBitsError(CutawayError):
    """A replica would go on with other bits than those that were told."""


@dataclass
class Job:
    """Texts that one replica is to write.

    id           of this attempt; a job that goes on elsewhere has another
    asked        requests with their seeds, and how many samples of each
    computed_by  what the replica's bits must depend on, see ``LoadedModel.computed_by``
    reply_to     the Front that is told what is written
    avoid        names of replicas that are not to be taken
    replica, why  the replica that the router has chosen, and the sentence that says why
    """

    id: str
    asked: tuple[tuple[Request, int], ...]
    computed_by: Mapping[str, str]
    reply_to: Address
    avoid: frozenset[str] = frozenset()
    replica: str = ""
    why: str = ""


class Replicas(Protocol):
    """All that a Front can ask of its replicas: Ray's handle, or a test's."""

    async def write(self, job: Job) -> None:
        """Have it written by a replica, which tells the Front; returns when it is over.

        ReplicaLostError where the replica is lost; what the replica refuses the job with.
        """
        ...

    async def aside(self, function: Callable[..., T], *args: Any) -> T:
        """What ``function(llm, *args)`` returns or raises at one of the replicas."""
        ...


# -- what a replica tells --------------------------------------------------------------------------


class Hello(NamedTuple):
    """The first message: the replica, its process, and what computes there."""

    replica: str
    pid: int
    computer: Computer


class Accepted(NamedTuple):
    """The job's texts are queued."""

    job: str
    why: str


class News(NamedTuple):
    """All that a step of the engine brought to the jobs of a Front."""

    jobs: tuple[tuple[str, list[Arrival]], ...]


class Pulse(NamedTuple):
    """It lives. waited_s: for how long its engine has not answered."""

    state: EngineState
    waited_s: float


class Leaving(NamedTuple):
    """It ends: its jobs are to be gone on with elsewhere."""


# -- what a Front tells ----------------------------------------------------------------------------


class Abort(NamedTuple):
    """Nobody reads this job any more."""

    job: str
