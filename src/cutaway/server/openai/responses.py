"""The answers of ``/v1/responses``, whole and streamed."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import count
from time import time
from typing import Any

from cutaway.engine import Ended, Step
from cutaway.server.events import Events, event
from cutaway.server.http.errors import ApiError
from cutaway.server.job import TextJob
from cutaway.server.openai.response_schemas import (
    MessageStatus,
    OutputItem,
    ResponseUsage,
)
from cutaway.server.openai.responses_output import Event, Output
from cutaway.server.openai.responses_request import ResponsesRequest
from cutaway.server.service import Service
from cutaway.server.shared import common as answers
from cutaway.server.shared.chat_schemas import ChatToken
from cutaway.server.shared.formats import answered
from cutaway.server.shared.logprobs import Entries, Entry, chat_form
from cutaway.server.shared.schemas import InForce, ResponseSettings

_FIXED: Mapping[str, Any] = {
    "background": False,
    "max_tool_calls": None,
    "previous_response_id": None,
    "reasoning": None,
    "service_tier": "default",
    "store": False,
    "truncation": "disabled",
}
"""Fields of the response that are always the same."""


class ResponsesAnswer(Events):
    """An answer: a message, which has one part, or calls, or both."""

    def __init__(self, service: Service, body: ResponsesRequest, job: TextJob, id: str) -> None:
        self._job, self._body, self._text = job, body, job.texts[0]
        self._tokenizer, self._id, self._use = service.llm.tokenizer, id, body.use(service)
        self._frame = {
            "id": f"resp_{id}",
            "object": "response",
            "created_at": int(time()),
            "model": service.names.named(body.model),
            "system_fingerprint": service.names.fingerprint(body.model),
        }
        self._thought = self._text.options.constraint.thought
        self._numbers, self._streamed = count(), _Growing(self)

    # -- whole ---------------------------------------------------------------------------------

    def whole(self) -> dict[str, Any]:
        """The answer, once the text has ended."""
        steps, ended = self._text.steps, self._text.ended
        assert ended is not None  # the whole answer is written when the text has ended
        stopped = answers.finish_reason(ended) == "stop"
        status: MessageStatus = "completed" if stopped else "incomplete"
        ours: ResponseSettings = {
            **self._settings,
            **answers.ending(self._job, 0, self._body.readings),
        }
        fields: dict[str, Any] = {"output": self._items(status), "usage": self._usage()}
        if stopped:
            fields["completed_at"] = int(time())
        else:
            fields["incomplete_details"] = {"reason": "max_output_tokens"}
        if self._body.trace:
            ours["trace"] = answers.trace(self._job, 0)
        if self._body.return_token_ids:
            fields["prompt_token_ids"] = list(self._text.prompt_token_ids)
            fields["token_ids"] = [step.token_id for step in steps]
        return self._response(status, **fields, cutaway=ours)

    # -- streamed ------------------------------------------------------------------------------

    def begin(self) -> Iterator[bytes]:
        """That there is an answer, its message and its part, and the settings in force."""
        response = self._response("in_progress", cutaway=self._settings)
        yield self._event("response.created", response=response)
        yield self._event("response.in_progress", response=response)
        if not (self._use.tools or self._thought):
            yield from map(self._said, self._streamed.output.open_message())

    def progress(
        self,
        index: int,  # noqa: ARG002 - others need it
        step: Step | None,
        ended: Ended | None,
    ) -> Iterator[bytes]:
        """The text that a token brought, with the trace so far where it is wanted."""
        if step is None and ended:
            return
        fields: dict[str, Any] = {}
        if self._body.return_token_ids and step:
            fields["token_ids"] = [step.token_id]
        if self._body.trace and (records := answers.trace(self._job, 0)):
            fields["cutaway"] = {"trace": records}
        events = [*self._streamed.after(step, ended)] if step else []
        if fields and not events:
            events = [*self._streamed.output.nothing()]
        for kind, more in events:
            yield self._event(kind, **more, **fields)
            fields = {}

    def end(self) -> Iterator[bytes]:
        """That each item has ended, and the whole answer."""
        response = self.whole()
        yield from map(self._said, self._streamed.output.finish(_item_status(response["status"])))
        yield self._event(f"response.{response['status']}", response=response)

    def failed(self, refusal: ApiError) -> Iterable[bytes]:
        """The answer as far as it was written; then the error, which OpenAI's clients raise."""
        error = {"code": "server_error", "message": refusal.message}
        fields = {"output": self._items("incomplete"), "cutaway": self._settings}
        response = self._response("failed", **fields, error=error)
        yield self._event("response.failed", response=response)
        document = refusal.document()
        flat = {name: document["error"][name] for name in ("code", "message", "param")}
        yield self._event("error", **flat, **document)

    def _said(self, said: Event) -> bytes:
        kind, fields = said
        return self._event(kind, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        return event({"type": kind, "sequence_number": next(self._numbers), **fields}, kind)

    # -- parts ---------------------------------------------------------------------------------

    def _response(self, status: str, **fields: Any) -> dict[str, Any]:
        """The response object with these fields."""
        body, params = self._body, self._settings["params"]
        return {
            **self._frame,
            "status": status,
            "completed_at": None,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "output": [],
            "usage": None,
            "max_output_tokens": body.max_output_tokens,
            "temperature": params["temperature"],
            "top_p": params["top_p"],
            "top_logprobs": body.top_logprobs or 0,
            "metadata": body.metadata or {},
            "user": body.user,
            "safety_identifier": body.safety_identifier,
            "prompt_cache_key": body.prompt_cache_key,
            "text": answered(body.text),
            **body.offered(),
            **_FIXED,
            **fields,
        }

    def _items(self, status: MessageStatus) -> list[OutputItem]:
        """The output, as far as it was read."""
        steps, growing = self._text.steps, _Growing(self)
        if not (self._use.tools or self._thought):
            deque(growing.output.open_message(), maxlen=0)
        ends = [*[None] * (len(steps) - 1), self._text.ended]
        for step, ended in zip(steps, ends, strict=False):  # no steps have no end
            deque(growing.after(step, ended), maxlen=0)
        deque(growing.output.finish(status), maxlen=0)
        return growing.output.items

    def logprobs(self, entries: Iterable[Entry]) -> list[ChatToken]:
        """As chat completions have them; a token that adds no text has no bytes."""
        tokens = chat_form(self._tokenizer, entries)
        for one in [token for entry in tokens for token in (entry, *entry["top_logprobs"])]:
            one["bytes"] = one["bytes"] or []
        return tokens

    def _usage(self) -> ResponseUsage:
        """Tokens in and out; whatever was not found in the cache is written into it."""
        used = self._text.usage()
        read, cached, written = used.prompt_tokens, used.cached_tokens, used.completion_tokens
        return {
            "input_tokens": read,
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": read - cached},
            "output_tokens": written,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": read + written,
        }

    @cached_property
    def _settings(self) -> InForce:
        return answers.settings(self._job, self._body)


class _Growing:
    """The output of an answer, step by step."""

    def __init__(self, answer: ResponsesAnswer) -> None:
        body, self._answer = answer._body, answer
        self._reader = answer._use.reader(answer._id, answer._thought)
        self.output = Output(answer._id)
        self._entries = (
            Entries(answer._tokenizer, body.top_logprobs or 0, "before") if body.include else None
        )

    def after(self, step: Step, ended: Ended | None) -> Iterator[Event]:
        """What a step adds, which may be the last."""
        entries = self._entries.after(step, ended) if self._entries else []
        deltas = self._reader.push(step) + (self._reader.finish() if ended else [])
        return self.output.take(deltas, self._answer.logprobs(entries))


def _item_status(status: str) -> MessageStatus:
    return "completed" if status == "completed" else "incomplete"
