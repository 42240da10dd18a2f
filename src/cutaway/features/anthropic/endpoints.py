"""``/v1/messages``: texts in Anthropic's form, whole and streamed.

Knows the content blocks of an answer and the events that stream them; ``requests.py`` has the
fields of requests.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from cutaway.engine import Event, Step
from cutaway.features import anthropic
from cutaway.features.anthropic import (
    CallContent,
    InputTokens,
    MessageAnswered,
    MessageEvent,
    MessageUsage,
    StopReason,
)
from cutaway.features.anthropic import Content as Block
from cutaway.features.anthropic.requests import CountRequest, MessagesRequest
from cutaway.requests.answer import AnswerPart
from cutaway.server.answering import answer
from cutaway.server.body import StrictRoute
from cutaway.server.document import FIELD_ERRORS, GENERATION_ERRORS, replies
from cutaway.server.event_stream import event as encode_event
from cutaway.server.http.errors import ApiError, MessagesError
from cutaway.server.http.limits import cancel_on_disconnect
from cutaway.server.job import TextJob
from cutaway.server.service import Service, service_of
from cutaway.server.shared import Ending
from cutaway.server.shared.answers import OneText
from cutaway.server.shared.conversation import arguments_of
from cutaway.text.thinking import Thought
from cutaway.text.tools import Arguments, CallStart, Content

EventParts = tuple[str, dict[str, Any]]
"""An event's kind and its fields."""


class Blocks:
    """The content blocks of one answer; the last block may be open."""

    def __init__(self) -> None:
        self.items: list[Block] = []
        self._is_open, self._arguments = False, ""

    def take(self, deltas: Iterable[AnswerPart]) -> Iterator[EventParts]:
        """Yield the events that stream these parts of the answer."""
        for delta in deltas:
            if isinstance(delta, Thought):
                yield from self._say("thinking", delta.text)
            elif isinstance(delta, Content):
                yield from self._say("text", delta.text)
            elif isinstance(delta, CallStart):
                call: CallContent = {
                    "type": "tool_use", "id": delta.id, "name": delta.tool.name, "input": {},
                }  # fmt: skip
                yield from self._open(call)
            elif isinstance(delta, Arguments):
                self._arguments += delta.text
                yield self._delta("input_json_delta", partial_json=delta.text)
            else:
                yield from self.close()

    def close(self) -> Iterator[EventParts]:
        """Close the open block, if there is one."""
        if not self._is_open:
            return
        block, self._is_open = self.items[-1], False
        if block["type"] == "tool_use":
            block["input"] = arguments_of(self._arguments)
        yield "content_block_stop", {"index": len(self.items) - 1}

    def _say(self, kind: str, text: str) -> Iterator[EventParts]:
        if not (self._is_open and self.items[-1]["type"] == kind):
            yield from self._open(_empty(kind))
        block = cast(dict[str, str], self.items[-1])
        block[kind] += text
        yield self._delta(f"{kind}_delta", **{kind: text})

    def _open(self, block: Block) -> Iterator[EventParts]:
        yield from self.close()
        self.items.append(block)
        self._is_open, self._arguments = True, ""
        yield "content_block_start", {"index": len(self.items) - 1, "content_block": {**block}}

    def _delta(self, kind: str, **more: str) -> EventParts:
        return "content_block_delta", {
            "index": len(self.items) - 1,
            "delta": {"type": kind, **more},
        }


def _empty(kind: str) -> Block:
    if kind == "text":
        return {"type": "text", "text": "", "citations": None}
    return {"type": "thinking", "thinking": "", "signature": ""}


# -- the answer --------------------------------------------------------------------------------


_REASONS: Mapping[str, StopReason] = {
    "stop_string": "stop_sequence",
    "max_tokens": "max_tokens",
    "scored": "max_tokens",
    "context_full": "model_context_window_exceeded",
}
"""Our finish reason -> Anthropic's; any other is "end_turn", or "tool_use" after a call."""


