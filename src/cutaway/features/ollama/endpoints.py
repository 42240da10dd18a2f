"""``/api/chat``, ``/api/generate`` and ``/api/embed``: texts and vectors in Ollama's form.

Knows answers, whole and line by line; ``requests.py`` has the fields of requests for text.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from time import perf_counter
from typing import Any

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import JSONResponse, Response

from cutaway.engine import Event, Step
from cutaway.features import ollama
from cutaway.features.ollama import (
    OllamaChat,
    OllamaEmbedded,
    OllamaGenerated,
    OllamaVector,
)
from cutaway.features.ollama.requests import (
    STAYS,
    KeepAlive,
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaMachine,
    keep_alive_setter,
    seconds_of,
)
from cutaway.requests.answer import AnswerPart
from cutaway.server.answering import answer
from cutaway.server.body import Body, StrictRoute, Texts, examples, optional
from cutaway.server.document import GENERATION_ERRORS, QUEUE_ERRORS, replies
from cutaway.server.event_stream import Events, dumps
from cutaway.server.http.errors import ApiError
from cutaway.server.http.limits import cancel_on_disconnect
from cutaway.server.job import TextJob
from cutaway.server.routes.embeddings import embed_texts, numbers_of
from cutaway.server.service import Service, service_of
from cutaway.server.shared.answers import Entries, Entry, OneText, chat_form, finish_reason
from cutaway.server.shared.conversation import arguments_of
from cutaway.text.thinking import Thought
from cutaway.text.tools import CallEnd, Content


def format_time(seconds: float | None = None) -> str:
    """Return a time in the form of RFC 3339. seconds: since the epoch; None: now."""
    moment = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def nanoseconds(seconds: float) -> int:
    """Return seconds as nanoseconds, at least 1, since clients divide by the result."""
    return max(1, round(seconds * 1e9))


def nothing_asked(
    body: OllamaChatRequest | OllamaGenerateRequest, service: Service, reason: str
) -> dict[str, Any]:
    """Return the answer to a request that only loads or unloads the model."""
    kind = GeneratedAnswer if isinstance(body, OllamaGenerateRequest) else ChatAnswer
    ending = {"done": True, "done_reason": reason}
    return {
        "model": body.model or service.names.first,
        "created_at": format_time(),
        **kind.piece(),
        **ending,
    }


class OllamaAnswer(OneText):
    """An answer: the thoughts, text and calls so far."""

    MEDIA_TYPE = "application/x-ndjson"

    def __init__(
        self,
        service: Service,
        body: OllamaChatRequest | OllamaGenerateRequest,
        job: TextJob,
        id: str,
    ) -> None:
        super().__init__(service, body, job, id)
        self._name, self._notes = body.model or service.names.first, [*body.notes(service)]
        self._reader = body.use(service).reader(id)
        self._entries = Entries(self._tokenizer, self._text, body.top_logprobs or 0)

    @staticmethod
    def piece(
        content: str = "", thinking: str = "", calls: Sequence[dict[str, Any]] = ()
    ) -> dict[str, Any]:
        """Return the new parts of an answer, in the fields of this endpoint."""
        raise NotImplementedError

    # -- whole ---------------------------------------------------------------------------------

    def whole(self) -> dict[str, Any]:
        """Return the answer, once the text has ended."""
        deltas: list[AnswerPart] = []
        entries: list[Entry] = []
        for step in self._text.steps:
            deltas += self._reader.push(step)
            entries += self._push_entries(step)
        deltas += self._reader.finish()
        return {**self._line(deltas, entries), **self._end()}

    # -- line by line --------------------------------------------------------------------------

    def begin(self) -> Iterable[bytes]:
        """Return nothing: the first line has the first token."""
        return ()

    def progress(self, index: int, event: Event) -> Iterator[bytes]:  # noqa: ARG002
        """Yield a line with the parts that a token adds, if there are any."""
        if isinstance(event, Step):
            deltas, entries = self._reader.push(event), self._push_entries(event)
            if entries or any(map(_is_sent, deltas)):
                yield _line(self._line(deltas, entries))

    def end(self) -> Iterator[bytes]:
        """Yield a line with the rest of the text, if there is any, and one with the figures."""
        deltas = self._reader.finish()
        if any(map(_is_sent, deltas)):
            yield _line(self._line(deltas, []))
        yield _line({**self._line([], []), **self._end()})

    def alive(self) -> bytes:
        """Return a line that adds nothing."""
        return _line(self._line([], []))

    def fail(self, refusal: ApiError) -> Iterable[bytes]:
        """Yield an error line, which Ollama's clients raise."""
        yield _line(refusal.ollama_document())

    # -- parts ---------------------------------------------------------------------------------

    def _push_entries(self, step: Step) -> list[Entry]:
        return self._entries.push(step) if self._body.logprobs else []

    def _line(self, deltas: Sequence[AnswerPart], entries: Sequence[Entry]) -> dict[str, Any]:
        content = "".join(d.text for d in deltas if isinstance(d, Content))
        thinking = "".join(d.text for d in deltas if isinstance(d, Thought))
        calls = [self._call(d.index) for d in deltas if isinstance(d, CallEnd)]
        line = {
            "model": self._name,
            "created_at": format_time(),
            **self.piece(content, thinking, calls),
        }
        logprobs = {"logprobs": chat_form(self._tokenizer, entries)} if entries else {}
        return {**line, **logprobs, "done": False}

    def _call(self, index: int) -> dict[str, Any]:
        """Return a whole call."""
        call = self._reader.message["tool_calls"][index]
        arguments = arguments_of(call["function"]["arguments"])
        function = {"index": index, "name": call["function"]["name"], "arguments": arguments}
        return {"id": call["id"], "function": function}

    def _end(self) -> dict[str, Any]:
        """Return the reason why the text ended, and the times."""
        end, watch, used = self._text.ended, self._text.watch, self._text.usage()
        assert end is not None
        report = self._ending()
        report["notes"] += [*self._notes, *self._cut()]
        first, queued = watch.first or watch.last, self._job.queue_seconds(0) or 0.0
        return {
            "done": True,
            "done_reason": finish_reason(end),
            "total_duration": nanoseconds(perf_counter() - self._job.queued_at),
            "load_duration": round(self._job.load_s * 1e9),
            "prompt_eval_count": used.prompt_tokens,
            "prompt_eval_duration": nanoseconds(first - watch.start - queued),
            "eval_count": used.completion_tokens,
            "eval_duration": nanoseconds(watch.last - first),
            "cutaway": {
                **self._settings,
                **report,
                "reasoning_tokens": self._reader.reasoning_tokens,
            },
        }

    def _cut(self) -> Iterator[str]:
        if self._reader.message.get("tool_calls") and not self._reader.has_called:
            yield "tool_calls: the text ended within a call, which is left out"


