"""ClusterLLM: an ``AsyncModel`` without weights, whose engines are replicas."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Self, TypeVar
from weakref import finalize

from cutaway.api.async_model import AsyncModel
from cutaway.api.llm import LLM
from cutaway.compute.backends import Computer
from cutaway.compute.loading.model import LoadedModel
from cutaway.engine import Arrival, EngineState, Request, Route
from cutaway.errors import ClosedError, ReplicaLostError
from cutaway.features.cluster.exchange import Exchange
from cutaway.features.cluster.resume import MOST_TRIES, ResumedReader, all_lost
from cutaway.features.cluster.wire import Replicas

if TYPE_CHECKING:
    from typing import Unpack

    from cutaway.requests.keywords import RequestOptions


P = ParamSpec("P")
T = TypeVar("T")


class ClusterLLM(AsyncModel):
    """A model that replicas run. ``async with`` opens and closes it.

    model    the model, opened without weights, which reads prompts and options
    host     the address of this machine at which replicas can reach it
    silent_s, hung_s  see ``Exchange``
    options  keywords of all requests; a request's own keywords override them
    """

    def __init__(
        self,
        model: LoadedModel,
        replicas: Replicas,
        *,
        host: str = "127.0.0.1",
        silent_s: float = 10.0,
        hung_s: float = 120.0,
        **options: "Unpack[RequestOptions]",
    ) -> None:
        super().__init__(model, options, progress=True)
        self._host, self._closed = host, False
        self.exchange = Exchange(replicas, self._set_computer, silent_s=silent_s, hung_s=hung_s)

    # -- writing -----------------------------------------------------------------------------

    async def queue(self, requests: Sequence[tuple[Request, int]]) -> "FrontReader":
        """See ``QueuedLLM``."""
        self._check_open()
        for request, _ in requests:
            for part in (request.sampling, request.constraint):
                part.__getstate__()  # InputError for what cannot be pickled
        reader = ResumedReader(self.exchange, requests)
        await reader.begin()
        return FrontReader(reader)

    async def run_blocking(
        self, function: Callable[Concatenate[LLM, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """See ``Forwarding``; if a replica is lost, another replica runs the function."""
        tries = 0
        while True:
            self._check_open()
            try:
                return await self.exchange.replicas.run_blocking(function, *args, **kwargs)
            except ReplicaLostError as error:
                tries += 1
                if tries > MOST_TRIES:
                    raise all_lost(str(error)) from error

    # -- the replicas ------------------------------------------------------------------------

    def state(self) -> EngineState:
        """Return the states of all replicas, added up."""
        engines = self.replicas.values()
        windows = [state.window_blocks for state in engines if state.window_blocks is not None]
        states = [state.states for state in engines if state.states is not None]
        return EngineState(
            running=sum(state.running for state in engines),
            most_running=sum(state.most_running for state in engines),
            waiting=sum(state.waiting for state in engines),
            preemptions=sum(self.exchange.preemptions.values()),
            kv_blocks=sum(state.kv_blocks for state in engines),
            kv_held=sum(state.kv_held for state in engines),
            window_blocks=sum(windows) if windows else None,
            states=sum(states) if states else None,
        )

    @property
    def replicas(self) -> Mapping[str, EngineState]:
        """See ``AsyncModel``."""
        return {remote.name: remote.state for remote in self.exchange.remotes if remote.state}

    @property
    def alive(self) -> bool:
        """See ``AsyncModel``."""
        return not self._closed

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the engine is closed and takes no more requests")

    def _set_computer(self, computer: Computer) -> None:
        """Keep a replica's ``Computer`` for the server's answers; replicas may differ in tier and
        threads."""
        self.model.elsewhere = computer

    # -- the end -----------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        computed_by = await asyncio.to_thread(lambda: self.model.computed_by)
        await self.exchange.open(self._host, computed_by)
        return self

    def close(self) -> None:
        """See ``AsyncModel``."""
        self._closed = True
        self.exchange.fail(ClosedError("the engine was closed before this text was finished"))

    async def aclose(self) -> None:
        """See ``AsyncModel``."""
        self.close()
        await self.exchange.close()
        self.end_compiling()

    async def drain(self, timeout: float | None = None) -> bool:
        """See ``AsyncModel``."""
        self._closed = True
        try:
            await asyncio.wait_for(self.exchange.wait_until_idle(), timeout)
        except TimeoutError:
            return False
        finally:
            await self.aclose()
        return True


class FrontReader:
    """The reader of a job; garbage collection closes it."""

    load_s = 0.0

    def __init__(self, reader: ResumedReader) -> None:
        self._reader = reader
        self._dropped = finalize(self, _close_soon, asyncio.get_running_loop(), reader)
        self._dropped.atexit = False

    @property
    def route(self) -> Route:
        """See ``ArrivalReader``."""
        return self._reader.route

    async def read(self) -> list[Arrival]:
        """See ``ArrivalReader``."""
        return await self._reader.read()

    def close(self) -> None:
        """See ``ArrivalReader``."""
        self._dropped.detach()
        self._reader.close()


def _close_soon(loop: asyncio.AbstractEventLoop, reader: ResumedReader) -> None:
    """Have the loop close the reader; the garbage collector calls this, on any thread."""
    with suppress(RuntimeError):  # the event loop is closed, and its connections with it
        loop.call_soon_threadsafe(reader.close)
