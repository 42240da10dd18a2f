"""The answers of ``/api/chat`` and ``/api/generate``, whole and line by line."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from time import perf_counter
from typing import Any

from cutaway.engine import Event, Step
from cutaway.features.ollama.requests import OllamaChatRequest, OllamaGenerateRequest
from cutaway.requests.answer import AnswerPart
from cutaway.server.events import dumps
from cutaway.server.http.errors import ApiError
from cutaway.server.job import TextJob
from cutaway.server.service import Service
from cutaway.server.shared import common
from cutaway.server.shared.logprobs import Entries, Entry, chat_form
from cutaway.server.shared.one_text import OneText
from cutaway.server.shared.tools import arguments_of
from cutaway.text.thinking import Thought
from cutaway.text.tools import CallEnd, Content


def when(seconds: float | None = None) -> str:
    """A time as RFC 3339; now."""
    moment = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def nanoseconds(seconds: float) -> int:
    """At least one: clients divide by it."""
    return max(1, round(seconds * 1e9))


def nothing_asked(
    body: OllamaChatRequest | OllamaGenerateRequest, service: Service, reason: str
) -> dict[str, Any]:
    """The answer to a request that only loads or unloads the model."""
    kind = GeneratedAnswer if isinstance(body, OllamaGenerateRequest) else ChatAnswer
    ending = {"done": True, "done_reason": reason}
    return {
        "model": body.model or service.names.first,
        "created_at": when(),
        **kind.piece(),
        **ending,
    }


class OllamaAnswer(OneText):
    """An answer: thoughts, text and calls, as far as they came."""

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
        """What is new, in the fields of this form."""
        raise NotImplementedError

    # -- whole ---------------------------------------------------------------------------------

    def whole(self) -> dict[str, Any]:
        """The answer, once the text has ended."""
        deltas: list[AnswerPart] = []
        entries: list[Entry] = []
        for step in self._text.steps:
            deltas += self._reader.push(step)
            entries += self._logged(step)
        deltas += self._reader.finish()
        return {**self._line(deltas, entries), **self._end()}

    # -- line by line --------------------------------------------------------------------------

    def begin(self) -> Iterable[bytes]:
        """Nothing: the first line has the first token."""
        return ()

    def progress(self, index: int, event: Event) -> Iterator[bytes]:  # noqa: ARG002
        """What a token brought."""
        if isinstance(event, Step):
            deltas, entries = self._reader.push(event), self._logged(event)
            if entries or any(map(_is_sent, deltas)):
                yield _line(self._line(deltas, entries))

    def end(self) -> Iterator[bytes]:
        """What is left, and the figures."""
        deltas = self._reader.finish()
        if any(map(_is_sent, deltas)):
            yield _line(self._line(deltas, []))
        yield _line({**self._line([], []), **self._end()})

    def alive(self) -> bytes:
        """A line that adds nothing."""
        return _line(self._line([], []))

    def failed(self, refusal: ApiError) -> Iterable[bytes]:
        """The error, for which Ollama's clients raise."""
        yield _line(refusal.ollama_document())

    # -- parts ---------------------------------------------------------------------------------

    def _logged(self, step: Step) -> list[Entry]:
        return self._entries.after(step) if self._body.logprobs else []

    def _line(self, deltas: Sequence[AnswerPart], entries: Sequence[Entry]) -> dict[str, Any]:
        content = "".join(d.text for d in deltas if isinstance(d, Content))
        thinking = "".join(d.text for d in deltas if isinstance(d, Thought))
        calls = [self._call(d.index) for d in deltas if isinstance(d, CallEnd)]
        line = {"model": self._name, "created_at": when(), **self.piece(content, thinking, calls)}
        logprobs = {"logprobs": chat_form(self._tokenizer, entries)} if entries else {}
        return {**line, **logprobs, "done": False}

    def _call(self, index: int) -> dict[str, Any]:
        """A call that is whole."""
        call = self._reader.message["tool_calls"][index]
        arguments = arguments_of(call["function"]["arguments"])
        function = {"index": index, "name": call["function"]["name"], "arguments": arguments}
        return {"id": call["id"], "function": function}

    def _end(self) -> dict[str, Any]:
        """Why it ended, and what it took."""
        ended, watch, used = self._text.ended, self._text.watch, self._text.usage()
        assert ended is not None
        ours = self._ending()
        ours["notes"] += [*self._notes, *self._cut()]
        first, queued = watch.first or watch.last, self._job.waited(0) or 0.0
        return {
            "done": True,
            "done_reason": common.finish_reason(ended),
            "total_duration": nanoseconds(perf_counter() - self._job.asked),
            "load_duration": round(self._job.load_s * 1e9),
            "prompt_eval_count": used.prompt_tokens,
            "prompt_eval_duration": nanoseconds(first - watch.start - queued),
            "eval_count": used.completion_tokens,
            "eval_duration": nanoseconds(watch.last - first),
            "cutaway": {
                **self._settings,
                **ours,
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
        """A message."""
        more = {"thinking": thinking, "tool_calls": calls}
        others = {name: value for name, value in more.items() if value}
        return {"message": {"role": "assistant", "content": content, **others}}


class GeneratedAnswer(OllamaAnswer):
    """An answer to a prompt."""

    @staticmethod
    def piece(
        content: str = "",
        thinking: str = "",
        calls: Sequence[dict[str, Any]] = (),  # noqa: ARG004 - a prompt offers no tools
    ) -> dict[str, Any]:
        """A text."""
        return {"response": content, **({"thinking": thinking} if thinking else {})}

    def _end(self) -> dict[str, Any]:
        assert isinstance(self._body, OllamaGenerateRequest)
        if self._body.raw or self._body.suffix:
            return super()._end()
        written = [step.token_id for step in self._text.steps]
        return {**super()._end(), "context": [*self._text.prompt_token_ids, *written]}


def _is_sent(delta: AnswerPart) -> bool:
    return isinstance(delta, Content | Thought | CallEnd)


def _line(document: Mapping[str, Any]) -> bytes:
    """One line, since JSON escapes line feeds."""
    return dumps(document) + b"\n"