class ChatAnswer(OllamaAnswer):
    """An answer to a conversation."""

    @staticmethod
    def piece(
        content: str = "", thinking: str = "", calls: Sequence[dict[str, Any]] = ()
    ) -> dict[str, Any]:
        """Return the new parts of an answer as a message."""
        more = {"thinking": thinking, "tool_calls": calls}
        fields = {name: value for name, value in more.items() if value}
        return {"message": {"role": "assistant", "content": content, **fields}}


class GeneratedAnswer(OllamaAnswer):
    """An answer to a prompt."""

    @staticmethod
    def piece(
        content: str = "",
        thinking: str = "",
        calls: Sequence[dict[str, Any]] = (),  # noqa: ARG004 - a prompt offers no tools
    ) -> dict[str, Any]:
        """Return the new parts of an answer as a text."""
        return {"response": content, **({"thinking": thinking} if thinking else {})}

    def _end(self) -> dict[str, Any]:
        assert isinstance(self._body, OllamaGenerateRequest)
        if self._body.raw or self._body.suffix:
            return super()._end()
        generated = [step.token_id for step in self._text.steps]
        return {**super()._end(), "context": [*self._text.prompt_token_ids, *generated]}


def _is_sent(delta: AnswerPart) -> bool:
    return isinstance(delta, Content | Thought | CallEnd)


