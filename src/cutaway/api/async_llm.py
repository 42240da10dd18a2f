"""The Python API for many readers at once: texts that any number of tasks read while they grow.

Knows how a request becomes sequences of the engine that one thread runs. Refuses to know HTTP.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from time import perf_counter
from typing import TYPE_CHECKING, Any

from cutaway.api.completion import Completion
from cutaway.api.llm import LLM
from cutaway.api.options import Options
from cutaway.api.prompts import Prompt, one_or_many
from cutaway.api.writing import Writing
from cutaway.engine import AsyncEngine, AsyncStreams, TokenStep
from cutaway.engine import Sequence as EngineSequence
from cutaway.errors import InputError
from cutaway.sampling import derive_seed

if TYPE_CHECKING:
    from cutaway.api.recording import Begin


class AsyncTexts:
    """The samples of one or several prompts while they are written, for one reader.

    Leaving its ``with`` block, or closing it, ends those that have not ended as "aborted".
    texts  the n samples of the first prompt, then those of the second, …
    """

    def __init__(self, streams: AsyncStreams, texts: list[Writing]) -> None:
        self._streams, self.texts = streams, texts

    async def read(self) -> list[tuple[int, TokenStep]]:
        """(which text, its step) for all that is new, once there is something; [] at the end.

        Raises what one of them failed with. May be cancelled, and called again.
        """
        news = await self._streams.read()
        for index, step, made in news:
            text = self.texts[index]
            text.arrived(step, made)
            text.steps.append(step)
        return [(index, step) for index, step, _ in news]

    def waited(self, index: int) -> float | None:
        """Seconds in the queue; None where it is there still."""
        began = self._streams.began(index)
        return None if began is None else began - self.texts[index].watch.start

    def close(self) -> None:
        """End what has not ended; nothing more is read."""
        self._streams.close()
        for text in self.texts:
            text.closed()

    def __enter__(self) -> "AsyncTexts":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def finish(self) -> list[Completion]:
        """Read to the end."""
        with self:
            while await self.read():
                pass
        return [text.completion() for text in self.texts]


class AsyncLLM:
    """A model whose engine belongs to a thread of its own from now on.

    Its LLM is not to write any more. ``async with`` closes it.
    options  keywords of all requests, which their own go before

    Raises InputError for a bad option.
    """

    def __init__(self, llm: LLM, **options: Any) -> None:
        self._common = llm.parse(options)
        if self._common.trace is not None:
            raise InputError("trace: name a file of its own in the options of each request")
        if self._common.draft is not None:
            llm.load_draft(self._common.draft)
        self.llm, self.options = llm, options
        self.engine = AsyncEngine(llm.engine)

    # -- writing -----------------------------------------------------------------------------

    async def generate(self, prompt: Any, **options: Any) -> Any:
        """As ``LLM.generate``."""
        prompts, many = one_or_many(prompt)
        done = await (await self.texts(prompts, options)).finish()
        n = len(done) // max(len(prompts), 1)
        if n == 1:
            return done if many else done[0]
        samples = [done[i : i + n] for i in range(0, len(done), n)]
        return samples if many else samples[0]

    async def stream(self, prompt: Prompt, **options: Any) -> AsyncIterator[TokenStep]:
        """Continue a prompt, yielding each TokenStep as it is made. Options as for generate."""
        with await self.texts([prompt], options) as texts:
            if len(texts.texts) > 1:
                raise InputError("n must be 1 to stream; texts takes several")
            while steps := await texts.read():
                for _, step in steps:
                    yield step

    async def chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Any:
        """Answer a conversation, as ``LLM.chat``."""
        return await self.generate(await self.chat_prompt(messages), **options)

    async def chat_prompt(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """As ``LLM.chat_prompt``; others are served while a long one is read."""
        return await asyncio.to_thread(self.llm.chat_prompt, messages)

    def parse(self, given: Mapping[str, Any], *, observed: bool = False) -> Options:
        """The options of a request with those of all. InputError for one that cannot be."""
        options = self.llm.parse(given, self.options, observed=observed)
        if options.draft not in (None, self._common.draft):
            raise InputError(
                "speculate: this draft model is not loaded; name it where the model is"
            )
        return options

    async def texts(
        self,
        prompts: Sequence[Prompt],
        options: Mapping[str, Any],
        *,
        record: "Callable[[int], str | PathLike[str] | Begin] | None" = None,
    ) -> AsyncTexts:
        """Queue n samples of each prompt, all or none, for one reader.

        record: where the trace of each text goes, by its place; without it, option ``trace``
        names files. InputError for what cannot be, QueueFullError where there is no room.
        """
        started, parsed = perf_counter(), self.parse(options, observed=record is not None)
        ids = [await asyncio.to_thread(self.llm.read_prompt, p, parsed) for p in prompts]
        given = [p if isinstance(p, str) else None for p in prompts]
        if record is None and parsed.trace is not None:
            record = list(parsed.traces(len(prompts))).__getitem__
        if record is not None:
            await asyncio.to_thread(self.llm.machine)  # known from now on
        texts: list[Writing] = []

        def add() -> Iterator[EngineSequence]:
            for prompt, prompt_ids in zip(given, ids, strict=True):
                for sequence in self._samples(prompt_ids, parsed):
                    text = Writing(sequence, parsed, self.llm.loaded, started)
                    text.notes = self.llm.notes(prompt or "", prompt_ids, parsed)
                    texts.append(text)
                    yield sequence  # before what may fail, so that it is ended then
                    if record is not None:
                        text.record(record(len(texts) - 1), prompt=prompt)

        return AsyncTexts(await self.engine.enter(add), texts)

    def _samples(self, ids: list[int], options: Options) -> Iterator[EngineSequence]:
        """Queue those of one prompt, on the engine's thread."""
        first: EngineSequence | None = None
        for i in range(options.n):
            seed = derive_seed(first.seed, i) if first else options.sampling.seed
            sampling = replace(options.sampling, seed=seed)
            sequence = self.llm.engine.add(ids, sampling, options.stops, options.run, leader=first)
            first = first or sequence
            yield sequence

    # -- the end -----------------------------------------------------------------------------

    async def __aenter__(self) -> "AsyncLLM":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def close(self) -> None:
        """Take no more requests and end what runs; its readers get a CutawayError."""
        self.engine.close()

    async def aclose(self) -> None:
        """As close, and wait until that is done."""
        await self.engine.aclose()

    async def drain(self, timeout: float | None = None) -> bool:
        """Take no more requests; whether all ended in ``timeout`` seconds, or were ended then."""
        return await self.engine.drain(timeout)
