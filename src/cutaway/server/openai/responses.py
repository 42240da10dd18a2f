"""The answers of ``/v1/responses``, whole and streamed: their items, and the events that add them.

Refuses to know a request's fields, except those that its answer repeats.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from time import time
from typing import Any, cast

from cutaway.engine import Ended, Event, Step
from cutaway.requests.answer import AnswerPart
from cutaway.server.event_stream import dumps_by_parts
from cutaway.server.event_stream import event as encode_event
from cutaway.server.http.errors import ApiError
from cutaway.server.job import TextJob, end_at
from cutaway.server.openai.response_schemas import (
    CallItem,
    MessageStatus,
    OutputItem,
    OutputMessage,
    OutputText,
    ReasoningItem,
    ResponseUsage,
)
from cutaway.server.openai.responses_request import KeptResponses, ResponsesRequest
from cutaway.server.service import Service
from cutaway.server.shared import ChatToken
from cutaway.server.shared.answers import Entries, Entry, OneText, chat_form, finish_reason
from cutaway.server.shared.conversation import text_settings
from cutaway.text.thinking import Thought
from cutaway.text.tools import Arguments, CallEnd, CallStart, Content

EventParts = tuple[str, dict[str, Any]]
"""An event's kind and its fields."""

_CALLS = {
    "function_call": ("fc", "function_call_arguments", "arguments"),
    "custom_tool_call": ("ctc", "custom_tool_call_input", "input"),
}
"""A call's type -> the prefix of its id, the name of its events, and the field of its text."""