def _line(document: Mapping[str, Any]) -> bytes:
    """Return a document as one line; JSON escapes line feeds."""
    return dumps(document) + b"\n"


# -- the endpoints of texts --------------------------------------------------------------------


SCHEMAS = (ollama,)
router = APIRouter(route_class=StrictRoute, tags=["text"])

_CHAT = replies(OllamaChat, *GENERATION_ERRORS, events=OllamaChat, lines=True)
_GENERATED = replies(OllamaGenerated, *GENERATION_ERRORS, events=OllamaGenerated, lines=True)


@router.post("/api/chat", responses=_CHAT)
async def ollama_chat(body: OllamaChatRequest, request: Request) -> Response:
    """Answer a conversation, in Ollama's form."""
    return await _ollama(body, request, ChatAnswer)


@router.post("/api/generate", responses=_GENERATED)
async def ollama_generate(body: OllamaGenerateRequest, request: Request) -> Response:
    """Answer a prompt, or continue a text, in Ollama's form."""
    return await _ollama(body, request, GeneratedAnswer)


async def _ollama(
    body: OllamaChatRequest | OllamaGenerateRequest,
    request: Request,
    make: Callable[[Service, Any, TextJob, str], Events],
) -> Response:
    service = service_of(request, body.model)
    keep = keep_alive_setter(service.slot, body.keep_alive)
    if not body.asks_nothing:
        return await answer(request, body, make, keep)
    slot, reason = service.slot, "load"
    if slot and body.keep_alive is not None and seconds_of(body.keep_alive) == 0:
        reason = "unload"
        keep()
    elif slot:
        await cancel_on_disconnect(request.receive, slot.use())
        keep()
        slot.done()
    return JSONResponse(nothing_asked(body, service, reason))


# -- vectors -----------------------------------------------------------------------------------


class EmbedRequest(Body):
    """Texts, in Ollama's form."""

    model_config = examples({"input": "Paris is in France."}, {"input": ["Paris", "Nizza"]})
    model: str | None = optional("one of /api/tags; left out: the first")
    input: Texts = Field(description="a text, or a list of texts")
    truncate: bool = Field(True, description="cut texts that are too long")
    dimensions: int | None = optional("how many numbers of each vector, from its first")
    options: OllamaMachine | None = optional("of the machine")
    keep_alive: KeepAlive = optional(STAYS)


class EmbeddingRequest(Body):
    """A text, in Ollama's older form."""

    model_config = examples({"prompt": "Paris is in France."})
    model: str | None = optional("one of /api/tags; left out: the first")
    prompt: str = Field(description="a text, which is cut if it is too long")
    options: OllamaMachine | None = optional("of the machine")
    keep_alive: KeepAlive = optional(STAYS)


@router.post("/api/embed", responses=replies(OllamaEmbedded, *QUEUE_ERRORS))
async def embed(body: EmbedRequest, request: Request) -> Response:
    """A vector of each text, in Ollama's form."""
    started, service = perf_counter(), service_of(request, body.model)
    keep = keep_alive_setter(service.slot, body.keep_alive)
    vectors = await embed_texts(
        request, body.model, body.input, "input", dimensions=body.dimensions,
        truncate=body.truncate,
    )  # fmt: skip
    keep()
    numbers = await asyncio.to_thread(numbers_of, vectors)
    answer: OllamaEmbedded = {
        "model": body.model or service.names.first,
        "embeddings": numbers,
        "total_duration": nanoseconds(perf_counter() - started),
        "load_duration": round(request.state.access.load_s * 1e9),
        "prompt_eval_count": sum(vectors.tokens),
    }
    return Response(await asyncio.to_thread(dumps, answer), media_type="application/json")


@router.post("/api/embeddings", responses=replies(OllamaVector, *QUEUE_ERRORS))
async def embedding(body: EmbeddingRequest, request: Request) -> Response:
    """The vector of a text, in Ollama's older form."""
    keep = keep_alive_setter(service_of(request, body.model).slot, body.keep_alive)
    vectors = await embed_texts(request, body.model, [body.prompt], "prompt", truncate=True)
    keep()
    answer: OllamaVector = {"embedding": numbers_of(vectors)[0]}
    return JSONResponse(answer)
