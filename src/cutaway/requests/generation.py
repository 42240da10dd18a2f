"""Generation: one sequence as its reader sees it; Generations: all sequences of a request."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, Self

from cutaway.base.arithmetic import plainly
from cutaway.compute.loading.model import LoadedModel
from cutaway.engine import (
    Ended,
    Event,
    FinishReason,
    Pass,
    Request,
    Scored,
    Speculation,
    Started,
    Step,
    Usage,
)
from cutaway.engine.events import chain_as_data, neg_log_z
from cutaway.errors import CutawayError, InputError
from cutaway.requests.completion import Between, Completion, Stopwatch, Timing, held_text
from cutaway.requests.options import Options
from cutaway.requests.prepared import Prepared
from cutaway.requests.shown_step import ShownStep
from cutaway.sampling import ReadRow
from cutaway.sampling.observe import START

if TYPE_CHECKING:
    from cutaway.engine import Arrival, ArrivalReader, Route
    from cutaway.trace import Head, Parent, Token, TraceSink

    Begin = Callable[[Head, Callable[[int], Token]], TraceSink]


def _start_between(options: Options) -> Between | None:
    """Return how a text before a suffix is found; None unless it is written step by step."""
    return Between("canvas" if options.denoise else "tokens") if options.suffix else None


class Generation:
    """The events of one sequence that a reader has read. It can be pickled.

    id             the sequence's id in its engine, or its index among the texts of a request
    prepared       its prompt and options, with the sample's own seed
    steps, passes  the events that were read
    started, ended  the events, or None until they come
    watch          when the request came, and when tokens came
    speculation    draft tokens proposed and accepted so far
    between        how the text was found, if a suffix was given
    """

    _trace: "TraceSink | None" = None

    def __init__(
        self,
        id: int,
        prepared: Prepared,
        model: LoadedModel,
        asked_at: float | None = None,
    ) -> None:
        """asked_at: when the request came, on the clock of ``perf_counter``; None: now."""
        self.id, self.prepared = id, prepared
        self.watch = Stopwatch(asked_at)
        self.steps: list[Step] = []
        self.passes: list[Pass] = []
        self.prompt_scores: list[ReadRow] = []
        self.speculation = Speculation()
        self.between = _start_between(prepared.options)
        self.started: Started | None = None
        self.ended: Ended | None = None
        self._model = model.with_adapter(prepared.options.adapter)
        self._closed = False

    def __reduce__(self) -> Any:
        """Pickle a ``Generation`` without its model, which ``belongs_to`` sets again."""
        return object.__new__, (Generation,), {name: getattr(self, name) for name in _PICKLED}

    def belongs_to(self, model: LoadedModel) -> None:
        """Set the model after unpickling; it must be the one that wrote the text."""
        self._model = model.with_adapter(self.options.adapter)

    # -- what comes ------------------------------------------------------------------------------

    def receive(self, event: Event, emitted_at: float | None = None) -> None:
        """Note an event. emitted_at: on the clock of ``perf_counter``; None: now.

        CutawayError if the trace cannot be written; the trace ends there.
        """
        match event:
            case Step():
                self.watch.token(emitted_at)
            case Scored():
                self.prompt_scores += event.rows
            case Started():
                self.started = event
            case Ended():
                self.ended, self.speculation = event, event.speculation
        if self._trace is not None:
            self._record_event(self._trace, event)

    def abort(self) -> None:
        """Read no further: a text that has not ended ends here as "aborted"."""
        self._closed = True
        if self.ended is None:  # no Ended event will be received
            fingerprint = self.steps[-1].fingerprint if self.steps else START
            end = Ended(
                self.id, FinishReason.ABORTED, None, self.usage(), fingerprint, self.held_text,
                None, self.speculation,
            )  # fmt: skip
            self.receive(end)

    def truncate(self, length: int, options: Options, seed: int, between: Between) -> None:
        """Keep the first ``length`` tokens of a text that has ended; the suffix follows them.

        options, seed: the request's; this text was one of its continuations
        """
        assert self.ended is not None
        self.steps = self.steps[:length]
        request = self.prepared.request.with_seed(seed)
        self.prepared = self.prepared._replace(request=request, options=options)
        self.between = between
        if text := held_text(self.steps, self._model.tokenizer.token_bytes):  # for a stop string
            last, size = self.steps[-1], len(text.encode())
            self.steps[-1] = last._replace(
                text=last.text + text, released_bytes=last.released_bytes + size
            )
        self.ended = self.ended._replace(
            reason=FinishReason.STOP_STRING,
            matched=options.suffix,
            usage=self.usage(),
            fingerprint=self.steps[-1].fingerprint if self.steps else START,
            held_text="",
        )

    # -- what is known ---------------------------------------------------------------------------

    @property
    def request(self) -> Request:
        """The engine's request."""
        return self.prepared.request

    @property
    def seed(self) -> int:
        """The seed of its draws."""
        assert self.prepared.request.sampling.seed is not None
        return self.prepared.request.sampling.seed

    @property
    def options(self) -> Options:
        """The options in force."""
        return self.prepared.options

    @property
    def notes(self) -> tuple[str, ...]:
        """See ``Completion``."""
        return self.prepared.notes

    @property
    def prompt_token_ids(self) -> tuple[int, ...]:
        """The prompt's token ids."""
        return self.prepared.request.prompt_token_ids

    @property
    def finish_reason(self) -> str:
        """Why the text ended; "aborted" if its reader closed it, "unfinished" while it runs."""
        if self.error:
            return "error"
        if self.ended and self._has_read_all:
            return str(self.ended.reason)
        return "aborted" if self._closed else "unfinished"

    @property
    def error(self) -> Exception | None:
        """The error that ended the text."""
        return self.ended.error if self.ended else None

    @property
    def held_text(self) -> str:
        """Text that an early end released, and that no step has shown."""
        if self.ended and self._has_read_all:
            return self.ended.held_text
        return held_text(self.steps, self._model.tokenizer.token_bytes) if self._closed else ""

    @property
    def text(self) -> str:
        """The text that was read so far."""
        return "".join(step.text for step in self.steps) + self.held_text

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the logits of all steps that were read, 16 hex digits."""
        return f"{self.steps[-1].fingerprint if self.steps else START:016x}"

    @property
    def chain(self) -> tuple[Mapping[str, Any], ...]:
        """The sampling stages in force, in order."""
        return chain_as_data(self.prepared.request.stages)

    def usage(self) -> Usage:
        """Token counts: of the prompt, and of the steps that were read."""
        cached = self.started.cached_tokens if self.started else 0
        return Usage(len(self.prompt_token_ids), cached, len(self.steps))

    def timing(self, load_s: float = 0.0) -> Timing:
        """Times and rates so far; all None for a text that was cut out of a longer one."""
        if self.between and self.between.drawn:
            return Timing(load_s, None, None, None)
        usage, window = self.usage(), self.started.window if self.started else 0
        timing = self.watch.timing(load_s, usage.prompt_tokens, usage.completion_tokens, window)
        if self.options.denoise is None or timing.ttft_s is None:
            return timing
        # All tokens of a block come at once, so that a rate between tokens means nothing.
        rate = usage.completion_tokens / (self.watch.last - self.watch.start)
        return timing._replace(prefill_tokens_per_s=None, decode_tokens_per_s=rate)

    @plainly
    def completion(self) -> Completion:
        """Return a completion of the steps that were read so far."""
        usage, end = self.usage(), self.ended if self._has_read_all else None
        timing = self.timing(self._model.load_s)
        top = self.options.logprobs
        return Completion(
            model=self._model.name,
            prompt_token_ids=self.prompt_token_ids,
            token_ids=tuple(step.token_id for step in self.steps),
            text=self.text,
            finish_reason=self.finish_reason,
            matched=end.matched if end else None,
            usage=usage,
            params=self.options.to_json(self.seed),
            params_source=self.options.sources,
            chain=self.chain,
            seed=self.seed,
            timing=timing,
            fingerprint=self.fingerprint,
            prompt_logprobs=tuple(self.prompt_scores),
            speculation=self.speculation,
            notes=self.notes,
            error=str(self.error) if self.error else None,
            logprobs=tuple(s.observed.logprobs(top) for s in self.steps if top and s.observed),
            steps=tuple(ShownStep.with_names(s, self._model.tokenizer) for s in self.steps),
            neg_log_z=neg_log_z(self.steps),
            between=self.between,
            passes=tuple(self.passes),
        )

    @property
    def _has_read_all(self) -> bool:
        return self.ended is not None and self.ended.usage.completion_tokens == len(self.steps)

    # -- its trace -------------------------------------------------------------------------------

    def head(self) -> "Head":
        """The head of the sequence's trace: the request and the model."""
        from cutaway.requests.recording import head_of

        return head_of(self.prepared, self.chain, self._model)

    def record(
        self,
        into: "str | PathLike[str] | Begin",
        *,
        prompt: str | None = None,
        parent: "Parent | None" = None,
    ) -> None:
        """Write a trace of this sequence while it runs; call this before its first step.

        into: a file's path, or a function that begins a trace elsewhere
        prompt: the prompt's text, if it was given as ids; parent: the run that this one forks
        InputError if the file cannot be written, or the steps are not observed: see ``Observe``.
        """
        from cutaway.requests.recording import token_of
        from cutaway.trace import TraceWriter

        if not self.prepared.request.observe.stages or self.steps or self.ended:
            raise InputError("trace", ": ask for candidates, and record before the first step")
        begin = into if callable(into) else partial(TraceWriter, into)
        head = self.head()
        head = replace(head, prompt=head.prompt if prompt is None else prompt, parent=parent)
        self._trace = begin(head, partial(token_of, self._model))

    def _record_event(self, trace: "TraceSink", event: Event) -> None:
        try:
            if trace.closed:
                return
            match event:
                case Step() | Pass():
                    trace.add(event)
                case Ended():
                    from cutaway.trace.write import end_of

                    trace.end(end_of(event))
        except CutawayError:
            self._trace = None
            raise


