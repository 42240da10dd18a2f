"""Replicas in this process, over real sockets, that can be killed at any moment."""

import asyncio
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, Literal

from cutaway import AsyncLLM
from cutaway.compute.loading.model import LoadedModel
from cutaway.compute.loading.setup import Setup
from cutaway.engine import Arrival, Pass, Scored, Step
from cutaway.errors import ReplicaLostError
from cutaway.features.cluster.front import ClusterLLM
from cutaway.features.cluster.replica import Replica
from cutaway.features.cluster.wire import Job, Update

NAMES = count()


def pickle_copy(thing: Any) -> Any:
    """Return an object as another process receives it."""
    return pickle.loads(pickle.dumps(thing))


class Mortal(Replica):
    """A replica that sends ``lives`` tokens, passes or scores, and ends before the next.

    lives  number of these that it sends; None: it never ends
    ends   how it ends: it dies as a process does, sends nothing more, or sends no more news
    edit   changes each step that it sends
    """

    lives: int | None = None
    ends: Literal["dies", "is silent", "stalls"] = "dies"
    ended: asyncio.Event
    edit: Callable[[Step], Step] = staticmethod(lambda step: step)

    async def _connect(self, address):
        front = await super()._connect(address)
        send = front.connection.send

        def tell(message) -> None:
            if self.ended.is_set() and (self.ends != "stalls" or isinstance(message, Update)):
                return
            send(self._last_words(message) if isinstance(message, Update) else message)

        front.connection.send = tell  # type: ignore[method-assign]
        return front

    def _last_words(self, news: Update) -> Update:
        """Return the part of the news that the replica still sends."""
        return Update(tuple((job, [*self._track(arrivals)]) for job, arrivals in news.jobs))

    def _track(self, arrivals: list[Arrival]) -> Iterator[Arrival]:
        for arrival in arrivals:
            if isinstance(arrival.event, Step | Pass | Scored):
                if self.lives == 0:
                    self.ended.set()
                if self.lives:
                    self.lives -= 1
            if self.ended.is_set():
                return
            if isinstance(arrival.event, Step):
                emission = arrival.emission._replace(event=self.edit(arrival.event))
                yield arrival._replace(emission=emission)
            else:
                yield arrival


class Killable:
    """A replica that can end as a process does: unsent messages are lost."""

    def __init__(self, llm: AsyncLLM, lives: int | None = None, ends="dies") -> None:
        self.replica = Mortal(llm, f"replica{next(NAMES)}")
        self.replica.lives, self.replica.ends = lives, ends
        self.replica.ended = asyncio.Event()
        self.name, self.dead = self.replica.name, asyncio.Event()
        self._dying = asyncio.create_task(self._die())

    async def _die(self) -> None:
        await self.replica.ended.wait()
        if self.replica.ends == "dies":
            self.dead.set()
            self.replica.cut()

    async def kill(self) -> None:
        self.replica.ends = "dies"
        self.replica.ended.set()
        await self._dying

    async def close(self) -> None:
        await self.kill()
        await self.replica.close()


class InProcess:
    """``Replicas`` that give a job to the first living replica.

    tells_deaths  whether a call at a dying replica fails, as Ray's do; else only the connection
                  shows the death
    """

    def __init__(self, *, tells_deaths: bool = True) -> None:
        self.tells_deaths, self.members = tells_deaths, list[Killable]()
        self.jobs = list[Job]()

    def choose(self, job: Job) -> Killable:
        alive = [replica for replica in self.members if not replica.dead.is_set()]
        for among in ([replica for replica in alive if replica.name not in job.avoid], alive):
            if among:
                return among[0]
        raise ReplicaLostError("no replica is left")

    async def write(self, job: Job) -> None:
        replica = self.choose(job)
        job.replica, job.reason = replica.name, f"{replica.name} is the first"
        self.jobs.append(job)
        await self._done(replica, replica.replica.write(pickle_copy(job)))

    async def run_blocking(self, function, *args, **kwargs):
        replica = self.choose(Job("", (), {}, None))  # type: ignore[arg-type]
        function, args, kwargs = pickle_copy((function, args, kwargs))
        return pickle_copy(
            await self._done(replica, replica.replica.run_blocking(function, *args, **kwargs))
        )

    async def _done(self, replica: Killable, call):
        """Return the result of a call at a replica, which may die during the call."""
        doing = asyncio.ensure_future(call)
        dying = asyncio.ensure_future(replica.dead.wait())
        try:
            await asyncio.wait([doing, dying], return_when=asyncio.FIRST_COMPLETED)
            if not replica.dead.is_set():
                return await _await_call(doing)
            if self.tells_deaths:
                raise ReplicaLostError(f"{replica.name} has died")
            await asyncio.Event().wait()
        finally:
            dying.cancel()
            doing.cancel()
            await asyncio.gather(doing, return_exceptions=True)


async def _await_call(call):
    """Return the result of a call, or raise its exception as another process receives it."""
    try:
        return await call
    except Exception as error:
        raise pickle_copy(error) from None


class Models:
    """Models that are loaded once: a Front's, without weights, and one for each replica."""

    def __init__(self, path, setup: Setup | None = None) -> None:
        self._path, self._setup = path, setup or Setup(threads=1)
        self.front = self._open(weights=False)
        self._models: list[LoadedModel] = []

    def take(self, count: int) -> list[LoadedModel]:
        while len(self._models) < count:
            self._models.append(self._open())
        return self._models[:count]

    def _open(self, **options) -> LoadedModel:
        return LoadedModel.open(self._path, self._setup, progress=False, **options)


@asynccontextmanager
async def cluster(
    models: Models,
    replicas=2,
    *,
    kills: Sequence[int] = (),
    ends="dies",
    tells_deaths=True,
    **options,
):
    """Yield (Front, its pool of replicas of a model); at the end no task is left.

    kills: for each number, an additional first replica that ends after this many tokens
    """
    pool = InProcess(tells_deaths=tells_deaths)
    lives = [*kills, *[None] * replicas]
    for model, life in zip(models.take(len(lives)), lives, strict=True):
        pool.members.append(Killable(AsyncLLM(model), life, ends))
    try:
        async with ClusterLLM(models.front, pool, **options) as front:
            yield front, pool
    finally:
        for replica in pool.members:
            await replica.close()
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, left
