"""AsyncLLM: a model for an event loop, whose engine runs in a thread of this process.

A guest is an ``LLM`` for another thread on the same engine: its calls run on the engine's thread,
between two steps, and may be cancelled.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event as Flag
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from cutaway.api.async_model import AsyncModel, blocking
from cutaway.api.llm import LLM, SharedLLM
from cutaway.api.text_reader import PrefixMethods
from cutaway.compute.loading.model import LoadedModel
from cutaway.engine import AsyncEngine, Engine, EngineState, Inboxes, Request
from cutaway.engine import Sequence as EngineSequence
from cutaway.errors import ClosedError, CutawayError
from cutaway.requests.base import ModelName, common_options, make_engine
from cutaway.requests.owner import EngineOwner

if TYPE_CHECKING:
    from typing import Unpack

    from cutaway.requests.keywords import RequestOptions

T = TypeVar("T")
P = ParamSpec("P")


class AsyncLLM(PrefixMethods, AsyncModel):
    """A model whose engine runs in its own thread. ``async with`` closes it.

    model    as for LLM; or an LLM, which cannot be used until this object is closed
    options  default keywords of all requests

    Raises InputError for a bad option, or a model that has another owner; CutawayError if the
    operating system has no thread left.
    """

    def __init__(
        self,
        model: "LLM | LoadedModel | ModelName | None" = None,
        **options: "Unpack[RequestOptions]",
    ) -> None:
        draft = common_options(options).draft
        self._lender = model if isinstance(model, LLM) else None
        if isinstance(model, LLM):
            if draft is not None:
                model.load_draft(draft)
            progress, engine, loaded = model.progress, model.hand_over(), model.model
            loaded.claim("an AsyncLLM")
        else:
            progress = True
            loaded = model if isinstance(model, LoadedModel) else LoadedModel.open(model)
            loaded.claim("an AsyncLLM")
            engine = make_engine(loaded)
            if draft is not None:
                from cutaway.requests.drafting import load_draft  # few texts are drafted by a model

                load_draft(draft, loaded, engine, progress=progress)
        super().__init__(loaded, options, progress=progress)
        try:
            self.engine = AsyncEngine(engine)
        except CutawayError:
            loaded.release()
            if self._lender:
                self._lender.take_back(engine)
            raise
        self._guests = Guests(loaded, self.engine)

    # -- what the engine does ----------------------------------------------------------------

    async def queue(self, requests: Sequence[tuple[Request, int]]) -> Inboxes:
        """See ``QueuedLLM``. It compiles the grammars of requests from another process."""
        return await self.engine.submit([(await self._with_grammar(r), n) for r, n in requests])

    async def _with_grammar(self, request: Request) -> Request:
        source = request.constraint.source
        if source is None or request.grammar is not None:
            return request
        return request.but(grammar=await self._find_or_compile(source))

    async def run_blocking(
        self, function: Callable[Concatenate[LLM, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """See ``AsyncModel``."""
        return await self._guests.call(lambda llm: function(llm, *args, **kwargs))

    def state(self) -> EngineState:
        """See ``AsyncModel``."""
        return EngineState.read(self.engine.engine)

    @property
    def alive(self) -> bool:
        """See ``AsyncModel``."""
        return self.engine.alive

    load_adapter = blocking(LLM.load_adapter)
    unload_adapter = blocking(LLM.unload_adapter)

    # -- the end -----------------------------------------------------------------------------

    def close(self) -> None:
        """See ``AsyncModel``."""
        self.engine.close()

    async def aclose(self) -> None:
        """See ``AsyncModel``."""
        await self.engine.aclose()
        self._give_back()

    async def drain(self, timeout: float | None = None) -> bool:
        """See ``AsyncModel``."""
        all_ended = await self.engine.drain(timeout)
        self._give_back()
        return all_ended

    def _give_back(self) -> None:
        """Release the model once the thread has ended, or return it to the LLM it came from."""
        if self.end_compiling():
            self._guests.close()
            self.model.release()
            if self._lender:
                self._lender.take_back(self.engine.engine)


# -- guests: an LLM for a thread, on the same engine -------------------------------------------


class GuestOwner(EngineOwner):
    """Makes its calls on the engine's thread, and never steps the engine itself."""

    def __init__(self, engine: AsyncEngine, unwanted: Flag) -> None:
        super().__init__()
        self._host, self._unwanted = engine, unwanted

    @property
    def engine(self) -> Engine:
        """See ``EngineOwner``."""
        return self._host.engine

    def call(self, function: Callable[[], T]) -> T:
        """See ``EngineOwner``; CutawayError once ``unwanted`` is set."""
        if self._unwanted.is_set():
            raise CutawayError("nobody waits for this any more")
        return self._ask_host(function)

    def wait(self, ready: Callable[[], object]) -> None:
        """See ``EngineOwner``."""
        while not self.call(ready):
            pass

    def abort(self, sequence: EngineSequence) -> None:
        """See ``EngineOwner``; also once ``unwanted`` is set."""
        if not sequence.outbox.end:
            self._ask_host(lambda: self.engine.abort(sequence))

    def _ask_host(self, function: Callable[[], T]) -> T:
        def call_between_steps() -> T:
            self._end_abandoned()
            return function()

        return self._host.ask(call_between_steps).result()


class Guests:
    """A thread that serves one guest at a time, since each may take as much memory as a step."""

    def __init__(self, model: LoadedModel, engine: AsyncEngine) -> None:
        self._model, self._engine = model, engine
        self._thread, self._closed = ThreadPoolExecutor(1, "run blocking"), False

    async def call(
        self, function: Callable[[LLM], T], on_end: Callable[[], object] = lambda: None
    ) -> T:
        """Call a function with an LLM; after a cancellation, the LLM's next call raises.

        on_end: called when the function has returned, on any thread
        """
        if self._closed:
            raise ClosedError("the engine is closed and takes no more requests")
        unwanted = Flag()
        future = self._thread.submit(function, self.guest(unwanted))
        future.add_done_callback(lambda _: on_end())
        try:
            return await asyncio.wrap_future(future)
        finally:
            unwanted.set()

    def guest(self, unwanted: Flag) -> LLM:
        """Return an LLM whose next call raises CutawayError once ``unwanted`` is set."""
        return SharedLLM(self._model, GuestOwner(self._engine, unwanted), progress=False)

    def close(self) -> None:
        """Take no more calls, without waiting for the one that is running."""
        self._closed = True
        self._thread.shutdown(wait=False, cancel_futures=True)