class Output:
    """The items of one answer; the last item may be open.

    id  the answer's id, which is part of the items' ids
    """

    def __init__(self, id: str) -> None:
        self._id = id
        self.items: list[OutputItem] = []
        self._is_open = False
        # Log-probabilities of text that is held back, since it may be the beginning of a call.
        self._early: list[ChatToken] = []

    def open_message(self) -> Iterator[EventParts]:
        """Open a message that has no text yet."""
        number = f"_{len(self.items)}" if self.items else ""
        message: OutputMessage = {
            "id": f"msg_{self._id}{number}", "type": "message", "role": "assistant",
            "status": "in_progress", "content": [],
        }  # fmt: skip
        yield from self._open(message)
        part: OutputText = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        message["content"] = [part]
        yield "response.content_part.added", {**self._place(message), "part": {**part}}

    def take(self, deltas: Iterable[AnswerPart], logprobs: list[ChatToken]) -> Iterator[EventParts]:
        """Yield the events of these deltas.

        logprobs: the log-probabilities of the tokens; only a message's text keeps them
        """
        logprobs, self._early = [*self._early, *logprobs], []
        for delta in deltas:
            if isinstance(delta, Thought | CallStart):
                logprobs = []
            if isinstance(delta, Thought):
                yield from self._think(delta.text)
            elif isinstance(delta, Content):
                yield from self._say(delta.text, logprobs)
                logprobs = []
            elif isinstance(delta, CallStart):
                yield from self.close("completed")
                yield from self._call(delta)
            elif isinstance(delta, Arguments):
                yield from self._argue(delta.text)
            elif isinstance(delta, CallEnd):
                yield from self.close("completed")
        if logprobs and self._is_open and self.items[-1]["type"] == "message":
            yield from self._say("", logprobs)
        elif not self.items:
            self._early = logprobs

    def empty_delta(self) -> Iterator[EventParts]:
        """Yield an event without text, to which a step's other fields can be added."""
        if self._is_open and self.items[-1]["type"] == "message":
            yield from self._say("", [])

    # -- thoughts ------------------------------------------------------------------------------

    def _think(self, text: str) -> Iterator[EventParts]:
        if not (self._is_open and self.items[-1]["type"] == "reasoning"):
            item: ReasoningItem = {
                "id": f"rs_{self._id}", "type": "reasoning", "summary": [], "content": [],
                "status": "in_progress",
            }  # fmt: skip
            yield from self._open(item)
            item["content"] = [{"type": "reasoning_text", "text": ""}]
        reasoning = cast(ReasoningItem, self.items[-1])
        reasoning["content"][0]["text"] += text
        yield "response.reasoning_text.delta", {**self._place(reasoning), "delta": text}

    # -- messages ------------------------------------------------------------------------------

    def _say(self, text: str, logprobs: list[ChatToken]) -> Iterator[EventParts]:
        if not (self._is_open and self.items[-1]["type"] == "message"):
            yield from self.close("completed")
            yield from self.open_message()
        message = cast(OutputMessage, self.items[-1])
        part = message["content"][0]
        part["text"] += text
        part["logprobs"] = [*part["logprobs"], *logprobs]
        fields = {**self._place(message), "delta": text, "logprobs": logprobs}
        yield "response.output_text.delta", fields

    def _place(self, message: OutputMessage | ReasoningItem) -> dict[str, Any]:
        return {
            "item_id": message["id"],
            "output_index": len(self.items) - 1,
            "content_index": 0,
        }

    def _close_message(self, message: OutputMessage) -> Iterator[EventParts]:
        place, part = self._place(message), message["content"][0]
        done = {"text": part["text"], "logprobs": part["logprobs"]}
        yield "response.output_text.done", {**place, **done}
        yield "response.content_part.done", {**place, "part": part}

    # -- calls ---------------------------------------------------------------------------------

    def _call(self, delta: CallStart) -> Iterator[EventParts]:
        kind = "function_call" if delta.tool.format is None else "custom_tool_call"
        prefix, _, field = _CALLS[kind]
        item = {
            "id": f"{prefix}_{self._id}_{len(self.items)}", "type": kind, "call_id": delta.id,
            "name": delta.tool.name, field: "", "status": "in_progress",
        }  # fmt: skip
        return self._open(cast(CallItem, item))

    def _argue(self, text: str) -> Iterator[EventParts]:
        item = cast(dict[str, str], self.items[-1])
        _, word, field = _CALLS[item["type"]]
        item[field] += text
        fields = {"item_id": item["id"], "output_index": len(self.items) - 1, "delta": text}
        yield f"response.{word}.delta", fields

    def _close_call(self, item: CallItem) -> Iterator[EventParts]:
        _, word, field = _CALLS[item["type"]]
        name_field = {"name": item["name"]} if item["type"] == "function_call" else {}
        place = {"item_id": item["id"], "output_index": len(self.items) - 1}
        yield f"response.{word}.done", {**place, **name_field, field: cast(Any, item)[field]}

    # -- items ---------------------------------------------------------------------------------

    def _open(self, item: OutputItem) -> Iterator[EventParts]:
        self.items.append(item)
        self._is_open = True
        fields = {"output_index": len(self.items) - 1, "item": {**item}}
        yield "response.output_item.added", fields

    def close(self, status: MessageStatus) -> Iterator[EventParts]:
        """Close the open item, if any, with this status."""
        if not self._is_open:
            return
        item = self.items[-1]
        self._is_open, item["status"] = False, status
        if item["type"] == "message":
            yield from self._close_message(item)
        elif item["type"] == "reasoning":
            text_field = {"text": item["content"][0]["text"]}
            yield "response.reasoning_text.done", {**self._place(item), **text_field}
        else:
            yield from self._close_call(item)
        yield "response.output_item.done", {"output_index": len(self.items) - 1, "item": item}


