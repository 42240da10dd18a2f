"""TextWriter: the methods of ``LLM`` that draw: generate, stream, chat, denoise, revise.

Of many requests a few run at a time, and a request's result is yielded as soon as the request ends.
An error ends only its own request.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from cutaway.api.text_reader import TextReader
from cutaway.base.progress import Bar, texts_done
from cutaway.engine.events import as_cutaway_error
from cutaway.errors import CutawayError, InputError
from cutaway.methods.importance import answer, answers
from cutaway.registry import feature
from cutaway.requests.base import Message, Prompt, common_options, one_or_many
from cutaway.requests.completion import Completion
from cutaway.requests.keywords import DenoiseOptions, RequestOptions
from cutaway.requests.options import Options
from cutaway.requests.owner import EngineOwner
from cutaway.requests.prepared import infills_by_bayes
from cutaway.requests.signatures import names_keywords
from cutaway.requests.sync_llm import Stream

if TYPE_CHECKING:
    from typing import Unpack

    from cutaway.base.progress import Progress
    from cutaway.features.revise.revise import Revised
    from cutaway.requests.tools import Tools
    from cutaway.text.grammar.compiler import Compiled

T = TypeVar("T")


Result = Completion | list[Completion] | CutawayError
"""The result of ``generate`` for a request, or the error that it would raise."""


class Results(Iterator[tuple[int, Result]]):
    """Yields (index of a request, its result) in the order in which the requests end.

    Closing it early (or leaving its ``with`` block, or dropping it) aborts the running requests.
    on_step: called after every step
    """

    def __init__(
        self,
        owner: EngineOwner,
        requests: Iterable[Any],
        start: Callable[[Any], list[Stream]],
        most: int,
    ) -> None:
        """start: queues a request's sequences, or raises; most: sequences queued at once."""
        self._owner, self._start, self._most = owner, start, most
        self._requests = enumerate(requests)
        self._open: dict[int, list[Stream]] = {}
        self._ended: deque[tuple[int, Result]] = deque()
        self._tokens = 0  # of the requests that ended
        self.stop_asked = False
        self.on_step: Callable[[], object] = lambda: None

    @property
    def tokens(self) -> int:
        """Tokens written so far, unfinished texts included."""
        return self._tokens + sum(map(_tokens, self._open.values()))

    def __next__(self) -> tuple[int, Result]:
        try:
            while not self._ended and not self.stop_asked and self._fill():
                self._owner.turn()
                self._collect()
                self.on_step()
        except BaseException:
            self.close()
            raise
        if self._ended:
            return self._ended.popleft()
        self.close()
        raise StopIteration

    def stop(self) -> None:
        """Begin no more steps; requests that have ended are still yielded.

        Safe in a signal handler.
        """
        self.stop_asked = True

    def __enter__(self) -> "Results":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Abort the requests that have not ended, and free their blocks."""
        self.stop_asked = True
        for streams in self._open.values():
            for stream in streams:
                stream.close()
        self._open.clear()
        self._ended.clear()

    def _fill(self) -> bool:
        """Take requests while there is room; False if nothing is left to do."""
        room = self._most - sum(map(len, self._open.values()))
        while room > 0 and not self._ended:
            if (following := next(self._requests, None)) is None:
                break
            index, request = following
            try:
                self._open[index] = self._start(request)
                room -= len(self._open[index])
            except CutawayError as error:
                self._ended.append((index, error))
        return bool(self._open or self._ended)

    def _collect(self) -> None:
        for index, streams in list(self._open.items()):
            if all(stream.ended for stream in streams):
                del self._open[index]
                self._tokens += _tokens(streams)
                self._ended.append((index, _result(streams)))


def _tokens(streams: list[Stream]) -> int:
    return sum(stream.num_arrived for stream in streams)


def _result(streams: list[Stream]) -> Result:
    """Return the result of samples that have all ended."""
    for stream in streams:
        if stream.error:
            return as_cutaway_error(stream.error)
    return answer([stream.finish() for stream in streams], aligned=streams[0].options.align)


# -- the methods of LLM that draw --------------------------------------------------------------


class TextWriter(TextReader):
    """The methods of ``LLM`` that draw."""

    @overload
    def generate(  # type: ignore[overload-overlap]
        self, prompt: Prompt, **options: "Unpack[RequestOptions]"
    ) -> Completion: ...
    @overload
    def generate(
        self, prompt: Sequence[Prompt], **options: "Unpack[RequestOptions]"
    ) -> list[Completion]: ...
    @names_keywords(RequestOptions)
    def generate(self, prompt: Any, **options: Any) -> Any:
        """Continue a prompt, or each of a list of prompts in one batch.

        prompt: text, or token ids (a NumPy array too); a list of either gives a list of
        Completions. An empty list is an empty prompt: an InputError.
        options: temperature, top_k, top_p, min_p, seed, stop, max_tokens, … (RequestOptions names
        them all). With n > 1 each prompt gives a list of n, or with ``align`` one of them.
        trace="run.jsonl" records the run; of several texts the second is in run.2.jsonl, and so on.
        Raises InputError for an unknown option or a value out of range.
        """
        parsed = self.parse_options(options)
        prompts, many = one_or_many(prompt)
        return self.answers(prompts, parsed, is_list=many)

    def answers(
        self,
        prompts: Sequence[Prompt],
        options: Options,
        *,
        is_list: bool,
        grammar: "Compiled | None" = None,
    ) -> Any:
        """Do as ``generate`` does. is_list: return a list. grammar: the options', if compiled."""
        traces = options.traces(len(prompts))
        with ExitStack() as stack:  # whatever goes wrong, no sequence is left in the engine
            texts = [
                [stack.enter_context(s) for s in self.start(p, options, traces, grammar)]
                for p in prompts
            ]
            streams = [s for samples in texts for s in samples]
            show = self.progress and len(streams) > 1
            with Bar("generating", len(streams), show=show, figures=texts_done) as bar:
                self._run(streams, bar.update)
            each = [[s.finish() for s in samples] for samples in texts]
        return answers(each, aligned=options.align, is_list=is_list)

    @names_keywords(RequestOptions)
    def generate_each(
        self, requests: Iterable[Any], **options: "Unpack[RequestOptions]"
    ) -> Results:
        """Run many requests in one batch; yield (index, result) of each as it ends, in any order.

        requests: prompts, or (prompt, options) pairs whose options override the common ones. There
        may be any number: they are taken as there is room, about two batches ahead. A CutawayError
        among them stands for a request that could not be read, and becomes its result.
        A result is what generate returns, a list of n if n > 1, or the CutawayError that it would
        raise; other requests continue. Closing the iterator early aborts them. Raises InputError
        for a bad common option.
        """
        try:
            if isinstance(requests, (str, bytes)):
                raise TypeError
            iter(requests)  # an array without dimensions has __iter__, too
        except TypeError:
            raise InputError(
                "requests", " must be an iterable of prompts; generate takes one"
            ) from None
        common = common_options(options)
        if common.draft is not None:
            self.load_draft(common.draft)
        start = partial(self._start_one, options)
        most = 2 * self.engine.scheduler.policy.max_num_seqs
        return Results(self.owner, requests, start, most)

    def _start_one(self, common: Mapping[str, Any], request: Any) -> list[Stream]:
        """Queue one of many requests."""
        if isinstance(request, CutawayError):
            raise request
        paired = (
            isinstance(request, tuple) and len(request) == 2 and isinstance(request[1], Mapping)
        )
        prompt, own = request if paired else (request, {})
        options = self.parse_options({**common, **own})
        if options.draft not in (None, self.draft):
            raise InputError("speculate", ": name the draft model among the common options")
        return self.add(prompt, options)

    @overload
    def denoise(  # type: ignore[overload-overlap]
        self, prompt: Prompt, **settings: "Unpack[DenoiseOptions]"
    ) -> Completion: ...
    @overload
    def denoise(
        self, prompt: Sequence[Prompt], **settings: "Unpack[DenoiseOptions]"
    ) -> list[Completion]: ...
    @names_keywords(DenoiseOptions)
    def denoise(self, prompt: Any, **settings: Any) -> Any:
        """Reveal a canvas of ``max_tokens`` cells after a prompt, in passes.

        settings: those of ``canvas.Rule``, "rule" for one of ``canvas.RULES`` by name, and the
        options of ``generate``. ``Completion.passes`` has the passes. InputError for a model that
        only writes from left to right.
        """
        from cutaway.requests.options import split_rule

        return self.generate(prompt, **split_rule(settings))

    @names_keywords(RequestOptions)
    def streams(self, prompt: Prompt, **options: "Unpack[RequestOptions]") -> list[Stream]:
        """Return a Stream for each of n samples; all run in one batch, no matter which one is read.

        With a suffix and a model without FIM tokens, the streams have ended: see docs/fill.md.
        With ``align`` the caller chooses among their completions: ``methods.importance.align``.
        """
        return self.start(prompt, self.parse_options(options))

    @names_keywords(RequestOptions)
    def chat(
        self,
        messages: Iterable[Message],
        *,
        tools: "Tools" = (),
        tool_choice: Any = None,
        parallel_tool_calls: bool = True,
        run_tools: bool = False,
        max_rounds: int = 8,
        continue_final_message: bool = False,
        think: bool | str | None = None,
        think_budget: int | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **options: "Unpack[RequestOptions]",
    ) -> Completion:
        """Answer a conversation: messages of {"role": …, "content": …}.

        options: those of ``generate``
        tools: the tools that the answer may call: Python functions with types, or tools as in
        OpenAI's chat, which also defines tool_choice and parallel_tool_calls
        run_tools: call the functions and answer their results, for at most ``max_rounds`` answers;
        calls in the last answer are not run. A function's exception is raised. Each answer has a
        trace of its own, as samples have.
        continue_final_message: the last message is the assistant's, and the text continues it; the
        first of ``new_messages`` is then this message, whole
        think: whether the model thinks, or a level that its template knows ("low"); None: the
        template's default
        think_budget: the most tokens of the thought, after which it is closed
        chat_template_kwargs: variables of the model's chat template
        ``Completion.new_messages`` continue the conversation; ``tool_calls`` are the last answer's.
        With n > 1 returns a list.
        """
        from cutaway.api.chat import answer
        from cutaway.text.thinking_switch import ThinkingWish

        done: Completion = answer(
            self, self.answers, messages, tools, tool_choice=tool_choice, options=options,
            parallel=parallel_tool_calls, run_tools=run_tools, max_rounds=max_rounds,
            continue_final_message=continue_final_message,
            wish=ThinkingWish(think, think_budget, chat_template_kwargs or {}),
        )  # fmt: skip
        return done

    def chat_prompt(
        self,
        messages: Iterable[Message],
        tools: "Tools" = (),
        *,
        continue_final_message: bool = False,
        think: bool | str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return a conversation's token ids in the model's own template, ready to be answered.

        Special tokens come from the template alone; in a message they are ordinary text.
        continue_final_message: the prompt ends within the last message, which is the assistant's
        """
        from cutaway.requests.tools import ToolUse
        from cutaway.text.thinking_switch import ThinkingWish

        use = ToolUse(self.model, tools, wish=ThinkingWish(think, None, chat_template_kwargs or {}))
        return self.chat_ids(
            messages, use.tools, continue_final_message=continue_final_message, **use.variables
        )

    def revise(
        self,
        /,
        prompt: Prompt = "",
        draft: Prompt | None = None,
        *,
        rule: str = "gibbs",
        power: float = 4.0,
        share: float = 0.2,
        sweeps: int = 1,
        surprise: str = "loop",
        candidates: int = 16,
        span: int | None = None,
        filler: "TextWriter | None" = None,
        seed: int | None = None,
        progress: "Progress | None" = None,
        stopped: Callable[[], bool] = bool,
        adapter: str = "",
        **options: Any,
    ) -> "Revised":
        """Write a draft, or take the given one, and replace its most surprising tokens.

        rule: "gibbs", "metropolis" or "better"; see docs/revise.md
        power: gibbs and metropolis draw from the model's distribution over texts to this power
        share: the share of the tokens that are tried, the most surprising ones; sweeps: how often
        surprise: "loop", given the tokens before, or "leave_one_out", also given the tokens after
        candidates: tokens tried in each place; span: tokens that metropolis draws at once
        filler: for better, a bidirectional model that replaces whole words
        progress: called with (activity, done, total); stopped: called between steps; once it
        returns true, the revision ends and keeps what was tried
        adapter: the name of a loaded adapter
        options: those of ``generate``, for the draft
        Raises InputError for a value out of range.
        """
        revising = feature("revise.revise")
        how = revising.RevisionSettings.check(
            rule=rule, power=power, share=share, sweeps=sweeps, surprise=surprise,
            candidates=candidates, span=span, filler=filler, seed=seed,
        )  # fmt: skip
        llm = self.with_adapter(adapter)
        revised: Revised = revising.revise(
            llm, prompt, draft, how, filler=filler,
            options=options, progress=progress, stopped=stopped,
        )  # fmt: skip
        return revised

    def start(
        self,
        prompt: Prompt,
        options: Options,
        traces: Iterator[Path] | None = None,
        grammar: "Compiled | None" = None,
    ) -> list[Stream]:
        """Do as ``add``. With a suffix and a model without FIM tokens, the streams have ended."""
        if not infills_by_bayes(self, options):
            return self.add(prompt, options, traces, grammar)
        from cutaway.methods.infill import infill_by_bayes

        if options.draft is not None:
            self.load_draft(options.draft)
        llm = self.with_adapter(options.adapter)
        return infill_by_bayes(llm, partial(self.add, prompt), options)

    def _run(self, streams: list[Stream], update: Callable[[int], object]) -> None:
        """Step until all streams have ended; ``update`` gets the number that have."""
        ended = 0
        while ended < len(streams):
            self.owner.wait(lambda: _count_ended(streams) > ended)  # noqa: B023 - used at once
            ended = _count_ended(streams)
            update(ended)


def _count_ended(streams: list[Stream]) -> int:
    return sum(stream.ended is not None for stream in streams)
