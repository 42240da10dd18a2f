"""What the endpoints share: the model, its names, what is counted, and one job a request.

Knows requests as texts to be read, clients that leave, and figures. Refuses to know the forms in
which clients ask and are answered.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, NamedTuple, TypeVar
from weakref import WeakSet

from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive

from cutaway.api.async_model import AsyncModel
from cutaway.api.generation import Generation
from cutaway.api.generations import Generations
from cutaway.api.model_cache import Slot
from cutaway.api.on_demand import OnDemandLLM
from cutaway.api.prompts import Prompt
from cutaway.api.request import Options
from cutaway.canvas import looked_at
from cutaway.engine import Ended, Event, Pass, Route, Step
from cutaway.errors import InputError
from cutaway.loading.model import LoadedModel
from cutaway.server.http.errors import ApiError
from cutaway.server.http.metrics import Metrics, RequestStats
from cutaway.trace import TraceBuffer

T = TypeVar("T")

_EARLY = ("aborted", "error")  # ends that no step makes

MOST_TEXTS = 128
"""Samples of all prompts of one request."""
MOST_BESIDE = 1 << 20
"""Tokens that one request reports, tracks or biases beside its own; each takes 500 bytes."""


@dataclass
class AccessRecord:
    """What the log's line of a request says beside what HTTP knows."""

    model: str
    user: str | None = None
    prompt: Any = None
    texts: list[RequestStats] = field(default_factory=list)
    route: Route | None = None
    load_s: float = 0.0


