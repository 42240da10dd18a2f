"""AsyncModel: a model for an event loop, whose weights are in this process or elsewhere.

Knows what needs no weights: prompts, options, grammars. Methods of ``LLM`` become its own, with
the same keywords, awaited.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial, wraps
from os import PathLike
from time import perf_counter
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from cutaway.api.client_queue import ClientQueue
from cutaway.api.llm import LLM
from cutaway.api.text_reader import Readings
from cutaway.compute.loading.model import LoadedModel
from cutaway.engine import ArrivalReader, EngineState, Request, Step
from cutaway.errors import ClosedError, InputError
from cutaway.methods.importance import answers
from cutaway.requests.base import (
    BaseLLM,
    Message,
    Prompt,
    common_options,
    infills_by_bayes,
    one_or_many,
    prepare,
    read_messages,
)
from cutaway.requests.generation import Generation, Generations, NoReader
from cutaway.requests.options import Options
from cutaway.requests.prefill import PrefillTask, prefill_async
from cutaway.text.grammar import Grammar
from cutaway.text.grammar.compile_sandbox import CompileSandbox
from cutaway.text.grammar.compiler import UncompiledError
from cutaway.text.grammar.llguidance_source import source_of

if TYPE_CHECKING:
    from typing import Unpack

    from cutaway.methods.scoring import Likelihood, Pair
    from cutaway.requests.generation import Begin
    from cutaway.requests.keywords import RequestOptions
    from cutaway.requests.tools import Tools, ToolUse
    from cutaway.text.grammar.compiler import Compiled

P = ParamSpec("P")
T = TypeVar("T")


class Forwarding(Readings, BaseLLM, ABC):
    """A model whose weights may be elsewhere: requests and functions are sent there."""

    @staticmethod
    def _as_reading(task: Callable[..., PrefillTask[Any, Any]]) -> Callable[..., Any]:
        """Queue the requests of a task, made in a thread, beside all others."""

        @wraps(task)
        async def read(self: Forwarding, /, *args: Any, **kwargs: Any) -> Any:
            return await prefill_async(self.queue, await in_thread(task, self, *args, **kwargs))

        return read

    @staticmethod
    def _as_call(function: Callable[..., Any]) -> Callable[..., Any]:
        return blocking(function)

    @abstractmethod
    async def queue(self, asked: Sequence[tuple[Request, int]]) -> ArrivalReader:
        """Queue (request, n) pairs, all or none, for one reader of all samples, in this order.

        Requests have their seeds already, from which ``Request.samples`` derives the samples'.
        Raises InputError for a request the model cannot run, QueueFullError where there is no room.
        """

    @abstractmethod
    async def run_blocking(
        self, function: Callable[Concatenate[LLM, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call ``function(llm, *args, **kwargs)`` where the weights are, and return its result.

        The function must be importable by name; it, its arguments and its result may be pickled.
        One is called at a time, while requests are served. When the task is cancelled, the
        function's next call of the LLM raises.
        """