# -- the whole answer --------------------------------------------------------------------------


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
        self,
        service: Service,
        body: ResponsesRequest,
        job: TextJob,
        id: str,
        kept_responses: KeptResponses,
    ) -> None:
        super().__init__(service, body, job, id)
        self._kept_responses = kept_responses
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
        """Return the answer, once the text has ended."""
        steps = map(self._read_step, self._text.steps)
        for events in (self._opening(), *steps, self._output.close(self._status())):
            deque(events, maxlen=0)
        return self._done()

    # -- streamed ------------------------------------------------------------------------------

    def begin(self) -> Iterator[bytes]:
        """Yield the events that open the answer and its message.

        The answer has the settings in force.
        """
        response = self._response("in_progress", cutaway=self._settings)
        yield self._event("response.created", response=response)
        yield self._event("response.in_progress", response=response)
        for kind, fields in self._opening():
            yield self._event(kind, **fields)

    def progress(self, index: int, event: Event) -> Iterator[bytes]:  # noqa: ARG002
        """Yield the events of a step, with its token id and trace records if asked for."""
        if isinstance(event, Ended):  # may come after the last step as a separate event
            events, fields = [*self._output.take(self._reader.finish(), [])], {}
        else:
            events = [*self._read_step(event)] if isinstance(event, Step) else []
            fields = self._extra_fields(event)
        if fields and not events:
            events = [*self._output.empty_delta()]
        for kind, more in events:
            yield self._event(kind, **more, **fields)
            fields = {}

    def end(self) -> Iterator[bytes]:
        """Yield the events that close the open item, and the whole answer."""
        for kind, fields in self._output.close(self._status()):
            yield self._event(kind, **fields)
        yield self._event(f"response.{self._status()}", response=self._done())

    def fail(self, refusal: ApiError) -> Iterable[bytes]:
        """Yield the incomplete answer, then the error event that OpenAI's clients raise."""
        deque(self._output.close("incomplete"), maxlen=0)
        error = {"code": "server_error", "message": refusal.message}
        fields = {"output": self._output.items, "cutaway": self._settings}
        response = self._response("failed", **fields, error=error)
        yield self._event("response.failed", response=response)
        document = refusal.document()
        flat = {name: document["error"][name] for name in ("code", "message", "param")}
        yield self._event("error", **flat, **document)

    def _event(self, kind: str, **fields: Any) -> bytes:
        return encode_event({"type": kind, "sequence_number": next(self._numbers), **fields}, kind)

    # -- parts ---------------------------------------------------------------------------------

    def _opening(self) -> Iterable[EventParts]:
        """Open a message at once if the answer cannot have thoughts or calls."""
        return self._output.open_message() if self._is_only_text else ()

    def _read_step(self, step: Step) -> Iterator[EventParts]:
        """Yield the events of the items and text that a step adds."""
        entries = self._entries.push(step) if self._entries else []
        deltas = self._reader.push(step)
        if end_at(self._text, step):
            deltas += self._reader.finish()
        return self._output.take(deltas, self._logprobs(entries))

    def _status(self) -> MessageStatus:
        """Return the status of a text that has ended."""
        assert self._text.ended is not None
        return "completed" if finish_reason(self._text.ended) == "stop" else "incomplete"

    def _done(self) -> dict[str, Any]:
        """Return the response object of an answer that has ended, and keep it if asked for."""
        status = self._status()
        if status == "completed":
            outcome: dict[str, Any] = {"completed_at": int(time())}
        else:
            outcome = {"incomplete_details": {"reason": "max_output_tokens"}}
        return self._keep(
            self._response(
                status, output=self._output.items, usage=self._usage(), **outcome,
                **self._token_ids(), cutaway={**self._settings, **self._ending()},
            )
        )  # fmt: skip

    def _keep(self, response: dict[str, Any]) -> dict[str, Any]:
        """Keep the response if asked for; return it, with ``store`` false if it is not kept."""
        items, id = self._body.conversation_items, response["id"]
        if not response["store"]:
            return response
        is_kept = self._kept_responses.keep(dumps_by_parts(response), id, items, response["output"])
        return response if is_kept else {**response, "store": False}

    def _response(self, status: str, **fields: Any) -> dict[str, Any]:
        """Return the response object with these fields."""
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
            "store": body.store is not False and self._kept_responses.limit > 0,
            "user": body.user,
            "safety_identifier": body.safety_identifier,
            "prompt_cache_key": body.prompt_cache_key,
            "text": text_settings(body.text),
            **body.tool_fields(),
            **_FIXED,
            **fields,
        }

    def _logprobs(self, entries: Iterable[Entry]) -> list[ChatToken]:
        """Return entries in the form of chat completions; a token without text has the bytes []."""
        tokens = chat_form(self._tokenizer, entries)
        for chat_token in [token for entry in tokens for token in (entry, *entry["top_logprobs"])]:
            chat_token["bytes"] = chat_token["bytes"] or []
        return tokens

    def _usage(self) -> ResponseUsage:
        """Return the usage; prompt tokens that were not cached count as written to the cache."""
        used = self._text.usage()
        read, cached, generated = used.prompt_tokens, used.cached_tokens, used.completion_tokens
        return {
            "input_tokens": read,
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": read - cached},
            "output_tokens": generated,
            "output_tokens_details": {"reasoning_tokens": self._reader.reasoning_tokens},
            "total_tokens": read + generated,
        }