@dataclass
class Service:
    """One model, served.

    names       by which it may be asked for; adapters have theirs, behind those of the model
    created     when it was loaded, in seconds of the epoch
    log_prompts whether the log shows prompts
    keep_alive  seconds of silence after which a stream says that it is there
    draining    it takes no more texts
    slow        one thread for what takes the interpreter for seconds, or many would take all of it
    """

    llm: AsyncModel
    names: Sequence[str]
    metrics: Metrics
    created: int
    keep_alive: float
    log_prompts: bool = False
    allow_changes: bool = False
    draining: bool = False
    jobs: "WeakSet[Job]" = field(default_factory=WeakSet)
    slow: Executor = field(default_factory=lambda: ThreadPoolExecutor(1, "slow"))

    @property
    def room(self) -> int:
        """Tokens that a text can have at most, prompt included."""
        return self.llm.room

    def adapter(self, name: str | None) -> str:
        """The adapter of which this is the name, as a request gives that of a model; "": none."""
        own = self.named(name)
        return own if own in self.llm.model.adapters else ""

    def model(self, name: str | None) -> LoadedModel:
        """The model that a request asks for by this name, with its adapter."""
        return self.llm.model.under(self.adapter(name))

    def fingerprint(self, name: str | None) -> str:
        """What computes: OpenAI's ``system_fingerprint``."""
        return self.model(name).system_fingerprint

    def check_plain(self, name: str | None) -> None:
        """ApiError where a request names an adapter, and is about the model itself."""
        if adapter := self.adapter(name):
            raise ApiError(
                400, f"model: {adapter!r:.100} is an adapter, and this is asked of the model "
                f"alone: name {self.names[0]!r:.100}, or load it for all with --lora",
                param="model", code="unsupported_parameter",
            )  # fmt: skip

    @property
    def retry_after(self) -> int:
        """Seconds after which a full queue may have room: as long as the oldest in it waits."""
        now = perf_counter()
        waiting = [job.asked for job in self.jobs if job.waits]
        return max(1, round(now - min(waiting, default=now)))

    @property
    def _draft(self) -> str:
        speculate = str(self.llm.options.get("speculate", ""))
        if not speculate.startswith("draft:"):
            raise ApiError(
                400, "speculate: no draft model is loaded here; off, ngram and jacobi can be had",
                param="speculate",
            )  # fmt: skip
        return speculate

    def check_length(self, text: str) -> None:
        """TooLongError for a text of more tokens than fit, without counting them."""
        self.llm.check_length(text)

    def check_changes(self, changes: Sequence[Any] | None) -> None:
        """ApiError where a request has some, and may not."""
        if changes and not self.allow_changes:
            raise ApiError(
                400, "changes: this server takes none; start it with --allow-changes",
                param="changes", code="unsupported_parameter",
            )  # fmt: skip

    @property
    def slot(self) -> Slot | None:
        """Its place among models that are loaded when they are used; None: it stays loaded."""
        return self.llm.slot if isinstance(self.llm, OnDemandLLM) else None

    def stop(self) -> None:
        """Take no more texts; those there are go on."""
        self.draining = True
        if self.slot:
            self.slot.stop()

    def known_as(self, name: str) -> str | None:
        """Which of its names a request uses; None where it is another model's."""
        bare = name.removesuffix(":latest")  # as Ollama's clients write it
        return next((own for own in (name, bare) if own in self.names), None)

    def named(self, name: str | None) -> str:
        """The same, of a request that is for it."""
        return (name and self.known_as(name)) or self.names[0]

    async def start(
        self,
        prompts: Sequence[Prompt],
        options: dict[str, Any],
        access: AccessRecord,
        *,
        fill: bool,
        trace: bool,
    ) -> "Job":
        """Queue the texts of a request. InputError, QueueFullError or ApiError where it cannot be.

        fill: where nobody says how long it may be, it is as long as there is room
        """
        if self.draining:
            raise ApiError(503, "the server is stopping: ask another", code="stopping")
        given = {**self.llm.options, **options}
        if fill and "max_tokens" not in given and given.get("denoise") is None:
            options["max_tokens"] = max(1, self.room - len(prompts[0]))
        parsed = self.parse(prompts, options, trace=trace)
        traces: list[TraceBuffer] = []

        def begin(*head: Any) -> TraceBuffer:
            traces.append(TraceBuffer(*head))
            return traces[-1]

        record = (lambda _: begin) if trace else None
        return Job(self, await self.llm.submit(prompts, parsed, record=record), traces, access)

    def parse(
        self, prompts: Sequence[Prompt], options: dict[str, Any], *, trace: bool = False
    ) -> Options:
        """A request's options, checked. InputError or ApiError where they cannot be."""
        self.check_changes(options.get("changes"))
        if options.get("speculate") == "draft":
            options["speculate"] = self._draft
        parsed = self.llm.parse(options, traced=trace)
        self._check(prompts, parsed)
        return parsed

    def _check(self, prompts: Sequence[Prompt], options: Options) -> None:
        """InputError for what would take all memory, or be dropped."""
        texts = len(prompts) * options.n
        if texts > MOST_TEXTS:
            raise InputError(
                f"n times the number of prompts is {texts}; at most {MOST_TEXTS} samples a request"
            )
        if options.run.replay and texts > 1:
            raise InputError("replay is of one text: ask for one prompt at a time")
        most = options.stopping.max_tokens
        for name in ("forced", "replay"):
            if (known := len(getattr(options.run, name))) > most:
                raise InputError(
                    f"{name} has {known} token ids, and max_tokens is {most}: "
                    "raise max_tokens, or give fewer"
                )
        written = texts * min(options.stopping.max_tokens, self.room)
        read = sum(min(len(prompt), self.room) for prompt in prompts)
        for name, each, tokens in (
            ("logprobs", options.logprobs, written),
            ("logprobs", options.prompt_logprobs, read),
            ("candidates", options.candidates, written),
            ("track", len(options.track), written),
            ("logit_bias", len(options.sampling.logit_bias), texts),
        ):
            if each * tokens > MOST_BESIDE:
                raise InputError(
                    f"{name}: {each} for each of up to {tokens} are more than {MOST_BESIDE} in "
                    "all; ask for fewer, or for less text"
                )
        if options.denoise:
            looks = looked_at(options.denoise, options.stopping.max_tokens, self.llm.config.sight)
            if texts * looks > MOST_BESIDE:
                raise InputError(
                    f"max_tokens: the passes over {texts} canvases look at {texts * looks} cells, "
                    f"and {MOST_BESIDE} are the most: ask for fewer cells, samples or steps"
                )


