"""The answers of ``/v1/messages``, whole and streamed."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from cutaway.engine import Event, Step
from cutaway.features.anthropic.content import Blocks, Said
from cutaway.features.anthropic.requests import MessagesRequest
from cutaway.features.anthropic.schemas import (
    Content,
    MessageAnswered,
    MessageUsage,
    StopReason,
)
from cutaway.server.events import event as sent
from cutaway.server.http.errors import ApiError
from cutaway.server.job import TextJob
from cutaway.server.service import Service
from cutaway.server.shared.one_text import OneText
from cutaway.server.shared.schemas import Ending

_REASONS: Mapping[str, StopReason] = {
    "stop_string": "stop_sequence",
    "max_tokens": "max_tokens",
    "scored": "max_tokens",
    "context_full": "model_context_window_exceeded",
}
"""Our word -> theirs; the others are ends of the model's own."""


class MessageAnswer(OneText):
    """An answer: thoughts, text and calls, as far as they came."""

    def __init__(self, service: Service, body: MessagesRequest, job: TextJob, id: str) -> None:
        super().__init__(service, body, job, id)
        self._reader = body.use(service).reader(id)
        self._blocks, self._notes = Blocks(), [*body.notes(service)]

    # -- whole ---------------------------------------------------------------------------------

    def whole(self) -> MessageAnswered:
        """The answer, once the text has ended."""
        for events in (*map(self._after, self._text.steps), self._closing()):
            deque(events, maxlen=0)
        delta, ending = self._end()
        more = {**delta, "usage": self._usage(), **self._token_ids()}
        return self._message(self._blocks.each, ending, **more)

    # -- streamed ------------------------------------------------------------------------------

    def begin(self) -> Iterator[bytes]:
        """That there is an answer, what was read, and the settings in force."""
        usage: MessageUsage = {**self._usage(), "output_tokens": 0}
        message = self._message([], stop_reason=None, stop_sequence=None, usage=usage)
        yield self._event("message_start", message=message)

    def progress(self, index: int, event: Event) -> Iterator[bytes]:  # noqa: ARG002
        """What a token brought, with the trace so far if it was asked for."""
        fields = self._beside(event)
        events = [*self._after(event)] if isinstance(event, Step) else []
        for kind, more in events or ([("ping", {})] if fields else []):
            yield self._event(kind, **more, **fields)
            fields = {}

    def end(self) -> Iterator[bytes]:
        """That the last block has ended, why, and how many tokens there were."""
        for kind, fields in self._closing():
            yield self._event(kind, **fields)
        delta, ending = self._end()
        ids = self._token_ids()
        ids.pop("token_ids", None)  # which came one by one
        more = {"usage": self._usage(), "cutaway": ending, **ids}
        yield self._event("message_delta", delta=delta, **more)
        yield self._event("message_stop")

    def alive(self) -> bytes:
        """Anthropic's event for it."""
        return self._event("ping")

    def failed(self, refusal: ApiError) -> Iterable[bytes]:
        """The error, for which Anthropic's clients raise."""
        yield sent(refusal.messages_document(), "error")

    @staticmethod
    def _event(kind: str, **fields: Any) -> bytes:
        return sent({"type": kind, **fields}, kind)

    # -- parts ---------------------------------------------------------------------------------

    def _after(self, step: Step) -> Iterator[Said]:
        return self._blocks.take(self._reader.push(step))

    def _closing(self) -> Iterator[Said]:
        yield from self._blocks.take(self._reader.finish())
        yield from self._blocks.close()

    def _message(
        self, content: list[Content], ours: Ending | None = None, **fields: Any
    ) -> MessageAnswered:
        said: dict[str, Any] = {
            "id": f"msg_{self._id}", "type": "message", "role": "assistant", "model": self._name,
            "content": content, **fields, "system_fingerprint": self._fingerprint,
            "cutaway": {**self._settings, **(ours or {})},
        }  # fmt: skip
        return cast(MessageAnswered, said)

    def _end(self) -> tuple[dict[str, Any], Ending]:
        """Why it ended, in their words and in ours."""
        ours = self._ending()
        ours["notes"] += self._notes
        reason = _REASONS.get(ours["finish_reason"], "end_turn")
        if reason == "end_turn" and self._reader.has_called:
            reason = "tool_use"
        matched = ours["matched"] if reason == "stop_sequence" else None
        return {"stop_reason": reason, "stop_sequence": matched}, ours

    def _usage(self) -> MessageUsage:
        used = self._text.usage()
        return {
            "input_tokens": used.prompt_tokens - used.cached_tokens,
            "cache_read_input_tokens": used.cached_tokens,
            "cache_creation_input_tokens": 0,
            "output_tokens": used.completion_tokens,
            "reasoning_tokens": self._reader.reasoning_tokens,
        }