class MessageAnswer(OneText):
    """An answer: the thoughts, text and calls so far."""

    def __init__(self, service: Service, body: MessagesRequest, job: TextJob, id: str) -> None:
        super().__init__(service, body, job, id)
        self._reader = body.use(service).reader(id)
        self._blocks, self._notes = Blocks(), [*body.notes(service)]

    # -- whole ---------------------------------------------------------------------------------

    def whole(self) -> MessageAnswered:
        """Return the answer, once the text has ended."""
        for events in (*map(self._read_step, self._text.steps), self._closing()):
            deque(events, maxlen=0)
        delta, ending = self._end()
        more = {**delta, "usage": self._usage(), **self._token_ids()}
        return self._message(self._blocks.items, ending, **more)

    # -- streamed ------------------------------------------------------------------------------

    def begin(self) -> Iterator[bytes]:
        """Yield the opening event, with the tokens read and the settings in force."""
        usage: MessageUsage = {**self._usage(), "output_tokens": 0}
        message = self._message([], stop_reason=None, stop_sequence=None, usage=usage)
        yield self._event("message_start", message=message)

    def progress(self, index: int, event: Event) -> Iterator[bytes]:  # noqa: ARG002
        """Yield the events of a token, with the trace so far if the request asks for it."""
        fields = self._extra_fields(event)
        events = [*self._read_step(event)] if isinstance(event, Step) else []
        for kind, more in events or ([("ping", {})] if fields else []):
            yield self._event(kind, **more, **fields)
            fields = {}

    def end(self) -> Iterator[bytes]:
        """Yield the end of the last block, the reason why the text ended, and the usage."""
        for kind, fields in self._closing():
            yield self._event(kind, **fields)
        delta, ending = self._end()
        ids = self._token_ids()
        ids.pop("token_ids", None)  # each id was sent with its token
        more = {"usage": self._usage(), "cutaway": ending, **ids}
        yield self._event("message_delta", delta=delta, **more)
        yield self._event("message_stop")

    def alive(self) -> bytes:
        """Return Anthropic's ping event, which keeps a silent connection open."""
        return self._event("ping")

    def fail(self, refusal: ApiError) -> Iterable[bytes]:
        """Yield an error event, which Anthropic's clients raise."""
        yield encode_event(refusal.messages_document(), "error")

    @staticmethod
    def _event(kind: str, **fields: Any) -> bytes:
        return encode_event({"type": kind, **fields}, kind)

    # -- parts ---------------------------------------------------------------------------------

    def _read_step(self, step: Step) -> Iterator[EventParts]:
        return self._blocks.take(self._reader.push(step))

    def _closing(self) -> Iterator[EventParts]:
        yield from self._blocks.take(self._reader.finish())
        yield from self._blocks.close()

    def _message(
        self, content: list[Block], ending: Ending | None = None, **fields: Any
    ) -> MessageAnswered:
        message: dict[str, Any] = {
            "id": f"msg_{self._id}", "type": "message", "role": "assistant", "model": self._name,
            "content": content, **fields, "system_fingerprint": self._fingerprint,
            "cutaway": {**self._settings, **(ending or {})},
        }  # fmt: skip
        return cast(MessageAnswered, message)

    def _end(self) -> tuple[dict[str, Any], Ending]:
        """Return the reason why the text ended, in Anthropic's fields and in ours."""
        ending = self._ending()
        ending["notes"] += self._notes
        reason = _REASONS.get(ending["finish_reason"], "end_turn")
        if reason == "end_turn" and self._reader.has_called:
            reason = "tool_use"
        stop_sequence = ending["matched"] if reason == "stop_sequence" else None
        return {"stop_reason": reason, "stop_sequence": stop_sequence}, ending

    def _usage(self) -> MessageUsage:
        used = self._text.usage()
        return {
            "input_tokens": used.prompt_tokens - used.cached_tokens,
            "cache_read_input_tokens": used.cached_tokens,
            "cache_creation_input_tokens": 0,
            "output_tokens": used.completion_tokens,
            "reasoning_tokens": self._reader.reasoning_tokens,
        }


# -- the endpoints -----------------------------------------------------------------------------


SCHEMAS = (anthropic,)
router = APIRouter(route_class=StrictRoute, tags=["text"])

_MESSAGE = replies(
    MessageAnswered, *GENERATION_ERRORS, events=MessageEvent, mark=False, error=MessagesError
)


@router.post("/v1/messages", responses=_MESSAGE)
async def messages(body: MessagesRequest, request: Request) -> Response:
    """Answer a conversation, in Anthropic's form."""
    return await answer(request, body, MessageAnswer)


@router.post("/v1/messages/count_tokens", responses=replies(InputTokens, *FIELD_ERRORS))
async def count_tokens(body: CountRequest, request: Request) -> Response:
    """How many tokens a conversation has, in Anthropic's form."""
    service = service_of(request, body.model)
    ids = await cancel_on_disconnect(request.receive, body.ids(service))
    document: InputTokens = {"input_tokens": len(ids)}
    return JSONResponse(document)