_PICKLED = (
    "id", "prepared", "watch", "steps", "passes", "prompt_scores", "speculation",
    "between", "started", "ended", "_closed",
)  # fmt: skip


# -- the texts of a request, for one reader in an event loop ---------------------------------------


class NoReader:
    """An ``ArrivalReader`` of texts that have all ended."""

    route, load_s = None, 0.0

    async def read(self) -> list["Arrival"]:
        """Return no events: all texts have ended."""
        return []

    def close(self) -> None:
        """Do nothing: no text runs."""


class Generations:
    """The samples of one or several prompts while they are written, for one reader.

    Leaving its ``with`` block, or closing it, aborts the texts that have not ended.
    each  the n samples of the first prompt, then those of the second, …
    """

    def __init__(self, reader: "ArrivalReader", generations: list[Generation]) -> None:
        self._reader, self.generations = reader, generations

    @property
    def route(self) -> "Route | None":
        """The replicas that write the texts; None if this process writes them."""
        return self._reader.route

    @property
    def load_s(self) -> float:
        """Seconds that the texts waited for their model to be loaded."""
        return self._reader.load_s

    def record(self, target: "Callable[[int], str | PathLike[str] | Begin]") -> None:
        """Record each text in a trace. target: index of a text -> see ``Generation.record``."""
        try:
            for generation in self.generations:
                generation.record(target(generation.id))
        except BaseException:
            self.close()
            raise

    async def read(self) -> list["Arrival"]:
        """Wait for new events, each with its text's index in ``each``; [] once all have ended.

        Raises the error of a text that failed. The call may be cancelled and repeated.
        """
        news = await self._reader.read()
        for index, (event, emitted_at, speculation) in news:
            generation = self.generations[index]
            generation.speculation = speculation
            if isinstance(event, Step):
                generation.steps.append(event)
            elif isinstance(event, Pass):
                generation.passes.append(event)
            generation.receive(event, emitted_at)
        return news

    def close(self) -> None:
        """Abort the texts that have not ended; no more events are read."""
        self._reader.close()
        for generation in self.generations:
            generation.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def finish(self) -> list[Completion]:
        """Read all events; return the completions."""
        with self:
            while await self.read():
                pass
        return [generation.completion() for generation in self.generations]
