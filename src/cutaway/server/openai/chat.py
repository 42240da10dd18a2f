"""``/v1/chat/completions``: the fields of its requests, and its answers, whole and streamed."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from cutaway.server.http.errors import ApiError
from cutaway.server.openai.choices import Choices
from cutaway.server.openai.formats import ChatFormat, constraint
from cutaway.server.openai.logprobs import Entry, chat_form
from cutaway.server.openai.messages import ONLY_TEXT, BaseMessage, text_parts
from cutaway.server.openai.request_models import Body, SampledFields, Unsupported, examples
from cutaway.server.openai.schemas import ChatDelta, ChatLogprobs, ChatMessage
from cutaway.server.service import Job, Service

_NO_TOOLS = "tools cannot be called here; leave it out"
_TEXT_TYPES = ("text", "input_text", "output_text")


class TextPart(Body):
    """A part of a message."""

    type: Literal["text", "input_text", "output_text"]
    text: str
    unsupported: ClassVar[Unsupported] = {
        "annotations": (([],), ONLY_TEXT),
        "logprobs": (([],), ONLY_TEXT),
    }


class Message(BaseMessage):
    """A message. Developer messages are given to templates as system messages, which all know."""

    content: str | list[Annotated[TextPart, text_parts("messages", *_TEXT_TYPES)]]
    unsupported: ClassVar[Unsupported] = {
        "refusal": ((), ONLY_TEXT),
        "audio": ((), ONLY_TEXT),
        "annotations": (([],), ONLY_TEXT),
        "tool_calls": (([],), _NO_TOOLS),
        "function_call": ((), _NO_TOOLS),
        "name": ((), "templates have no place for it; write it into the content"),
    }


TOOLS: Unsupported = {
    "tools": (([],), _NO_TOOLS),
    "tool_choice": (("none", "auto"), _NO_TOOLS),
    "parallel_tool_calls": ((True, False), _NO_TOOLS),
}


class ChatRequest(SampledFields):
    """A conversation to answer."""

    PROMPT, FILL = "messages", True
    CALLED: ClassVar[Mapping[str, str]] = {"logprobs": "top_logprobs"}
    model_config = examples(
        {
            "messages": [{"role": "user", "content": "Hello"}],
            "max_completion_tokens": 16,
            "logprobs": True,
        },
        {
            "messages": [
                {"role": "system", "content": "Answer in one word."},
                {"role": "user", "content": [{"type": "text", "text": "Which way is north?"}]},
            ],
            "max_completion_tokens": 16,
            "stream": True,
            "stream_options": {"include_usage": True},
        },
    )
    messages: list[Message] = Field(
        fail_fast=True, description="the conversation, oldest message first", min_length=1
    )
    max_completion_tokens: int | None = Field(
        None, description="new tokens at most; left out: as many as fit the context"
    )
    max_tokens: int | None = Field(None, description="the older name of max_completion_tokens")
    logprobs: bool | None = Field(None, description="include each token's log-probability")
    top_logprobs: int | None = Field(
        None, description="and those of the likeliest tokens in its place, 0 to 1000"
    )
    response_format: ChatFormat | None = Field(
        None, description="text, any JSON object, or JSON that a schema describes"
    )
    unsupported: ClassVar[Unsupported] = {
        **TOOLS,
        "functions": (([],), _NO_TOOLS),
        "function_call": (("none", "auto"), _NO_TOOLS),
        "modalities": ((["text"],), ONLY_TEXT),
        "audio": ((), ONLY_TEXT),
        "prediction": ((), 'draft tokens come from "speculate"; leave it out'),
        "store": ((False,), "nothing is stored here; leave it out"),
        "metadata": (({},), "nothing is stored here; leave it out"),
        "service_tier": (("auto", "default"), "there is one tier; leave it out"),
        "reasoning_effort": (("none",), "this server cannot ask a model to think; leave it out"),
    }

    def options(self) -> dict[str, Any]:
        """The keywords that were given."""
        options = super().options()
        most = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(most) > 1:
            raise ApiError(400, "max_tokens is max_completion_tokens: give one", param="max_tokens")
        if most:
            options["max_tokens"] = most.pop()
        if self.top_logprobs is not None and not self.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs: true", param="top_logprobs")
        if self.logprobs:
            options["logprobs"] = self.top_logprobs or int(self.logprobs_when == "after")
        return options | constraint("response_format", self.response_format, options)

    def called(self) -> Mapping[str, str]:
        """The schema may be the format's."""
        renamed = {"json_schema": "response_format"} if self.response_format else {}
        return {**super().called(), **renamed}


class ChatChoices(Choices):
    """An answer, in the form that has messages."""

    PREFIX, WHOLE, CHUNK = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, service: Service, body: ChatRequest, job: Job, id: str) -> None:
        top = (body.top_logprobs or 0) if body.logprobs else None
        super().__init__(service, body, job, id=id, top=top)

    def part(self, text: str, entries: list[Entry]) -> dict[str, Any]:
        """What is added to the message."""
        delta: ChatDelta = {"content": text} if text else {}
        return {"delta": delta, "logprobs": self._logprobs(entries)}

    def message(self, text: str, entries: list[Entry]) -> dict[str, Any]:
        """The message."""
        said: ChatMessage = {"role": "assistant", "content": text, "refusal": None}
        return {"message": said, "logprobs": self._logprobs(entries)}

    def first(self) -> dict[str, Any]:
        """Who speaks."""
        return {"delta": {"role": "assistant", "content": ""}, "logprobs": None}

    def _logprobs(self, entries: list[Entry]) -> ChatLogprobs | None:
        if self.top is None:
            return None
        return {"content": chat_form(self.tokenizer, entries), "refusal": None}
