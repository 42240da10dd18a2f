"""Shared by the endpoints: models, their names and metrics, and the limits of a request.

Knows which model a request names. Refuses to know any protocol, and how models are loaded.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any
from uuid import uuid4
from weakref import WeakSet

from fastapi import Request

from cutaway.api.async_model import AsyncModel
from cutaway.compute.backends import KV_BLOCK
from cutaway.compute.loading.model import LoadedModel
from cutaway.engine.canvas import Rule, most_computed
from cutaway.errors import InputError
from cutaway.methods.infill import NUM_CONTINUATIONS, NUM_WEIGHED
from cutaway.requests.base import Message, Prompt, fit_max_tokens, infills_by_bayes
from cutaway.requests.options import Options
from cutaway.requests.recording import without_draft_path
from cutaway.requests.tools import ToolUse
from cutaway.server.http.errors import ApiError
from cutaway.server.http.metrics import Metrics, merged_page
from cutaway.server.job import AccessRecord, TextJob
from cutaway.server.model_cache import ModelSlot
from cutaway.server.on_demand import OnDemandLLM
from cutaway.text.tools import Tool
from cutaway.trace import Head, TraceBuffer
from cutaway.trace.write import TokenOf


class Names:
    """The names of one model.

    first  the model's name in answers to requests without a name
    all    the model's names first, then those of its adapters
    """

    def __init__(self, model: LoadedModel, model_names: Sequence[str]) -> None:
        self._model, self.first, self._model_names = model, model_names[0], tuple(model_names)

    @property
    def all(self) -> tuple[str, ...]:
        """All names now: adapters may be loaded and unloaded."""
        return (*self._model_names, *self._model.adapters)

    def find(self, name: str) -> str | None:
        """Return the name, or the name without ":latest", if it is this model's; else None."""
        bare = name.removesuffix(":latest")  # Ollama's clients append it
        return next((spelling for spelling in (name, bare) if spelling in self.all), None)

    def resolve(self, name: str | None) -> str:
        """Return the name of the model or adapter that a request means; ``first`` for None."""
        return (name and self.find(name)) or self.first

    def adapter(self, name: str | None) -> str:
        """Return the adapter of this name; "" if the name is not an adapter's."""
        canonical = self.resolve(name)
        return canonical if canonical in self._model.adapters else ""

    def model(self, name: str | None) -> LoadedModel:
        """Return the model; with the adapter of this name, if there is such an adapter."""
        return self._model.with_adapter(self.adapter(name))

    def fingerprint(self, name: str | None) -> str:
        """Return OpenAI's ``system_fingerprint`` of the model, with the adapter of this name."""
        return self.model(name).system_fingerprint


def names_of(models: Mapping[str, AsyncModel], default_names: Sequence[str]) -> list[Names]:
    """Return the names of each model: its key, its own name if unique, and its adapters' names.

    models         name -> model; for the name "", the default names are used
    default_names  names of the one model that is served without a name

    InputError if an adapter has the name of a model, or of another adapter.
    """
    counts = Counter(llm.name for llm in models.values()) + Counter(models.keys())
    served = []
    for name, llm in models.items():
        primary = [name] if name else default_names
        unique = [llm.name] if counts[llm.name] == 1 or llm.name == name else []
        served.append(Names(llm.model, [*dict.fromkeys([*primary, *unique])]))
    name_counts = Counter(name for names in served for name in names.all)
    for llm in models.values():
        for name in llm.model.adapters:
            if name_counts[name] > 1:
                raise InputError(
                    "adapters",
                    f": {name} is the name of a model or of another adapter: give another",
                )
    return served


# -- one model ---------------------------------------------------------------------------------


MOST_TEXTS = 128
"""The most samples of all prompts of one request."""
MOST_ROWS = 1 << 17
"""The most tokens that a request to fill in text, or one without the KV cache, may compute: a small
model needs 1 to 2 minutes."""
MOST_BESIDE = 1 << 20
"""The most tokens that one request may report, track or bias besides those of its texts; also the
most cells that the passes over its canvases may compute. Each takes 500 bytes."""


