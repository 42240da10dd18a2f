"""AsyncLLM: a model for an event loop, whose engine runs in a thread of this process."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from cutaway.api.async_model import AsyncModel
from cutaway.api.forwarded import blocking
from cutaway.api.guest import Guests
from cutaway.api.llm import LLM
from cutaway.compute.loading.model import LoadedModel
from cutaway.engine import AsyncEngine, EngineState, Inboxes, Request
from cutaway.errors import CutawayError
from cutaway.requests.base import ModelName, common_options, make_engine
from cutaway.requests.drafting import load_draft

if TYPE_CHECKING:
    from typing import Unpack

    from cutaway.requests.keywords import RequestOptions


P = ParamSpec("P")
T = TypeVar("T")


class AsyncLLM(AsyncModel):
    """A model whose engine runs in a thread of its own. ``async with`` closes it.

    model    as for LLM; or an LLM, which cannot be used until this is closed
    options  keywords of all requests, which a request's own override

    Raises InputError for a bad option, or a model that has another owner; CutawayError where the
    system has no thread left.
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

    async def queue(self, asked: Sequence[tuple[Request, int]]) -> Inboxes:
        """See ``Forwarding``; compiles grammars of requests from another process."""
        return await self.engine.submit([(await self._with_grammar(r), n) for r, n in asked])

    async def _with_grammar(self, request: Request) -> Request:
        source = request.constraint.source
        if source is None or request.grammar is not None:
            return request
        return request.but(grammar=await self._compiled(source))

    async def run_blocking(
        self, function: Callable[Concatenate[LLM, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """See ``AsyncModel``."""
        return await self._guests.call(lambda llm: function(llm, *args, **kwargs))

    def state(self) -> EngineState:
        """See ``AsyncModel``."""
        return EngineState.of(self.engine.engine)

    @property
    def alive(self) -> bool:
        """See ``AsyncModel``."""
        return self.engine.alive

    save_prefix = blocking(LLM.save_prefix)
    restore_prefix = blocking(LLM.restore_prefix)
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
        ended = await self.engine.drain(timeout)
        self._give_back()
        return ended

    def _give_back(self) -> None:
        """Once the thread has ended: release the model, or return it to the LLM it came from."""
        if self.end_compiling():
            self._guests.close()
            self.model.release()
            if self._lender:
                self._lender.take_back(self.engine.engine)
