"""The Python API for many readers at once: texts that any number of tasks read while they grow.

Knows how a request becomes sequences of the engine that one thread steps. Refuses to know HTTP.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from os import PathLike
from pathlib import Path
from threading import Event as Flag
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self, TypeVar

from cutaway.api.base import (
    Asked,
    Message,
    ModelName,
    ModelUser,
    common_options,
    load_draft,
    make_engine,
    read_messages,
)
from cutaway.api.completion import Completion
from cutaway.api.generation import Generation
from cutaway.api.llm import LLM
from cutaway.api.prompts import Prompt, one_or_many
from cutaway.api.request import Options
from cutaway.api.samples import answers
from cutaway.engine import AsyncEngine, Engine, Event, Inboxes, Pass, Step
from cutaway.engine import Sequence as EngineSequence
from cutaway.errors import CutawayError, InputError
from cutaway.grammar import Trial, source_of
from cutaway.loading.model import LoadedModel

if TYPE_CHECKING:
    from typing import Unpack

    from cutaway.api.embedding import Embeddings
    from cutaway.api.generation import Begin
    from cutaway.api.keywords import RequestOptions
    from cutaway.api.prefix import Asked as AskedPrefix
    from cutaway.api.prefix import Between, Prefix
    from cutaway.api.tools import Tools


T = TypeVar("T")


class Generations:
    """The samples of one or several prompts while they are written, for one reader.

    Leaving its ``with`` block, or closing it, ends those that have not ended as "aborted".
    each  the n samples of the first prompt, then those of the second, …
    """

    def __init__(self, inboxes: Inboxes, each: list[Generation]) -> None:
        self._inboxes, self.each = inboxes, each

    async def read(self) -> list[tuple[int, Event]]:
        """(which of ``each``, its event) of all that is new, once there is any; [] at the end.

        Raises what one of them failed with. May be cancelled, and called again.
        """
        news = await self._inboxes.read()
        for which, event, made, speculation in news:
            generation = self.each[which]
            generation.speculation = speculation
            if isinstance(event, Step):
                generation.steps.append(event)
            elif isinstance(event, Pass):
                generation.passes.append(event)
            generation.arrived(event, made)
        return [(one.which, one.event) for one in news]

    def close(self) -> None:
        """End what has not ended; nothing more is read."""
        self._inboxes.close()
        for generation in self.each:
            generation.closed()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def finish(self) -> list[Completion]:
        """Read to the end."""
        with self:
            while await self.read():
                pass
        return [generation.completion() for generation in self.each]


class AsyncLLM(ModelUser):
    """A model whose engine belongs to a thread of its own. ``async with`` closes it.

    model    as for LLM; or an LLM, which cannot be used until this is closed
    options  keywords of all requests, which their own go before

    Raises InputError for a bad option, or a model that has another owner.
    """

    def __init__(
        self,
        model: "LLM | LoadedModel | ModelName | None" = None,
        **options: "Unpack[RequestOptions]",
    ) -> None:
        self._common = common_options(options)
        self._lender = model if isinstance(model, LLM) else None
        if isinstance(model, LLM):
            if self._common.draft is not None:
                model.load_draft(self._common.draft)
            progress, engine, loaded = model.progress, model.hand_over(), model.model
            loaded.claim("an AsyncLLM")
        else:
            progress = True
            loaded = model if isinstance(model, LoadedModel) else LoadedModel.open(model)
            loaded.claim("an AsyncLLM")
            engine = make_engine(loaded)
            if self._common.draft is not None:
                load_draft(self._common.draft, loaded, engine, progress=progress)
        super().__init__(loaded, progress)
        self.options: Mapping[str, Any] = options
        self.engine = AsyncEngine(engine)
        self._trial = Trial()
        loaded.grammars.read = self._trial.source_of
        self._compiling = ThreadPoolExecutor(1, "grammars")
        self._returned = False

    # -- writing -----------------------------------------------------------------------------

    async def generate(self, prompt: Any, **options: "Unpack[RequestOptions]") -> Any:
        """As ``LLM.generate``."""
        prompts, many = one_or_many(prompt)
        parsed = self.parse(options)
        if parsed.suffix and self.tokenizer.middle is None and parsed.denoise is None:
            unwanted = Flag()
            try:
                fill = partial(self.guest(unwanted).fill_gaps, prompts, parsed)
                return answers(await asyncio.to_thread(fill), aligned=False, many=many)
            finally:
                unwanted.set()
        done = await (await self.submit(prompts, parsed)).finish()
        each = [done[i : i + parsed.n] for i in range(0, len(done), parsed.n)]
        return answers(each, aligned=parsed.align, many=many)

    async def stream(
        self, prompt: Prompt, **options: "Unpack[RequestOptions]"
    ) -> AsyncIterator[Step]:
        """Continue a prompt, yielding each Step as it is made. Options as for generate."""
        parsed = self.parse(options)
        if parsed.n > 1:
            raise InputError("n must be 1 to stream; submit takes several")
        with await self.submit([prompt], parsed) as generations:
            while events := await generations.read():
                for _, event in events:
                    if isinstance(event, Step):
                        yield event

    async def chat(
        self,
        messages: Iterable[Message],
        *,
        tools: "Tools" = (),
        tool_choice: Any = None,
        parallel_tool_calls: bool = True,
        **options: "Unpack[RequestOptions]",
    ) -> Any:
        """Answer a conversation, as ``LLM.chat``; calls of tools are for the caller to run."""
        from cutaway.api.tools import ToolUse

        said = read_messages(messages)
        use = ToolUse(self.model, tools, tool_choice, parallel_tool_calls)
        prompt = await self.chat_prompt(said, use.tools)
        whole = await self.compiling(use.options, options)
        return use.read(await self.generate(prompt, **whole), f"{len(said)}")

    async def chat_prompt(self, messages: Iterable[Message], tools: "Tools" = ()) -> list[int]:
        """As ``LLM.chat_prompt``; others are served while a long one is read."""
        from cutaway.api.tools import ToolUse

        def read() -> list[int]:
            return self.chat_ids(messages, ToolUse(self.model, tools).tools)

        return await asyncio.to_thread(read)

    async def embed(
        self,
        texts: Any,
        pooling: str | None = None,
        normalize: bool | None = None,
        dimensions: int | None = None,
        *,
        truncate: bool = False,
    ) -> "Embeddings":
        """As ``LLM.embed``; others are served meanwhile."""
        from cutaway.api.embedding import Embedder, read_vectors

        asked = await asyncio.to_thread(
            Embedder, self, texts, pooling=pooling, normalize=normalize, dimensions=dimensions,
            truncate=truncate,
        )  # fmt: skip
        readers = await read_vectors(self.engine, asked)
        return asked.found([reader.vector() for reader in readers])

    async def save_prefix(
        self,
        path: "str | PathLike[str]",
        prompt: Prompt | None = None,
        *,
        messages: Iterable[Message] | None = None,
        special: bool = False,
    ) -> "Prefix":
        """As ``LLM.save_prefix``; others are served meanwhile."""
        from cutaway.api import prefix

        between = self._between()

        def read() -> "tuple[Path, AskedPrefix]":
            asked = prefix.read_asked(self, prompt, messages, special)
            prefix.check_worth(asked, self.model, between)
            return prefix.place_of(path), asked

        place, asked = await asyncio.to_thread(read)
        inboxes = await self.engine.submit(lambda: self.engine.engine.add(asked.request()))
        while await inboxes.read():
            pass
        return await asyncio.to_thread(
            prefix.save, place, asked, self.model, between, whole=True, show=self.progress
        )

    async def restore_prefix(self, path: "str | PathLike[str]") -> "Prefix":
        """As ``LLM.restore_prefix``; others are served meanwhile."""
        from cutaway.api import prefix

        return await asyncio.to_thread(
            prefix.restore, path, self.model, self._between(), show=self.progress
        )

    def guest(self, unwanted: Flag) -> LLM:
        """All that an ``LLM`` can do, for one thread beside this event loop; see ``api.guest``.

        unwanted: once it is set, what the guest asks next is a CutawayError
        """
        from cutaway.api.guest import Guest

        return Guest(self.model, self.engine, unwanted)

    def _between(self) -> "Between":
        """For threads beside this event loop."""
        loop = asyncio.get_running_loop()

        def between(function: Callable[[Engine], T]) -> T:
            called = self.engine.call(function, self.engine.engine)
            return asyncio.run_coroutine_threadsafe(called, loop).result()

        return between

    def parse(self, given: Mapping[str, Any], *, traced: bool = False) -> Options:
        """The options of a request with those of all. InputError for one that cannot be.

        traced: observe every step as for a trace
        """
        options = self.parse_options(given, self.options, traced=traced)
        if options.draft not in (None, self._common.draft):
            raise InputError(
                "speculate: this draft model is not loaded; name it where the model is"
            )
        return options

    async def submit(
        self,
        prompts: Sequence[Prompt],
        options: Options,
        *,
        record: "Callable[[int], str | PathLike[str] | Begin] | None" = None,
    ) -> Generations:
        """Queue n samples of each prompt, all or none, for one reader.

        record: where the trace of each goes, by its place; without it, option ``trace`` names
        files. InputError for what cannot be, QueueFullError where there is no room.
        """
        asked_at = perf_counter()
        held = None
        if (grammar := options.constraint.source) is not None:
            held = await self.compiling(self.model.grammars.compile, grammar)
        asked = [await asyncio.to_thread(self.read, prompt, options) for prompt in prompts]
        del held  # each of them has it now
        if record is None and options.trace is not None:
            record = list(options.traces(len(prompts))).__getitem__
        if record is not None:
            await asyncio.to_thread(lambda: self.model.identity)  # known from now on
        each: list[Generation] = []

        def add() -> Iterable[EngineSequence]:
            for one in asked:
                added = self.engine.engine.add(one.request, options.n)
                first = len(each)
                each.extend(self._generation(s, one, options, asked_at) for s in added)
                yield from added  # before what may fail, so that they are ended then
                if record is not None:
                    for place in range(first, len(each)):
                        each[place].record(record(place), prompt=one.text)

        return Generations(await self.engine.submit(add), each)

    async def compiling(self, function: Callable[..., T], *args: Any) -> T:
        """Call what compiles a grammar; others are served meanwhile, and one compiles at a time."""
        if self._returned:
            raise CutawayError("the engine is closed and takes no more requests")
        return await asyncio.get_running_loop().run_in_executor(self._compiling, function, *args)

    def _generation(
        self, sequence: EngineSequence, asked: Asked, options: Options, asked_at: float
    ) -> Generation:
        return Generation(
            sequence.id, sequence.request, options, self.model, notes=asked.notes, asked=asked_at
        )

    # -- the end -----------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def close(self) -> None:
        """Take no more requests and end what runs; its readers get a CutawayError."""
        self.engine.close()

    async def aclose(self) -> None:
        """As close, and wait until that is done; then the model may have another owner."""
        await self.engine.aclose()
        self._give_back()

    async def drain(self, timeout: float | None = None) -> bool:
        """Take no more requests; whether all ended in ``timeout`` seconds, or were ended then."""
        ended = await self.engine.drain(timeout)
        self._give_back()
        return ended

    def _give_back(self) -> None:
        """The thread has ended: the model is free, and goes back to the LLM that it came from."""
        if not self._returned:
            self._returned = True
            self._compiling.shutdown(wait=False, cancel_futures=True)
            self._trial.close()
            self.model.grammars.read = source_of
            self.model.release()
            if self._lender:
                self._lender.take_back(self.engine.engine)