class Progress(NamedTuple):
    """What is new of one text: a step, its end, or a step that is the last with that end.

    Neither: a pass over its canvas, where a trace tells of passes.
    """

    which: int
    step: Step | None
    ended: Ended | None


def _paired(events: Sequence[tuple[int, Event]], *, traced: bool) -> list[Progress]:
    """Steps and ends, each end with its last step; what failed is raised when it is read next."""
    passes = [Progress(i, None, None) for i, e in events if traced and isinstance(e, Pass)]
    ends = {i: e for i, e in events if isinstance(e, Ended) and not e.error}
    steps = [(i, e) for i, e in events if isinstance(e, Step)]
    last = dict(steps)
    new = [Progress(i, s, ends.get(i) if s is last[i] else None) for i, s in steps]
    return passes + new + [Progress(i, None, ended) for i, ended in ends.items() if i not in last]


class Job:
    """The texts of one request, for one reader; leaving its ``with`` block ends and counts them.

    traces  of each text, where they were asked for
    """

    def __init__(
        self, service: Service, texts: Generations, traces: list[TraceBuffer], access: AccessRecord
    ) -> None:
        self.texts: list[Generation] = texts.each
        self.traces, self.asked = traces, self.texts[0].watch.start
        self._service, self._reader, self._access = service, texts, access
        self._closed = False
        service.jobs.add(self)

    @property
    def waits(self) -> bool:
        """Whether one of its texts is in the queue."""
        return any(text.started is None for text in self.texts)

    async def read(self) -> list[Progress]:
        """All that is new of all texts; [] at the end. Errors as of ``Generations.read``."""
        while events := await self._reader.read():
            if new := _paired(events, traced=bool(self.traces)):
                return new
        return []

    async def finish(self) -> None:
        """Read to the end."""
        while await self.read():
            pass

    @property
    def route(self) -> Route | None:
        """Which replicas write them; None where there are none."""
        return self._reader.route

    @property
    def load_s(self) -> float:
        """Seconds for which it waited until its model was there."""
        return self._reader.load_s

    def waited(self, index: int) -> float | None:
        """Seconds in the queue; None where it is there still."""
        started = self.texts[index].started
        return started.queued_s if started else None

    def close(self) -> None:
        """End what has not ended, and count."""
        if self._closed:
            return
        self._closed = True
        self._service.jobs.discard(self)
        self._reader.close()
        figures = [self._figures(i, text) for i, text in enumerate(self.texts)]
        for one in figures:
            self._service.metrics.finished(one)
        self._access.texts, self._access.route = figures, self.route
        self._access.load_s = self.load_s
        if self.route:
            self._service.metrics.resumed(self.route.resumed, self.route.replayed)

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _figures(self, index: int, text: Generation) -> RequestStats:
        watch, usage = text.watch, text.usage()
        first, now = watch.first, perf_counter()
        speculation = text.speculation
        return RequestStats(
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens if text.started else None,
            completion_tokens=usage.completion_tokens,
            finish_reason=text.finish_reason,
            queue_s=self.waited(index),
            ttft_s=None if first is None else first - watch.start,
            decode_s=None if first is None else watch.last - first,
            duration_s=(now if text.finish_reason in _EARLY else watch.last) - watch.start,
            proposed=speculation.proposed,
            accepted=speculation.accepted,
        )


async def unless_gone(receive: Receive, work: Awaitable[T]) -> T:
    """The result of ``work``; where the client hangs up first, it is cancelled, and
    ClientDisconnect raised."""
    doing, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({doing, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise ClientDisconnect
        return doing.result()
    finally:
        for task in (doing, gone):
            task.cancel()
        await asyncio.gather(doing, gone, return_exceptions=True)


async def _gone(receive: Callable[[], Awaitable[Message]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
