"""Shared by the endpoints: models, their names and metrics, and the start of a request.

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
from cutaway.compute.loading.model import LoadedModel
from cutaway.engine import NAMED_DRAFTS
from cutaway.errors import InputError
from cutaway.requests.base import Message, Prompt
from cutaway.requests.options import Options
from cutaway.requests.prepared import fit_max_tokens
from cutaway.requests.recording import without_draft_path
from cutaway.requests.tools import ToolUse
from cutaway.server.http.errors import ApiError
from cutaway.server.http.metrics import Metrics, merged_page
from cutaway.server.job import AccessRecord, TextJob
from cutaway.server.limits import check_limits
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
            lacking = {"draft": "draft model", "eagle": "EAGLE-3 head"}.get(kind, "block drafter")
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
        await check_limits(self.llm, prompts, parsed, stream=stream, trace=trace)
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
        if (kind := options.get("speculate")) in NAMED_DRAFTS:
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