@dataclass
class Service:
    """One model that is served.

    names       the names of the model and its adapters
    created     when the server began, in seconds since 1970
    log_prompts whether the log shows prompts
    keep_alive  seconds without an event after which a stream sends a keep-alive
    draining    whether the server accepts no more requests
    jobs        the jobs that have not ended
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

    @property
    def room(self) -> int:
        """The most tokens that a text can have, including its prompt."""
        return self.llm.room

    @property
    def retry_after(self) -> int:
        """Estimated seconds until a full queue has room: how long its oldest job waits, or 1."""
        now = perf_counter()
        waiting = [job.queued_at for job in self.jobs if job.waits]
        return max(1, round(now - min(waiting, default=now)))

    def _draft(self, kind: str) -> str:
        speculate = str(self.llm.options.get("speculate", ""))
        if not speculate.startswith(f"{kind}:"):
            lacking = "draft model" if kind == "draft" else "EAGLE-3 head"
            raise InputError(
                "speculate", f": this server has no {lacking}; give off, ngram or jacobi"
            )
        return speculate

    def check_open(self) -> None:
        """ApiError 503 if the server is stopping."""
        if self.draining:
            raise ApiError(503, "the server is stopping: ask another", code="stopping")

    def check_interventions(self, interventions: Sequence[Any] | None) -> None:
        """ApiError for a request with interventions if the server does not allow them."""
        if interventions and not self.allow_interventions:
            raise ApiError(
                400, "interventions: not allowed here; start the server with --allow-interventions",
                param="interventions", code="unsupported_parameter",
            )  # fmt: skip

    @property
    def slot(self) -> ModelSlot | None:
        """The model's slot in the cache if it is loaded on demand; None if it stays loaded."""
        return self.llm.slot if isinstance(self.llm, OnDemandLLM) else None

    def stop(self) -> None:
        """Accept no more requests; running ones finish."""
        self.draining = True
        if self.slot:
            self.slot.stop()

    async def start(
        self,
        prompts: Sequence[Prompt],
        keywords: dict[str, Any],
        use: ToolUse | None,
        access: AccessRecord,
        *,
        adapter: str,
        fill: bool,
        stream: bool,
        trace: bool,
    ) -> TextJob:
        """Queue the texts of a request, and return their job.

        keywords  the keywords that the client gave
        use       the client's tools and thinking settings; None without a conversation
        adapter   the name of the adapter that the request names as its model; "": none
        fill      whether a text without a maximal length may fill the context
        stream    whether the client asked for a stream
        trace     whether the client asked for traces

        InputError, QueueFullError or ApiError if the texts cannot be queued.
        """
        options = await self.llm.tool_options(use, keywords) if use else {**keywords}
        if adapter:
            options["adapter"] = adapter
        parsed = await self._parse(options, trace=trace)
        if fill and not parsed.denoise:
            parsed = fit_max_tokens(parsed, self.room - len(prompts[0]))
        self._check(prompts, parsed)
        if infills_by_bayes(self.llm, parsed):
            await self._check_infill(prompts, parsed, stream=stream, trace=trace)
        elif _is_uncached(parsed):
            await self._check_uncached(prompts, parsed)
        traces: list[TraceBuffer] = []

        def begin(head: Head, token_of: TokenOf) -> TraceBuffer:
            public = replace(head, params=without_draft_path(head.params))
            traces.append(TraceBuffer(public, token_of))
            return traces[-1]

        record = (lambda _: begin) if trace else None
        grammar = use.grammar if use else None
        texts = await self.llm.submit(prompts, parsed, grammar=grammar, record=record)
        return TextJob(texts, traces, access, self.metrics, self.jobs, keywords=frozenset(keywords))

    async def _parse(self, options: dict[str, Any], *, trace: bool) -> Options:
        self.check_interventions(options.get("interventions"))
        if (kind := options.get("speculate")) in ("draft", "eagle"):
            options["speculate"] = self._draft(kind)
        return await self.llm.parse_async(options, traced=trace)

    async def chat_ids(
        self,
        messages: Iterable[Message],
        tools: Sequence[Tool] = (),
        *,
        goes_on: bool = False,
        **variables: Any,
    ) -> list[int]:
        """Return the token ids of a conversation; a thread tokenizes a long one.

        goes_on    whether the answer continues the last message
        variables  variables of the chat template
        """
        read = partial(self.llm.chat_ids, continue_final_message=goes_on, **variables)
        conversation = [*messages]
        return await self.llm.read_in_turn(_length(conversation), read, conversation, tools)

    def _check(self, prompts: Sequence[Prompt], options: Options) -> None:
        """InputError for too many texts, figures, cells, or forced or replayed token ids."""
        texts = len(prompts) * options.n
        self._check_texts(texts, options)
        self._check_figures(prompts, texts, options)
        if options.denoise:
            self._check_passes(texts, options, options.denoise)

    @staticmethod
    def _check_texts(texts: int, options: Options) -> None:
        if texts > MOST_TEXTS:
            raise InputError(
                "n",
                f" times the number of prompts is {texts}; at most {MOST_TEXTS} samples a request",
            )
        if options.run.replay and texts > 1:
            raise InputError("replay", " is of one text: ask for one prompt at a time")
        max_tokens = options.stopping.max_tokens
        for name in ("forced", "replay"):
            if (length := len(getattr(options.run, name))) > max_tokens:
                raise InputError(
                    name,
                    f" has {length} token ids, and max_tokens is {max_tokens}: "
                    "raise max_tokens, or give fewer",
                )

    def _check_figures(self, prompts: Sequence[Prompt], texts: int, options: Options) -> None:
        generated = texts * min(options.stopping.max_tokens, self.room)
        read = sum(min(len(prompt), self.room) for prompt in prompts)
        for name, per_token, tokens in (
            ("logprobs", options.logprobs, generated),
            ("logprobs", options.prompt_logprobs, read),
            ("candidates", options.candidates, generated),
            ("track", len(options.track), generated),
            ("logit_bias", len(options.sampling.logit_bias), texts),
        ):
            if per_token * tokens > MOST_BESIDE:
                raise InputError(
                    name,
                    f": {per_token} for each of up to {tokens} are more than {MOST_BESIDE} in "
                    "all; ask for fewer, or for less text",
                )

    def _check_passes(self, texts: int, options: Options, rule: Rule) -> None:
        attention, cells = self.llm.config.attention, options.stopping.max_tokens
        looks = most_computed(rule, cells, attention)
        if texts * looks > MOST_BESIDE:
            raise InputError(
                "max_tokens",
                f": the passes over {texts} canvases look at {texts * looks} cells, "
                f"and {MOST_BESIDE} are the most: ask for fewer cells, samples or steps",
            )

    async def _check_infill(
        self, prompts: Sequence[Prompt], options: Options, *, stream: bool, trace: bool
    ) -> None:
        """InputError for filling in by Bayes' rule in a way that it has not, or too many tokens."""
        kinds = {"stream": stream, "trace": trace, "kv_cache": _is_uncached(options)}
        for name, is_set in kinds.items():
            if is_set:
                raise InputError(
                    name,
                    f": this model has no fill-in-the-middle tokens, so that a text "
                    "before a suffix is chosen once all candidates are written: leave out "
                    f"{name} or suffix",
                )
        suffix = await self._count(options.suffix or "", add_bos=False)
        generated = NUM_CONTINUATIONS * (min(options.stopping.max_tokens, self.room) + 1)
        rows = len(prompts) * options.n * (generated + NUM_WEIGHED * (suffix + KV_BLOCK))
        if rows > MOST_ROWS:
            raise InputError(
                "suffix",
                f": up to {rows} tokens would be computed, and one request may have "
                f"{MOST_ROWS}: lower max_tokens or n, or shorten the suffix",
            )

    async def _check_uncached(self, prompts: Sequence[Prompt], options: Options) -> None:
        """InputError for a long text without the KV cache, whose steps each compute all of it."""
        longest = options.stopping.max_tokens
        lengths = [await self._count(prompt) for prompt in prompts]
        rows = options.n * sum(_uncached_rows(n, min(n + longest, self.room)) for n in lengths)
        if rows > MOST_ROWS:
            raise InputError(
                "kv_cache",
                f": without it up to {rows} tokens would be computed, and one request may have "
                f"{MOST_ROWS}: lower max_tokens or n, or leave kv_cache out",
            )

    async def _count(self, text: Prompt, *, add_bos: bool | None = None) -> int:
        """Return the number of a text's tokens."""
        if not isinstance(text, str):
            return len(text)
        self.llm.check_length(text)
        read = partial(self.llm.tokenize, text, add_bos=add_bos)
        return len(await self.llm.read_in_turn(len(text), read))


