"""OnDemandLLM: a model in this process whose weights are loaded when a request needs them."""

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from threading import Event as Flag
from typing import TYPE_CHECKING, Concatenate, NamedTuple, ParamSpec, Self, TypeVar
from weakref import finalize

from cutaway.api.async_llm import Guests
from cutaway.api.async_model import AsyncModel
from cutaway.api.llm import LLM
from cutaway.compute.loading.model import LoadedModel
from cutaway.engine import Arrival, ArrivalReader, AsyncEngine, EngineState, Policy, Request
from cutaway.errors import CutawayError, InputError, ModelLoadError
from cutaway.requests.base import common_options, make_engine
from cutaway.server.model_cache import ModelCache, closed_error

if TYPE_CHECKING:
    from typing import Unpack

    from cutaway.requests.keywords import RequestOptions
    from cutaway.requests.store_settings import StoreSettings

P = ParamSpec("P")
T = TypeVar("T")

_NOTHING = EngineState(
    running=0, most_running=0, waiting=0, preemptions=0, kv_blocks=0, kv_held=0, window_blocks=None,
    states=None,
)  # fmt: skip


class _Running(NamedTuple):
    """An engine, and the functions that run beside it; both exist while the weights are loaded."""

    engine: AsyncEngine
    guests: Guests


class OnDemandLLM(AsyncModel):
    """A model whose weights are in memory only while they are used.

    The end of an ``async with`` block closes the model and stops its cache.

    model    a model that was opened without its weights; they may have been loaded since
    cache    decides when the weights are loaded and unloaded
    policy   the policy of each engine; None: the default
    store    where the prefix cache is kept on a disk; None: nowhere
    options  defaults for the keywords of requests

    Prompts, options and names need no weights. InputError for a bad option, or a model larger than
    the cache's limit.
    """

    def __init__(
        self,
        model: LoadedModel,
        cache: ModelCache,
        policy: Policy | None = None,
        store: "StoreSettings | None" = None,
        **options: "Unpack[RequestOptions]",
    ) -> None:
        if common_options(options).draft is not None:
            raise InputError(
                "speculate",
                ": a draft model cannot serve a model loaded on demand: give ngram or off",
            )
        model.claim("an OnDemandLLM")
        super().__init__(model, options, progress=False)
        self._policy, self._store = policy, store
        self._closed, self._unwanted = False, Flag()
        self._running: _Running | None = None
        self._preemptions = 0  # of engines that have ended
        if model.is_loaded:
            self._begin()
        self._cache, self.slot = cache, cache.add(self, loaded=model.is_loaded)

    # -- for the cache: see ``Loadable`` -------------------------------------------------------

    @property
    def memory(self) -> int:
        """Bytes of the weights and of the KV cache."""
        return self.model.memory

    async def load(self) -> None:
        """Load the weights; ModelLoadError if they cannot be loaded."""
        self._unwanted.clear()
        await asyncio.to_thread(self._load)
        self._begin()

    def give_up(self) -> None:
        """Cancel the running load."""
        self._unwanted.set()

    async def unload(self) -> None:
        """End the engine and its thread, then free the weights."""
        running, self._running = self._running, None
        assert running is not None
        running.guests.close()
        await running.engine.drain()
        self._preemptions += EngineState.read(running.engine.engine).preemptions
        del running
        await asyncio.to_thread(self.model.close)

    def _load(self) -> None:
        try:
            self.model.load(self._check_wanted)
        except (CutawayError, OSError) as error:
            if self._unwanted.is_set():
                raise closed_error() from error
            path = self.model.path  # private: errors name the model instead
            reason = str(error).replace(str(path), self.name).replace(f"{path.parent}{os.sep}", "")
            raise ModelLoadError(f"{self.name} could not be loaded: {reason}") from error

    def _check_wanted(self, _: int) -> None:
        if self._unwanted.is_set():
            raise closed_error()

    def _begin(self) -> None:
        engine = AsyncEngine(make_engine(self.model, self._policy, self._store))
        self._running = _Running(engine, Guests(self.model, engine))

    # -- requests and functions on the model ---------------------------------------------------

    async def queue(self, requests: Sequence[tuple[Request, int]]) -> "HeldReader":
        """See ``AsyncModel``; ModelLoadError if the weights cannot be loaded."""
        if self._running and not self._running.engine.alive:  # its GPU was lost: load it again
            self.slot.keep(0)
        load_s = await self.slot.use()
        try:
            reader = await self._loaded.engine.submit(requests)
        except BaseException:
            self.slot.done()
            raise
        return HeldReader(reader, self.slot.done, load_s)

    async def run_blocking(
        self, function: Callable[Concatenate[LLM, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """See ``AsyncModel``; ModelLoadError as in ``queue``."""
        await self.slot.use()
        on_ended = partial(_call_soon, asyncio.get_running_loop(), self.slot.done)
        return await self._loaded.guests.call(lambda llm: function(llm, *args, **kwargs), on_ended)

    @property
    def _loaded(self) -> _Running:
        assert self._running is not None, "it is used while it is not loaded"
        return self._running

    def state(self) -> EngineState:
        """See ``AsyncModel``; without weights, the state has only the counts of earlier engines."""
        now = EngineState.read(self._running.engine.engine) if self._running else _NOTHING
        most_running = now.most_running or (self._policy or Policy()).max_num_seqs
        return now._replace(
            preemptions=now.preemptions + self._preemptions, most_running=most_running
        )

    @property
    def alive(self) -> bool:
        """See ``AsyncModel``."""
        return not self._closed and (self._running is None or self._running.engine.alive)

    # -- the end -------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self.slot.keep_as_usual()  # starts the idle timer
        return self

    def close(self) -> None:
        """See ``AsyncModel``."""
        self._closed = True
        self._cache.stop()
        if self._running:
            self._running.engine.close()

    async def aclose(self) -> None:
        """See ``AsyncModel``."""
        self.close()
        await self._cache.wait_until_idle()
        if self._running:
            self._running.guests.close()
            await self._running.engine.aclose()
        if self.end_compiling():
            self.model.close()
            self.model.release()

    async def drain(self, timeout: float | None = None) -> bool:
        """See ``AsyncModel``."""
        self._cache.stop()
        has_ended = self._running is None or await self._running.engine.drain(timeout)
        await self.aclose()
        return has_ended


class HeldReader:
    """An ``ArrivalReader`` that keeps its model in use until it is read, closed or dropped."""

    route = None

    def __init__(self, reader: ArrivalReader, release: Callable[[], object], load_s: float) -> None:
        self._reader, self.load_s = reader, load_s
        self._release = finalize(self, _call_soon, asyncio.get_running_loop(), release)
        self._release.atexit = False

    async def read(self) -> list[Arrival]:
        """See ``ArrivalReader``."""
        if not (new := await self._reader.read()):
            self._release()
        return new

    def close(self) -> None:
        """See ``ArrivalReader``."""
        self._reader.close()
        self._release()


def _call_soon(loop: asyncio.AbstractEventLoop, release: Callable[[], object]) -> None:
    """Schedule a function in the event loop, from any thread and from finalizers."""
    with suppress(RuntimeError):  # the event loop is closed
        loop.call_soon_threadsafe(release)
