"""The answers of ``/v1/responses``, whole and streamed."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from time import time
from typing import Any

from cutaway.engine import Ended, Event, Step
from cutaway.server.events import dumps_by_parts
from cutaway.server.events import event as sent
from cutaway.server.http.errors import ApiError
from cutaway.server.job import TextJob, end_at
from cutaway.server.openai.kept_responses import KeptResponses
from cutaway.server.openai.response_schemas import MessageStatus, ResponseUsage
from cutaway.server.openai.responses_output import Output, Said
from cutaway.server.openai.responses_request import ResponsesRequest
from cutaway.server.service import Service
from cutaway.server.shared import common
from cutaway.server.shared.chat_schemas import ChatToken
from cutaway.server.shared.formats import answered
from cutaway.server.shared.logprobs import Entries, Entry, chat_form
from cutaway.server.shared.one_text import OneText

_FIXED: Mapping[str, Any] = {
    "background": False,
    "max_tool_calls": None,
    "reasoning": None,
    "service_tier": "default",
    "truncation": "disabled",
}
"""Fields of the response that are always the same."""


class ResponsesAnswer(OneText):
    """An answer: a message, which has one part, or calls, or both."""

    def __init__(
        self, service: Service, body: ResponsesRequest, job: TextJob, id: str, kept: KeptResponses
    ) -> None:
        super().__init__(service, body, job, id)
        self._kept = kept
        use, thinking = body.use(service), service.llm.model.thinking
        self._reader = use.reader(id)
        self._is_only_text = not (use.tools or thinking)
        self._entries = (
            Entries(self._tokenizer, self._text, body.top_logprobs or 0)
            if body.has_logprobs
            else None
        )
        self._output, self._numbers, self._created = Output(id), count(), int(time())

    # -- whole ---------------------------------------------------------------------------------

    def whole(self) -> dict[str, Any]:
        """The answer, once the text has ended."""
        steps = map(self._after, self._text.steps)
        for events in (self._opening(), *steps, self._output.close(self._status())):
            deque(events, maxlen=0)
        return self._done()

    # -- streamed ------------------------------------------------------------------------------

    def begin(self) -> Iterator[bytes]:
        """That there is an answer, its message and its part, and the settings in force."""
        response = self._response("in_progress", cutaway=self._settings)
        yield self._event("response.created", response=response)
        yield self._event("response.in_progress", response=response)
        for kind, fields in self._opening():
            yield self._event(kind, **fields)

    def progress(self, index: int, event: Event) -> Iterator[bytes]:  # noqa: ARG002
        """The text that a token brought, with the trace so far if it was asked for."""
        if isinstance(event, Ended):  # its last step may have been read before it
            events, fields = [*self._output.take(self._reader.finish(), [])], {}
        else:
            events = [*self._after(event)] if isinstance(event, Step) else []
            fields = self._beside(event)
        if fields and not events:
            events = [*self._output.nothing()]
        for kind, more in events:
            yield self._event(kind, **more, **fields)
            fields = {}

    def end(self) -> Iterator[bytes]:
        """That each item has ended, and the whole answer."""
        for kind, fields in self._output.close(self._status()):
            yield self._event(kind, **fields)
        yield self._event(f"response.{self._status()}", response=self._done())

    def failed(self, refusal: ApiError) -> Iterable[bytes]:
        """The answer as far as it was written; then the error, which OpenAI's clients raise."""
        deque(self._output.close("incomplete"), maxlen=0)
        error = {"code": "server_error", "message": refusal.message}
        fields = {"output": self._output.items, "cutaway": self._settings}
        response = self._response("failed", **fields, error=error)
        yield self._event("response.failed", response=response)
        document = refusal.document()
        flat = {name: document["error"][name] for name in ("code", "message", "param")}
        yield self._event("error", **flat, **document)

    def _event(self, kind: str, **fields: Any) -> bytes:
        return sent({"type": kind, "sequence_number": next(self._numbers), **fields}, kind)

    # -- parts ---------------------------------------------------------------------------------

    def _opening(self) -> Iterable[Said]:
        """An empty message, where the answer is certain to be one."""
        return self._output.open_message() if self._is_only_text else ()

    def _after(self, step: Step) -> Iterator[Said]:
        """What a step adds to the output."""
        entries = self._entries.after(step) if self._entries else []
        deltas = self._reader.push(step)
        if end_at(self._text, step):
            deltas += self._reader.finish()
        return self._output.take(deltas, self._logprobs(entries))

    def _status(self) -> MessageStatus:
        """Of a text that has ended."""
        assert self._text.ended is not None
        return "completed" if common.finish_reason(self._text.ended) == "stop" else "incomplete"

    def _done(self) -> dict[str, Any]:
        """The response object at the end."""
        status = self._status()
        if status == "completed":
            why: dict[str, Any] = {"completed_at": int(time())}
        else:
            why = {"incomplete_details": {"reason": "max_output_tokens"}}
        return self._keep(
            self._response(
                status, output=self._output.items, usage=self._usage(), **why, **self._token_ids(),
                cutaway={**self._settings, **self._ending()},
            )
        )  # fmt: skip

    def _keep(self, response: dict[str, Any]) -> dict[str, Any]:
        """The response, kept if that is wanted; its ``store`` says whether it was."""
        said, id = self._body.said_so_far, response["id"]
        if not response["store"]:
            return response
        is_kept = self._kept.keep(dumps_by_parts(response), id, said, response["output"])
        return response if is_kept else {**response, "store": False}

    def _response(self, status: str, **fields: Any) -> dict[str, Any]:
        """The response object with these fields."""
        body, params = self._body, self._settings["params"]
        return {
            "id": f"resp_{self._id}",
            "object": "response",
            "created_at": self._created,
            "model": self._name,
            "system_fingerprint": self._fingerprint,
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
            "previous_response_id": body.previous_response_id,
            "store": body.store is not False and self._kept.limit > 0,
            "user": body.user,
            "safety_identifier": body.safety_identifier,
            "prompt_cache_key": body.prompt_cache_key,
            "text": answered(body.text),
            **body.offered(),
            **_FIXED,
            **fields,
        }

    def _logprobs(self, entries: Iterable[Entry]) -> list[ChatToken]:
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
            "output_tokens_details": {"reasoning_tokens": self._reader.reasoning_tokens},
            "total_tokens": read + written,
        }