def _is_uncached(options: Options) -> bool:
    """Return whether a client, and not the server's operator, asks for no KV cache."""
    return not options.run.kv_cache and options.sources["kv_cache"] == "given"


def _uncached_rows(prompt: int, end: int) -> int:
    """Return how many tokens the steps from a prompt's end to a text's compute: all before each."""
    return max(end - prompt, 0) * (prompt + end - 1) // 2


def _length(messages: Sequence[Message]) -> int:
    """Return the number of characters in all texts of the messages."""
    return sum(
        len(text) for message in messages for text in message.values() if isinstance(text, str)
    )


# -- all models that are served ----------------------------------------------------------------


class ServedModels:
    """All models of a server; a request that names no model is for the first one."""

    def __init__(self, services: Sequence[Service]) -> None:
        self.services, self.first = services, services[0]

    def resolve(self, name: str | None) -> Service:
        """Return the model that a request asks for; ApiError for an unknown name."""
        if name is None:
            return self.first
        for service in self.services:
            if service.names.find(name) is not None:
                return service
        known_names = ", ".join(self.names)
        raise ApiError(
            404, f"model {name!r:.100} is not here; this server has {known_names}",
            param="model", code="model_not_found",
        )  # fmt: skip

    @property
    def names(self) -> tuple[str, ...]:
        """All names that requests may use."""
        return tuple(name for service in self.services for name in service.names.all)

    @property
    def jobs(self) -> Iterable[TextJob]:
        """All running jobs."""
        return (job for service in self.services for job in service.jobs)

    @property
    def retry_after(self) -> int:
        """Estimated seconds until a full queue has room."""
        return max(service.retry_after for service in self.services)

    @property
    def draining(self) -> bool:
        """Whether no more requests are accepted."""
        return self.first.draining

    @property
    def alive(self) -> bool:
        """Whether all models take requests."""
        return all(service.llm.alive for service in self.services)

    def metrics(self, accept: str) -> tuple[bytes, str]:
        """Return the page of metrics and its content type.

        With several models, each sample has its model's name as a label.
        """
        if len(self.services) == 1:
            return self.first.metrics.page(accept)
        return merged_page(
            {service.names.first: service.metrics for service in self.services}, accept
        )

    def stop(self) -> None:
        """Accept no more requests and load no more models; running requests finish."""
        for service in self.services:
            service.stop()

    def close(self) -> None:
        """End all texts."""
        for service in self.services:
            service.llm.close()


def models_of(request: Request) -> ServedModels:
    """Return the models of the request's server."""
    models: ServedModels = request.app.state.models
    return models


def admit(
    request: Request, name: str | None, user: str | None, read_prompt: Callable[[], Any]
) -> tuple[Service, AccessRecord]:
    """Return the model that a request names, and the request's record for the log.

    read_prompt: returns the prompt; called only if the log shows prompts

    ApiError 503 if the server is stopping, 404 for an unknown name.
    """
    service = service_of(request, name)
    service.check_open()
    access = AccessRecord(service.names.resolve(name), user)
    access.prompt = read_prompt() if service.log_prompts else None
    request.state.access = access
    return service, access


def answer_id(request: Request) -> str:
    """Return the id of a request's answer: the request's id, made unique if the client chose it.

    Two clients may choose the same id, and a kept answer is found by its id.
    """
    id: str = request.state.request_id
    return f"{id}-{uuid4().hex}" if id == request.headers.get("x-request-id") else id


def service_of(request: Request, name: str | None) -> Service:
    """Return the model that a request asks for; ApiError for an unknown name."""
    return models_of(request).resolve(name)
