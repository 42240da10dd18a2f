"""What the endpoints share: the model, its names, what is counted, and how much one may ask for.

Refuses to know the forms in which clients ask and are answered.
"""

from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any
from weakref import WeakSet

from cutaway.api.async_model import AsyncModel
from cutaway.engine.canvas import looked_at
from cutaway.errors import InputError
from cutaway.requests.options import Options
from cutaway.requests.prompts import Prompt
from cutaway.server.http.errors import ApiError
from cutaway.server.http.metrics import Metrics
from cutaway.server.job import AccessRecord, TextJob
from cutaway.server.model_cache import ModelSlot
from cutaway.server.names import Names
from cutaway.server.on_demand import OnDemandLLM
from cutaway.trace import TraceBuffer

MOST_TEXTS = 128
"""Samples of all prompts of one request."""
MOST_BESIDE = 1 << 20
"""Tokens that one request reports, tracks or biases beside its own; each takes 500 bytes."""


@dataclass
class Service:
    """One model, served.

    names       by which it and its adapters may be asked for
    created     when it was loaded, in seconds of the epoch
    log_prompts whether the log shows prompts
    keep_alive  seconds of silence after which a stream says that it is there
    draining    it takes no more texts
    slow        one thread for what takes the interpreter for seconds, or many would take all of it
    """

    llm: AsyncModel
    names: Names
    metrics: Metrics
    created: int
    keep_alive: float
    log_prompts: bool = False
    allow_interventions: bool = False
    draining: bool = False
    jobs: WeakSet[TextJob] = field(default_factory=WeakSet)
    slow: Executor = field(default_factory=lambda: ThreadPoolExecutor(1, "slow"))

    @property
    def room(self) -> int:
        """Tokens that a text can have at most, prompt included."""
        return self.llm.room

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

    def check_interventions(self, interventions: Sequence[Any] | None) -> None:
        """ApiError where a request has some, and may not."""
        if interventions and not self.allow_interventions:
            raise ApiError(
                400, "interventions: this server takes none; start it with --allow-interventions",
                param="interventions", code="unsupported_parameter",
            )  # fmt: skip

    @property
    def slot(self) -> ModelSlot | None:
        """Its place among models that are loaded when they are used; None: it stays loaded."""
        return self.llm.slot if isinstance(self.llm, OnDemandLLM) else None

    def stop(self) -> None:
        """Take no more texts; those there are go on."""
        self.draining = True
        if self.slot:
            self.slot.stop()

    async def start(
        self,
        prompts: Sequence[Prompt],
        options: dict[str, Any],
        access: AccessRecord,
        *,
        fill: bool,
        trace: bool,
    ) -> TextJob:
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
        return TextJob(self, await self.llm.submit(prompts, parsed, record=record), traces, access)

    def parse(
        self, prompts: Sequence[Prompt], options: dict[str, Any], *, trace: bool = False
    ) -> Options:
        """A request's options, checked. InputError or ApiError where they cannot be."""
        self.check_interventions(options.get("interventions"))
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
            attention, cells = self.llm.config.attention, options.stopping.max_tokens
            looks = looked_at(options.denoise, cells, attention)
            if texts * looks > MOST_BESIDE:
                raise InputError(
                    f"max_tokens: the passes over {texts} canvases look at {texts * looks} cells, "
                    f"and {MOST_BESIDE} are the most: ask for fewer cells, samples or steps"
                )
