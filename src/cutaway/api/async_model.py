"""AsyncModel: a model for an event loop, with its weights in this process or elsewhere.

It does all work that needs no weights: prompts, options, grammars. It has the methods of ``LLM``,
with the same keywords, as coroutines.
"""

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial, wraps
from os import PathLike
from time import perf_counter
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar, overload

from cutaway.api.client_queue import ClientQueue
from cutaway.api.llm import LLM
from cutaway.api.text_reader import Readings
from cutaway.compute.loading.model import LoadedModel
from cutaway.engine import EngineState, Step
from cutaway.errors import ClosedError, InputError
from cutaway.methods.importance import answers
from cutaway.requests.base import Message, Prompt, common_options, one_or_many, read_messages
from cutaway.requests.generation import Generation, Generations, NoReader
from cutaway.requests.keywords import DenoiseOptions, RequestOptions
from cutaway.requests.options import Options
from cutaway.requests.prefill import PrefillTask, QueuedLLM, prefill_async
from cutaway.requests.prepared import infills_by_bayes, prepare
from cutaway.requests.shown_step import ShownStep
from cutaway.requests.signatures import names_keywords
from cutaway.text.grammar import Grammar
from cutaway.text.grammar.compile_sandbox import CompileSandbox
from cutaway.text.grammar.compiler import UncompiledError
from cutaway.text.grammar.llguidance_source import source_of

if TYPE_CHECKING:
    from typing import Unpack

    from cutaway.methods.scoring import Likelihood, Pair
    from cutaway.requests.completion import Completion
    from cutaway.requests.generation import Begin
    from cutaway.requests.tools import Tools, ToolUse
    from cutaway.text.grammar.compiler import Compiled

P = ParamSpec("P")
T = TypeVar("T")