def running_loop() -> asyncio.AbstractEventLoop:
    """The event loop that this runs in; InputError where it is not asyncio's."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError as error:
        raise InputError(
            "an AsyncLLM needs the event loop of asyncio, which does not run here; in trio use an "
            "LLM, in a thread: trio.to_thread.run_sync"
        ) from error


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """As ``asyncio.to_thread``; InputError as for ``running_loop``."""
    running_loop()
    return await asyncio.to_thread(function, *args, **kwargs)


def blocking(
    method: Callable[Concatenate[LLM, P], T],
) -> Callable[Concatenate[Forwarding, P], Coroutine[Any, Any, T]]:
    """Forward a function of an ``LLM`` through ``run_blocking``."""

    @wraps(method)
    async def forward(self: Forwarding, /, *args: P.args, **kwargs: P.kwargs) -> T:
        running_loop()
        return await self.run_blocking(method, *args, **kwargs)

    return forward


# -- the model ---------------------------------------------------------------------------------


LONG = 1 << 16
"""Characters, which take up to a second to read."""


class AsyncModel(Forwarding):
    """A model's methods that need no weights in this process. ``async with`` closes it.

    options  keywords of all requests, which a request's own override
    """

    def __init__(self, model: LoadedModel, options: Mapping[str, Any], *, progress: bool) -> None:
        super().__init__(model, progress)
        self.options = options
        common = common_options(options)
        if common.adapter:
            raise InputError("adapter", ": one for all requests is loaded with the model, as lora")
        self._loaded_draft = common.draft
        self._sandbox = CompileSandbox()
        model.grammars.read = self._sandbox.source_of
        self._compiling: ClientQueue | None = ClientQueue(
            "grammars wait to be compiled", most=1024, most_of_client=256
        )
        self._reading = ClientQueue("long texts wait to be read", most=1024, most_of_client=256)
        self._calling = ClientQueue(
            "calls wait for the model", most=64, most_of_client=16,
            at_once=lambda: max(1, len(self.replicas)),
        )  # fmt: skip

    # -- where the weights are ---------------------------------------------------------------

    @abstractmethod
    def state(self) -> EngineState:
        """How busy the engine is."""

    @property
    def replicas(self) -> Mapping[str, EngineState]:
        """How busy each replica is, by name; empty where the engine is in this process."""
        return {}

    @property
    @abstractmethod
    def alive(self) -> bool:
        """Whether it takes requests."""

    @abstractmethod
    def close(self) -> None:
        """Take no more requests and end all texts; their readers get a CutawayError."""

    @abstractmethod
    async def aclose(self) -> None:
        """As close, and wait until it is done; then the model may have another owner."""

    @abstractmethod
    async def drain(self, timeout: float | None = None) -> bool:
        """Take no more requests and wait for the others, at most ``timeout`` seconds.

        Returns whether all texts ended by themselves; the others are ended.
        """

    # -- writing -----------------------------------------------------------------------------

    async def generate(self, prompt: Any, **options: "Unpack[RequestOptions]") -> Any:
        """As ``LLM.generate``."""
        prompts, many = one_or_many(prompt)
        return await self._answers(prompts, await self.parse_async(options), many=many)

    async def _answers(
        self,
        prompts: Sequence[Prompt],
        options: Options,
        *,
        many: bool,
        grammar: "Compiled | None" = None,
    ) -> Any:
        done = await (await self.submit(prompts, options, grammar=grammar)).finish()
        each = [done[i : i + options.n] for i in range(0, len(done), options.n)]
        return answers(each, aligned=options.align, is_list=many)

    async def stream(
        self, prompt: Prompt, **options: "Unpack[RequestOptions]"
    ) -> AsyncIterator[Step]:
        """Continue a prompt, yielding each Step as it is made. Options as for generate."""
        parsed = await self.parse_async(options)
        if parsed.n > 1:
            raise InputError("n", " must be 1 to stream; submit takes several")
        with await self.submit([prompt], parsed) as generations:
            while events := await generations.read():
                for arrival in events:
                    if isinstance(arrival.event, Step):
                        yield arrival.event

    async def chat(
        self,
        messages: Iterable[Message],
        *,
        tools: "Tools" = (),
        tool_choice: Any = None,
        parallel_tool_calls: bool = True,
        continue_final_message: bool = False,
        think: bool | str | None = None,
        think_budget: int | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **options: "Unpack[RequestOptions]",
    ) -> Any:
        """Answer a conversation, as ``LLM.chat``; the caller runs the tools."""
        from cutaway.requests.tools import ToolUse
        from cutaway.text.thinking import ThinkingWish

        said = read_messages(messages)
        wish = ThinkingWish(think, think_budget, chat_template_kwargs or {})
        use = ToolUse(self.model, tools, tool_choice, parallel_tool_calls, wish)
        variables: dict[str, Any] = dict(use.variables)
        read = partial(self.chat_ids, continue_final_message=continue_final_message, **variables)
        prompt = await in_thread(read, said, use.tools)
        use.set_prompt(prompt, said.pop() if continue_final_message else None)
        parsed = await self.parse_async(await self.tool_options(use, options))
        done = await self._answers([prompt], parsed, many=False, grammar=use.grammar)
        return use.read(done, f"{len(said)}")

    async def chat_prompt(
        self,
        messages: Iterable[Message],
        tools: "Tools" = (),
        *,
        continue_final_message: bool = False,
        think: bool | str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """As ``LLM.chat_prompt``, in a thread."""
        from cutaway.requests.tools import ToolUse
        from cutaway.text.thinking import ThinkingWish

        def read() -> list[int]:
            wish = ThinkingWish(think, None, chat_template_kwargs or {})
            use = ToolUse(self.model, tools, wish=wish)
            return self.chat_ids(
                messages, use.tools, continue_final_message=continue_final_message, **use.variables
            )

        return await in_thread(read)

    async def denoise(self, prompt: Prompt, **settings: Any) -> Any:
        """As ``LLM.denoise``."""
        from cutaway.requests.options import split_rule

        return await self.generate(prompt, **split_rule(settings))

    revise = blocking(LLM.revise)

    # -- reading -----------------------------------------------------------------------------

    async def score_each(
        self, pairs: "Iterable[Pair]", *, special: bool = False, adapter: str = ""
    ) -> "AsyncIterator[Likelihood]":
        """As ``LLM.score_each``; the iterable of pairs is read in a thread."""
        from cutaway.methods.scoring import scores_of_each

        parts = scores_of_each(self, pairs, special=special, adapter=adapter)
        while (part := await in_thread(next, parts, None)) is not None:
            for found in await prefill_async(self.queue, part):
                yield found

    # -- requests ----------------------------------------------------------------------------

    def parse(self, given: Mapping[str, Any], *, traced: bool = False) -> Options:
        """The options of a request, completed by those of all requests. InputError for a bad one.

        traced: observe every step as for a trace
        """
        options = self.parse_options(given, self.options, traced=traced)
        if options.draft not in (None, self._loaded_draft):
            raise InputError(
                "speculate", ": that draft model or head is not loaded; name it where the model is"
            )
        return options

    async def parse_async(self, given: Mapping[str, Any], *, traced: bool = False) -> Options:
        """As parse, in a thread: some options are compared with the whole vocabulary."""
        return await in_thread(self.parse, given, traced=traced)

    async def submit(
        self,
        prompts: Sequence[Prompt],
        options: Options,
        *,
        grammar: "Compiled | None" = None,
        record: "Callable[[int], str | PathLike[str] | Begin] | None" = None,
    ) -> Generations:
        """Queue n samples of each prompt, all or none, for one reader.

        grammar: the options' grammar, if it is compiled already
        record: index of a text -> where its trace goes; None: to the files of option ``trace``
        InputError for a bad prompt or option, QueueFullError where there is no room.
        """
        asked_at = perf_counter()
        if infills_by_bayes(self, options):
            return await self._infilled(prompts, options)
        if grammar is None and (source := options.constraint.source) is not None:
            grammar = await self._compiled(source)
        for prompt in prompts:
            if isinstance(prompt, str):  # before it waits to be read, in memory
                self.check_length(prompt)
        prepared = [
            await self.in_turn(_length(prompt, options), prepare, self, prompt, options, grammar)
            for prompt in prompts
        ]
        if record is None and options.trace is not None:
            record = list(options.traces(len(prompts))).__getitem__
        if record is not None:
            await in_thread(lambda: self.model.identity)  # reads the file once
        samples = [one.request.samples(options.n) for one in prepared]
        each = (
            one._replace(request=request)
            for one, requests in zip(prepared, samples, strict=True)
            for request in requests
        )
        generations = [Generation(i, one, self.model, asked_at) for i, one in enumerate(each)]
        reader = await self.queue([(requests[0], options.n) for requests in samples])
        texts = Generations(reader, generations)
        if record is not None:  # before the first is read, so that nothing is missing
            try:
                for generation in generations:
                    generation.record(record(generation.id))
            except BaseException:
                texts.close()
                raise
        return texts

    async def _infilled(self, prompts: Sequence[Prompt], options: Options) -> Generations:
        """Texts before a suffix, chosen where the weights are; they have ended."""
        texts = await self.run_in_turn(_infill, prompts, options)
        for text in texts:
            text.belongs_to(self.model)
        return Generations(NoReader(), texts)

    async def in_turn(self, length: int, function: Callable[..., T], *args: Any) -> T:
        """Call a function that reads a text, in a thread: long ones one at a time, by clients.

        length: of the text, in characters. QueueFullError where too many long ones wait.
        """
        if length <= LONG:
            return await in_thread(function, *args)
        running_loop()
        return await self._reading.run(function, *args)

    async def run_in_turn(
        self, function: Callable[Concatenate[LLM, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """As ``run_blocking``, by clients in turn. QueueFullError where too many wait."""
        running_loop()
        async with self._calling.turn():
            return await self.run_blocking(function, *args, **kwargs)

    async def tool_options(self, use: "ToolUse", given: Mapping[str, Any]) -> dict[str, Any]:
        """As ``ToolUse.options``, in the thread that compiles grammars where one is to be."""
        if not use.compiles:
            return use.options(given)
        try:
            return await in_thread(use.options, given, ready=True)
        except UncompiledError:
            return await self._compile(use.options, given)

    async def _compiled(self, source: Grammar) -> "Compiled":
        grammars = self.model.grammars
        known = grammars.find(source)
        return await self._compile(grammars.compile, source) if known is None else known

    async def _compile(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function in the thread that compiles grammars, one at a time."""
        if self._compiling is None:
            raise ClosedError("the engine is closed and takes no more requests")
        running_loop()
        return await self._compiling.run(function, *args)

    # -- the end -----------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        running_loop()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def end_compiling(self) -> bool:
        """Compile no more grammars. Returns whether this is the first call."""
        if self._compiling is None:
            return False
        self._compiling.close()
        self._reading.close()
        self._calling.close()
        self._compiling = None
        self._sandbox.close()
        self.model.grammars.read = source_of
        return True


def _infill(llm: LLM, prompts: Sequence[Prompt], options: Options) -> list[Generation]:
    return [text for prompt in prompts for text in llm.start(prompt, options)]


def _length(prompt: Prompt, options: Options) -> int:
    return len(options.suffix or "") + (len(prompt) if isinstance(prompt, str) else 0)
