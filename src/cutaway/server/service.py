"""What the endpoints share: the model, its names, what is counted, and one job a request.

Knows requests as texts to be read, clients that leave, and figures. Refuses to know the forms in
which clients ask and are answered.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, TypeVar
from weakref import WeakSet

from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive

from cutaway._version import __version__
from cutaway.api.async_llm import AsyncLLM, AsyncTexts
from cutaway.api.options import Options
from cutaway.api.prompts import Prompt
from cutaway.api.writing import Writing
from cutaway.engine import TokenStep
from cutaway.errors import InputError
from cutaway.server.http.errors import ApiError
from cutaway.server.http.metrics import Metrics, RequestStats
from cutaway.trace import TraceBuffer

T = TypeVar("T")

MOST_TEXTS = 128
"""Samples of all prompts of one request."""
MOST_BESIDE = 1 << 20
"""Tokens that one request tells, watches or biases beside its own; each takes 500 bytes."""


@dataclass
class AccessRecord:
    """What the log's line of a request says beside what HTTP knows."""

    model: str
    user: str | None = None
    prompt: Any = None
    texts: list[RequestStats] = field(default_factory=list)


@dataclass
class Service:
    """One model, served.

    names       by which it may be asked for
    created     when it was loaded, in seconds of the epoch
    log_prompts whether the log shows prompts
    keep_alive  seconds of silence after which a stream says that it is there
    draining    it takes no more texts
    slow        one thread for what takes the interpreter for seconds, or many would take all of it
    """

    llm: AsyncLLM
    names: Sequence[str]
    metrics: Metrics
    created: int
    keep_alive: float
    log_prompts: bool = False
    draining: bool = False
    jobs: "WeakSet[Job]" = field(default_factory=WeakSet)
    slow: Executor = field(default_factory=lambda: ThreadPoolExecutor(1, "slow"))

    @property
    def room(self) -> int:
        """Tokens that a text can have at most, prompt included."""
        engine = self.llm.llm.engine
        return min(engine.limits.context_length, engine.blocks.count * engine.blocks.block)

    @property
    def fingerprint(self) -> str:
        """What computes: OpenAI's ``system_fingerprint``."""
        machine = self.llm.llm.machine()
        return f"cutaway-{__version__}-{machine.backend.name}-{machine.identity.weights[:12]}"

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
                400, "speculate: no draft model is loaded here; off and ngram can be had",
                param="speculate",
            )  # fmt: skip
        return speculate

    def check_length(self, text: str) -> None:
        """TooLongError for a text of more tokens than fit, without counting them."""
        llm = self.llm.llm
        fewest, limits = llm.tokenizer.min_tokens(text), llm.engine.limits
        if fewest > limits.longest_prompt:
            raise limits.too_long(f"at least {fewest}")

    def stop(self) -> None:
        """Take no more texts; those there are go on."""
        self.draining = True

    def named(self, name: str | None) -> str:
        """The model that a request asks for; ApiError where it is not here."""
        if name is None or name in self.names:
            return name or self.names[0]
        known = ", ".join(self.names)
        raise ApiError(
            404, f"model {name!r:.100} is not here; this server has {known}",
            param="model", code="model_not_found",
        )  # fmt: skip

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
        if options.get("speculate") == "draft":
            options["speculate"] = self._draft
        if fill and "max_tokens" not in self.llm.options:
            options.setdefault("max_tokens", max(1, self.room - len(prompts[0])))
        self._check(prompts, self.llm.parse(options, observed=trace))
        traces: list[TraceBuffer] = []

        def begin(*head: Any) -> TraceBuffer:
            traces.append(TraceBuffer(*head))
            return traces[-1]

        record = (lambda _: begin) if trace else None
        return Job(self, await self.llm.texts(prompts, options, record=record), traces, access)

    def _check(self, prompts: Sequence[Prompt], options: Options) -> None:
        """InputError for what would take all memory, or be dropped."""
        texts, run, shown = len(prompts) * options.n, options.run, options.shown
        if texts > MOST_TEXTS:
            raise InputError(
                f"n times the number of prompts is {texts}; at most {MOST_TEXTS} samples a request"
            )
        forced, most = len(run.forced), options.stops.max_tokens
        if forced > most:
            raise InputError(
                f"forced has {forced} token ids, and max_tokens is {most}: "
                "raise max_tokens, or force fewer"
            )
        written = texts * min(options.stops.max_tokens, self.room)
        read = sum(min(len(prompt), self.room) for prompt in prompts)
        for name, each, tokens in (
            ("logprobs", shown["logprobs"], written),
            ("logprobs", shown["prompt_logprobs"], read),
            ("candidates", shown["candidates"], written),
            ("track", len(shown["track"]), written),
            ("logit_bias", len(options.sampling.logit_bias), texts),
        ):
            if each * tokens > MOST_BESIDE:
                raise InputError(
                    f"{name}: {each} for each of up to {tokens} are more than {MOST_BESIDE} in "
                    "all; ask for fewer, or for less text"
                )


class Job:
    """The texts of one request, for one reader; leaving its ``with`` block ends and counts them.

    traces  of each text, where they were asked for
    """

    def __init__(
        self, service: Service, texts: AsyncTexts, traces: list[TraceBuffer], access: AccessRecord
    ) -> None:
        self.texts: list[Writing] = texts.texts
        self.traces, self.asked = traces, self.texts[0].watch.start
        self._service, self._reader, self._access = service, texts, access
        self._closed = False
        service.jobs.add(self)

    @property
    def waits(self) -> bool:
        """Whether one of its texts is in the queue."""
        return any(text.sequence.num_cached_tokens is None for text in self.texts)

    async def read(self) -> list[tuple[int, TokenStep]]:
        """As AsyncTexts.read."""
        return await self._reader.read()

    async def finish(self) -> None:
        """Read to the end."""
        while await self.read():
            pass

    def waited(self, index: int) -> float | None:
        """Seconds in the queue; None where it is there still."""
        return self._reader.waited(index)

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
        self._access.texts = figures

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _figures(self, index: int, text: Writing) -> RequestStats:
        watch, usage, sequence = text.watch, text.usage(), text.sequence
        first, now = watch.first, perf_counter()
        last = text.steps[-1].finish_reason if text.steps else None
        failed = "error" if sequence.error else "aborted"
        return RequestStats(
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=sequence.num_cached_tokens,
            completion_tokens=usage.completion_tokens,
            finish_reason=str(last or failed),
            queue_s=self.waited(index),
            ttft_s=None if first is None else first - watch.start,
            decode_s=None if first is None else watch.last - first,
            duration_s=(watch.last if last else now) - watch.start,
            proposed=sequence.speculation.proposed,
            accepted=sequence.speculation.accepted,
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