class Forwarding(Readings, QueuedLLM):
    """A model whose weights may be elsewhere: it sends requests and functions there."""

    @staticmethod
    def _as_reading(task: Callable[..., PrefillTask[Any, Any]]) -> Callable[..., Any]:
        """Make a method that creates the task in a thread and queues the task's requests."""

        @wraps(task)
        async def read(self: Forwarding, /, *args: Any, **kwargs: Any) -> Any:
            return await prefill_async(self.queue, await run_in_thread(task, self, *args, **kwargs))

        return read

    @staticmethod
    def _as_call(function: Callable[..., Any]) -> Callable[..., Any]:
        return blocking(function)

    @abstractmethod
    async def run_blocking(
        self, function: Callable[Concatenate[LLM, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call ``function(llm, *args, **kwargs)`` where the weights are, and return its result.

        The function must be importable by name. It, its arguments and its result may be pickled.
        One function is called at a time, while requests are served. If the task is cancelled, the
        function's next call of the LLM raises.
        """


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the running event loop; InputError if it is not asyncio's."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError as error:
        raise InputError(
            "an AsyncLLM needs the event loop of asyncio, which does not run here; in trio use an "
            "LLM, in a thread: trio.to_thread.run_sync"
        ) from error


async def run_in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function as ``asyncio.to_thread`` does; InputError as for ``running_loop``."""
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
"""A text of more characters than this is long, and may take a second to read."""


class AsyncModel(Forwarding):
    """The methods of a model that need no weights in this process. ``async with`` closes it.

    options  default keywords of all requests
    """

    _INTERNAL = Forwarding._INTERNAL | {
        "end_compiling", "engine", "options", "parse", "parse_async", "queue", "read_in_turn",
        "replicas", "run_blocking", "run_in_turn", "state", "submit", "tool_options",
    }  # fmt: skip

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
            "grammars wait to be compiled", limit=1024, limit_of_client=256
        )
        self._reading = ClientQueue("long texts wait to be read", limit=1024, limit_of_client=256)
        self._calling = ClientQueue(
            "calls wait for the model", limit=64, limit_of_client=16,
            at_once=lambda: max(1, len(self.replicas)),
        )  # fmt: skip

    # -- where the weights are ---------------------------------------------------------------

    @abstractmethod
    def state(self) -> EngineState:
        """Return how busy the engine is."""

    @property
    def replicas(self) -> Mapping[str, EngineState]:
        """The state of each replica, by name; empty if the engine is in this process."""
        return {}

    @property
    @abstractmethod
    def alive(self) -> bool:
        """Whether the model takes requests."""

    @abstractmethod
    def close(self) -> None:
        """Take no more requests and end all texts; their readers get a CutawayError."""

    @abstractmethod
    async def aclose(self) -> None:
        """Close, and wait until the model may have another owner."""

    @abstractmethod
    async def drain(self, timeout: float | None = None) -> bool:
        """Take no more requests and wait for the texts, at most ``timeout`` seconds.

        Ends the texts that are not finished by then. Returns whether all texts ended by themselves.
        """

    # -- writing -----------------------------------------------------------------------------

    @overload
    async def generate(  # type: ignore[overload-overlap]
        self, prompt: Prompt, **options: "Unpack[RequestOptions]"
    ) -> "Completion": ...
    @overload
    async def generate(
        self, prompt: Sequence[Prompt], **options: "Unpack[RequestOptions]"
    ) -> "list[Completion]": ...
    @names_keywords(RequestOptions)
    async def generate(self, prompt: Any, **options: Any) -> Any:
        """Continue a prompt, or several, as ``LLM.generate`` does."""
        prompts, is_list = one_or_many(prompt)
        return await self._answers(prompts, await self.parse_async(options), is_list=is_list)

    async def _answers(
        self,
        prompts: Sequence[Prompt],
        options: Options,
        *,
        is_list: bool,
        grammar: "Compiled | None" = None,
    ) -> Any:
        done = await (await self.submit(prompts, options, grammar=grammar)).finish()
        completions = [done[i : i + options.n] for i in range(0, len(done), options.n)]
        return answers(completions, aligned=options.align, is_list=is_list)

    @names_keywords(RequestOptions)
    async def stream(
        self, prompt: Prompt, **options: "Unpack[RequestOptions]"
    ) -> AsyncIterator[Step]:
        """Continue a prompt, with the options of ``generate``; yield each Step as it is made."""
        parsed = await self.parse_async(options)
        if parsed.n > 1:
            raise InputError("n", " must be 1 to stream; submit takes several")
        with await self.submit([prompt], parsed) as generations:
            while events := await generations.read():
                for arrival in events:
                    if isinstance(arrival.event, Step):
                        yield ShownStep.with_names(arrival.event, self.tokenizer)

    @names_keywords(RequestOptions)
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
    ) -> "Completion":
        """Answer a conversation as ``LLM.chat`` does; the caller runs the tools."""
        from cutaway.requests.tools import ToolUse
        from cutaway.text.thinking_switch import ThinkingWish

        conversation = read_messages(messages)
        wish = ThinkingWish(think, think_budget, chat_template_kwargs or {})
        use = ToolUse(self.model, tools, tool_choice, parallel_tool_calls, wish)
        variables: dict[str, Any] = dict(use.variables)
        read = partial(self.chat_ids, continue_final_message=continue_final_message, **variables)
        prompt = await run_in_thread(read, conversation, use.tools)
        use.set_prompt(prompt, conversation.pop() if continue_final_message else None)
        parsed = await self.parse_async(await self.tool_options(use, options))
        done = await self._answers([prompt], parsed, is_list=False, grammar=use.grammar)
        answer: Completion = use.with_notes(use.read(done, f"{len(conversation)}"))
        return answer

    async def chat_prompt(
        self,
        messages: Iterable[Message],
        tools: "Tools" = (),
        *,
        continue_final_message: bool = False,
        think: bool | str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return a conversation's token ids as ``LLM.chat_prompt`` does, in a thread."""
        from cutaway.requests.tools import ToolUse
        from cutaway.text.thinking_switch import ThinkingWish

        def read() -> list[int]:
            wish = ThinkingWish(think, None, chat_template_kwargs or {})
            use = ToolUse(self.model, tools, wish=wish)
            return self.chat_ids(
                messages, use.tools, continue_final_message=continue_final_message, **use.variables
            )

        return await run_in_thread(read)

    @overload
    async def denoise(  # type: ignore[overload-overlap]
        self, prompt: Prompt, **settings: "Unpack[DenoiseOptions]"
    ) -> "Completion": ...
    @overload
    async def denoise(
        self, prompt: Sequence[Prompt], **settings: "Unpack[DenoiseOptions]"
    ) -> "list[Completion]": ...
    @names_keywords(DenoiseOptions)
    async def denoise(self, prompt: Any, **settings: Any) -> Any:
        """Reveal a canvas as ``LLM.denoise`` does."""
        from cutaway.requests.options import split_rule

        return await self.generate(prompt, **split_rule(settings))

    revise = blocking(LLM.revise)

    # -- reading -----------------------------------------------------------------------------

    async def score_each(
        self, pairs: "Iterable[Pair]", *, special: bool = False, adapter: str = ""
    ) -> "AsyncIterator[Likelihood]":
        """Score pairs as ``LLM.score_each`` does; the iterable of pairs is read in a thread."""
        from cutaway.methods.scoring import scores_of_each

        parts = scores_of_each(self, pairs, special=special, adapter=adapter)
        while (part := await run_in_thread(next, parts, None)) is not None:
            for likelihood in await prefill_async(self.queue, part):
                yield likelihood

    # -- requests ----------------------------------------------------------------------------

    def parse(self, keywords: Mapping[str, Any], *, traced: bool = False) -> Options:
        """Return a request's options, with the defaults of all requests; InputError for a bad one.

        traced: observe every step as for a trace
        """
        options = self.parse_options(keywords, self.options, traced=traced)
        if options.draft not in (None, self._loaded_draft):
            raise InputError(
                "speculate", ": that draft model or head is not loaded; name it where the model is"
            )
        return options

    async def parse_async(self, keywords: Mapping[str, Any], *, traced: bool = False) -> Options:
        """Parse in a thread, since some options are compared with the whole vocabulary."""
        return await run_in_thread(self.parse, keywords, traced=traced)

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
        record: index of a text -> the target of its trace; None: the files of option ``trace``
        InputError for a bad prompt or option, QueueFullError if there is no room.
        """
        asked_at = perf_counter()
        if infills_by_bayes(self, options):
            return await self._start_infilling(prompts, options)
        if grammar is None and (source := options.constraint.source) is not None:
            grammar = await self._find_or_compile(source)
        for prompt in prompts:
            if isinstance(prompt, str):  # before it waits in memory for its turn
                self.check_length(prompt)
        prepared = [
            await self.read_in_turn(
                _length(prompt, options), prepare, self, prompt, options, grammar
            )
            for prompt in prompts
        ]
        if record is None and options.trace is not None:
            record = list(options.traces(len(prompts))).__getitem__
        if record is not None:
            await run_in_thread(lambda: self.model.identity)  # reads the file once
        samples = [item.request.samples(options.n) for item in prepared]
        per_sample = (
            item._replace(request=request)
            for item, requests in zip(prepared, samples, strict=True)
            for request in requests
        )
        generations = [
            Generation(i, item, self.model, asked_at) for i, item in enumerate(per_sample)
        ]
        reader = await self.queue([(requests[0], options.n) for requests in samples])
        texts = Generations(reader, generations)
        if record is not None:  # before the first is read, so that nothing is missing
            texts.record(record)
        return texts

    async def _start_infilling(self, prompts: Sequence[Prompt], options: Options) -> Generations:
        """Write texts before a suffix where the weights are; return once they have ended."""
        texts = await self.run_in_turn(_infill, prompts, options)
        for text in texts:
            text.belongs_to(self.model)
        return Generations(NoReader(), texts)

    async def read_in_turn(self, length: int, function: Callable[..., T], *args: Any) -> T:
        """Call a function that reads a text in a thread; long texts wait for their client's turn.

        length: characters of the text. QueueFullError if too many long ones wait.
        """
        if length <= LONG:
            return await run_in_thread(function, *args)
        running_loop()
        return await self._reading.run(function, *args)

    async def run_in_turn(
        self, function: Callable[Concatenate[LLM, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call ``run_blocking`` at the client's turn; QueueFullError if too many wait."""
        running_loop()
        async with self._calling.turn():
            return await self.run_blocking(function, *args, **kwargs)

    async def tool_options(self, use: "ToolUse", keywords: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``ToolUse.options``, in the compiling thread if a grammar must be compiled."""
        if not use.compiles:
            return use.options(keywords)
        try:
            return await run_in_thread(use.options, keywords, ready=True)
        except UncompiledError:
            return await self._compile(use.options, keywords)

    async def _find_or_compile(self, source: Grammar) -> "Compiled":
        grammars = self.model.grammars
        compiled = grammars.find(source)
        return await self._compile(grammars.compile, source) if compiled is None else compiled

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
        """Compile no more grammars; return whether this is the first call."""
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
