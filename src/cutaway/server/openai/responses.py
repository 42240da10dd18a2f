"""``/v1/responses``: a conversation is answered, in the form that OpenAI gave it last.

Knows this endpoint's fields, its answer and the events that it grows by. Refuses to know how
conversations are written down (``items``), and anything that would have to be kept: nothing is.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import count
from time import time
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from cutaway.engine import Ended, Step
from cutaway.sampling.observe import MAX_TOP
from cutaway.server.events import Events, event
from cutaway.server.http.errors import ApiError
from cutaway.server.openai import common as answers
from cutaway.server.openai.formats import TextSettings, answered, constraint
from cutaway.server.openai.logprobs import Entries, Entry, chat_form
from cutaway.server.openai.request_models import TextFields, Unsupported
from cutaway.server.openai.response_schemas import (
    MessageStatus,
    OutputMessage,
    OutputText,
    ResponseSettings,
    ResponseUsage,
)
from cutaway.server.openai.responses_input import Items
from cutaway.server.openai.schemas import ChatToken, InForce
from cutaway.server.service import Job, Service

_NOT_STORED = "nothing is stored here; send the whole conversation as input"
_NO_TOOLS = "tools cannot be called here; leave it out"
_ONE_CACHE = "what was read is kept while there is room; leave it out"

_FIXED: Mapping[str, Any] = {
    "background": False,
    "max_tool_calls": None,
    "parallel_tool_calls": False,
    "previous_response_id": None,
    "reasoning": None,
    "service_tier": "default",
    "store": False,
    "tool_choice": "none",
    "tools": [],
    "truncation": "disabled",
}
"""Fields of the response that are the same whoever asks."""

Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
    Field(max_length=16),
]


class ResponsesRequest(TextFields):
    """A text or a conversation to answer."""

    PROMPT, FILL = "input", True
    CALLED = {"logprobs": "top_logprobs", "max_tokens": "max_output_tokens"}  # noqa: RUF012
    input: Items = Field(description="a text, or messages from the first said to the last")
    instructions: str | None = Field(None, description="what the system says before them")
    max_output_tokens: int | None = Field(
        None, ge=1, description="new tokens; left out: all there is room for"
    )
    text: TextSettings | None = Field(
        None, description="its format: text, any JSON object, or JSON that a schema describes"
    )
    include: list[Literal["message.output_text.logprobs"]] | None = Field(
        None, description="include each token's log-probability"
    )
    top_logprobs: int | None = Field(
        None, ge=0, le=MAX_TOP, description="and the likeliest beside it"
    )
    metadata: Metadata | None = Field(None, description="is answered as it is")
    safety_identifier: str | None = Field(None, description="the newer name of user")
    prompt_cache_key: str | None = Field(
        None, description="is answered as it is, and needless: texts themselves are compared"
    )
    unsupported: ClassVar[Unsupported] = {
        "tools": (([],), _NO_TOOLS),
        "tool_choice": (("none", "auto"), _NO_TOOLS),
        "parallel_tool_calls": ((True, False), _NO_TOOLS),
        "max_tool_calls": ((), _NO_TOOLS),
        "store": ((False,), "nothing is stored here; leave it out"),
        "previous_response_id": ((), _NOT_STORED),
        "conversation": ((), _NOT_STORED),
        "prompt": ((), "nothing is stored here; write it into input"),
        "background": ((False,), "an answer is for whoever waits for it; leave it out"),
        "reasoning": (
            ({}, {"effort": "none"}), "this server cannot ask a model to think; leave it out",
        ),
        "truncation": (("disabled",), "nothing is cut here; shorten the input yourself"),
        "context_management": (([],), "nothing is cut here; shorten the input yourself"),
        "service_tier": (("auto", "default"), "there is one tier; leave it out"),
        "stream_options": (
            ({}, {"include_obfuscation": False}), "nothing is padded here; leave it out",
        ),
        "prompt_cache_retention": ((), _ONE_CACHE),
        "prompt_cache_options": ((), _ONE_CACHE),
        "moderation": ((), "nothing is moderated here; leave it out"),
        "stop": (([],), "this endpoint has none; /v1/chat/completions has"),
    }  # fmt: skip

    @model_validator(mode="after")
    def _one_user(self) -> "ResponsesRequest":
        if self.safety_identifier is not None:
            if self.user is not None:
                raise ApiError(
                    400, "safety_identifier is the newer name of user: give one",
                    param="safety_identifier",
                )  # fmt: skip
            self.user = self.safety_identifier
        return self

    def options(self) -> dict[str, Any]:
        """The keywords that were given."""
        options = super().options() | {"n": 1}  # there is one answer, whatever the server's default
        if self.max_output_tokens is not None:
            options["max_tokens"] = self.max_output_tokens
        if self.include:
            options["logprobs"] = self.top_logprobs or 0
        elif self.top_logprobs:
            raise ApiError(
                400, 'top_logprobs needs include: ["message.output_text.logprobs"]',
                param="top_logprobs",
            )  # fmt: skip
        return options | constraint("text", self.text.format if self.text else None, options)

    def called(self) -> Mapping[str, str]:
        """A schema is the text's."""
        return {**super().called(), "json_schema": "text"}

    def messages(self) -> list[dict[str, str]]:
        """The conversation as templates know it."""
        said = [item.plain() for item in self.input]
        if self.instructions is not None:
            said.insert(0, {"role": "system", "content": self.instructions})
        return said


class ResponsesAnswer(Events):
    """An answer: one message, which has one part."""

    def __init__(self, service: Service, body: ResponsesRequest, job: Job, id: str) -> None:
        self._job, self._body, self._text = job, body, job.texts[0]
        self._tokenizer = service.llm.tokenizer
        self._message_id = f"msg_{id}"
        self._place = {"item_id": self._message_id, "output_index": 0, "content_index": 0}
        self._frame = {
            "id": f"resp_{id}",
            "object": "response",
            "created_at": int(time()),
            "model": service.named(body.model),
            "system_fingerprint": service.fingerprint,
        }
        self._numbers, self._shown = count(), self._new_entries()

    # -- whole ---------------------------------------------------------------------------------

    def whole(self) -> dict[str, Any]:
        """The answer, once the text has ended."""
        steps, ended = self._text.steps, self._text.ended
        assert ended is not None  # the whole answer is written when the text has ended
        stopped = answers.finish_reason(ended) == "stop"
        status: MessageStatus = "completed" if stopped else "incomplete"
        ours: ResponseSettings = {**self._settings, **answers.ending(self._job, 0)}
        fields: dict[str, Any] = {"output": [self._message(status)], "usage": self._usage()}
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
        item: OutputMessage = {**self._message("in_progress"), "content": []}
        yield self._event("response.output_item.added", output_index=0, item=item)
        yield self._event("response.content_part.added", **self._place, part=self._part())

    def progress(
        self,
        index: int,  # noqa: ARG002 - others need it
        step: Step | None,
        ended: Ended | None,
    ) -> Iterator[bytes]:
        """The text that a token brought, with the trace so far where it is wanted."""
        if step is None:
            return
        fields: dict[str, Any] = {}
        if self._body.return_token_ids:
            fields["token_ids"] = [step.token_id]
        if self._body.trace and (records := answers.trace(self._job, 0)):
            fields["cutaway"] = {"trace": records}
        entries = self._logprobs(self._shown.after(step, ended)) if self._body.include else []
        if step.text or entries or fields:
            fields |= {"delta": step.text, "logprobs": entries}
            yield self._event("response.output_text.delta", **self._place, **fields)

    def end(self) -> Iterator[bytes]:
        """That each of them has ended, and the whole answer."""
        response = self.whole()
        item = response["output"][0]
        part = item["content"][0]
        done = {"text": part["text"], "logprobs": part["logprobs"]}
        yield self._event("response.output_text.done", **self._place, **done)
        yield self._event("response.content_part.done", **self._place, part=part)
        yield self._event("response.output_item.done", output_index=0, item=item)
        yield self._event(f"response.{response['status']}", response=response)

    def failed(self, refusal: ApiError) -> Iterable[bytes]:
        """What there is of the answer; then the error, for which OpenAI's clients raise."""
        error = {"code": "server_error", "message": refusal.message}
        fields = {"output": [self._message("incomplete")], "cutaway": self._settings}
        response = self._response("failed", **fields, error=error)
        yield self._event("response.failed", response=response)
        document = refusal.document()
        flat = {name: document["error"][name] for name in ("code", "message", "param")}
        yield self._event("error", **flat, **document)

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
            **_FIXED,
            **fields,
        }

    def _message(self, status: MessageStatus) -> OutputMessage:
        """The message, as far as it was read."""
        return {
            "id": self._message_id, "type": "message", "role": "assistant", "status": status,
            "content": [self._part(self._text.steps)],
        }  # fmt: skip

    def _part(self, steps: Sequence[Step] = ()) -> OutputText:
        """The message's part, with the text of these steps."""
        shown, entries = self._new_entries(), list[Entry]()
        if self._body.include:
            ends = [*[None] * (len(steps) - 1), self._text.ended]
            pairs = zip(steps, ends, strict=False)  # no steps have no end
            entries = [entry for pair in pairs for entry in shown.after(*pair)]
        text, logprobs = "".join(step.text for step in steps), self._logprobs(entries)
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def _new_entries(self) -> Entries:
        return Entries(self._tokenizer, self._body.top_logprobs or 0, "before")

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
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": read + written,
        }

    @cached_property
    def _settings(self) -> InForce:
        return answers.settings(self._job.texts, self._body)
