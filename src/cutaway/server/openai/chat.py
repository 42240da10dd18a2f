"""``/v1/chat/completions``: the fields of its requests, and its answers, whole and streamed."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import Field, model_validator

from cutaway.engine import Ended, Event, Step
from cutaway.errors import InputError
from cutaway.requests.answer import AnswerPart
from cutaway.server.body import Body, Unsupported, examples, optional
from cutaway.server.http.errors import ApiError
from cutaway.server.job import TextJob, end_at
from cutaway.server.openai.completions import Choices, Delta
from cutaway.server.service import Service
from cutaway.server.shared import ChatDelta, ChatLogprobs, ChatMessage, CompletionUsage
from cutaway.server.shared.answers import Entry, chat_form
from cutaway.server.shared.conversation import (
    ONLY_TEXT,
    BaseMessage,
    ChatFormat,
    ChatSchema,
    Messages,
    Tools,
    TurnFields,
    WithTools,
    constraint,
    finish_reason,
    only_types,
    piece,
    schema_of,
)
from cutaway.server.shared.fields import ONE_CACHE, Read, SampledFields
from cutaway.server.shared.thinking import EffortFields
from cutaway.text.thinking import Thought
from cutaway.text.tools import Arguments, CallEnd, CallStart, Content

_NAMELESS = "name: ignored, since this model's template has no place for names"
_TEXT_TYPES = ("text", "input_text", "output_text")


class TextPart(Body):
    """A part of a message."""

    type: Literal["text", "input_text", "output_text"]
    text: str
    unsupported: ClassVar[Unsupported] = {
        "annotations": (([],), ONLY_TEXT),
        "logprobs": (([],), ONLY_TEXT),
    }


Part = Annotated[TextPart, only_types(*_TEXT_TYPES)]


class Message(BaseMessage):
    """A message. Developer messages are given to templates as system messages, which all know."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[Part], Field(fail_fast=True)]
    tool_calls: Tools | None = optional("of an assistant: the calls that it made")
    reasoning_content: str | None = optional(
        "of an assistant: its thoughts, if the template has a place for them"
    )
    reasoning: str | None = optional("OpenRouter's name of reasoning_content")
    tool_call_id: str | None = optional("of a tool: the call that it answers")
    name: str | None = optional(
        "of the speaker, if the template has a place for it; a note says if not"
    )
    unsupported: ClassVar[Unsupported] = {
        "refusal": ((), ONLY_TEXT),
        "audio": ((), ONLY_TEXT),
        "annotations": (([],), ONLY_TEXT),
        "function_call": ((), "the older form of tool_calls; give those"),
    }

    @model_validator(mode="before")
    @classmethod
    def _only_calls(cls, data: Any) -> Any:
        """Set the content to "" in a message that has calls and no content."""
        if isinstance(data, dict) and data.get("tool_calls") and data.get("content") is None:
            return {**data, "content": ""}
        return data

    def plain(self) -> dict[str, Any]:
        """Return the message in the form that chat templates take."""
        message: dict[str, Any] = super().plain()
        more = {
            "tool_calls": self.tool_calls,
            "tool_call_id": self.tool_call_id,
            "reasoning_content": self.reasoning_content or self.reasoning,
            "name": self.name,
        }
        return message | {name: value for name, value in more.items() if value is not None}


class ChatRequest(SampledFields, TurnFields, EffortFields, WithTools):
    """A conversation to answer."""

    FACE, PROMPT, FILL = "chat", "messages", True
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
    max_completion_tokens: int | None = optional(
        "new tokens at most; left out: as many as fit the context"
    )
    max_tokens: int | None = optional("the older name of max_completion_tokens")
    logprobs: bool | None = optional("include each token's log-probability")
    top_logprobs: int | None = optional("and those of the likeliest tokens in its place, 0 to 1000")
    response_format: ChatFormat | None = optional(
        "text, any JSON object, or JSON that a schema describes"
    )
    _nameless: bool = False
    unsupported: ClassVar[Unsupported] = {
        **SampledFields.unsupported,
        "functions": (([],), "the older form of tools; give those"),
        "function_call": (("none", "auto"), "the older form of tool_choice; give that"),
        "modalities": ((["text"],), ONLY_TEXT),
        "audio": ((), ONLY_TEXT),
        "prediction": ((), 'draft tokens come from "speculate"; leave it out'),
        "verbosity": (("medium",), "this server cannot set it; leave it out"),
        "echo": ((False,), "a conversation is not echoed; leave it out"),
        "prompt_cache_retention": (("in_memory", "in-memory"), ONE_CACHE),
    }

    def keywords(self) -> dict[str, Any]:
        """Return the keywords that the client gave."""
        keywords = super().keywords()
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(limits) > 1:
            raise ApiError(400, "max_tokens is max_completion_tokens: give one", param="max_tokens")
        if limits:
            keywords["max_tokens"] = limits.pop()
        if self.top_logprobs is not None and not self.logprobs:
            raise InputError("top_logprobs", " needs logprobs: true")
        if self.logprobs:
            keywords["logprobs"] = self.top_logprobs or int(self.logprobs_when == "after")
        return keywords | constraint("response_format", self.response_format, keywords)

    def field_names(self) -> Mapping[str, str]:
        """Return the field of each keyword, such as response_format for json_schema."""
        names = {**super().field_names()}
        if self.response_format:
            names["json_schema"] = "response_format"
        if self.max_completion_tokens is None:
            del names["max_tokens"]
        return names

    @property
    def own_schema(self) -> Any:
        """The JSON schema in response_format; None without one."""
        text_format = self.response_format
        return schema_of(text_format) if isinstance(text_format, ChatSchema) else None

    @property
    def readings(self) -> list[str]:
        """Notes on how fields were understood, including thinking and speakers' names."""
        return [*super().readings, *self.use_notes, *([_NAMELESS] if self._nameless else [])]

    def conversation(self) -> Messages:
        """Return the messages in the form that chat templates take."""
        return [message.plain() for message in self.messages]

    async def read(self, service: Service) -> Read:
        """Read the conversation, and note whether the template shows the names of speakers."""
        read, template = await super().read(service), service.llm.model.template
        named_roles = {
            message.plain_role for message in self.messages if message.name is not None
        } - {"tool"}
        if named_roles and template:
            self._nameless = named_roles.isdisjoint(template.named_roles)
        return read


class ChatChoices(Choices):
    """The answer to a chat: each choice has a message."""

    PREFIX, WHOLE, CHUNK = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, service: Service, body: ChatRequest, job: TextJob, id: str) -> None:
        top = (body.top_logprobs or 0) if body.logprobs else None
        super().__init__(service, body, job, id=id, top=top)
        self._use = body.use(service)
        self._splits = bool(self._use.tools or service.llm.model.thinking)
        self._readers = [self._use.reader(f"{id}/{i}") for i in range(len(job.texts))]
        self._deltas: list[list[AnswerPart]] = [[] for _ in job.texts]

    def read_step(self, index: int, step: Step) -> Delta:
        """Return the text and entries that a step adds, and parse its thoughts and calls."""
        self._deltas[index] = self._readers[index].push(step)
        if end_at(self.job.texts[index], step):
            self._deltas[index] += self._readers[index].finish()
        return super().read_step(index, step)

    def progress(self, index: int, event: Event) -> Iterator[bytes]:
        """Return the events of ``event``. An ``Ended`` also adds the text that was held back."""
        if isinstance(event, Ended):
            self._deltas[index] += self._readers[index].finish()
        return super().progress(index, event)

    def pieces(self, index: int, text: str, entries: list[Entry]) -> Iterable[dict[str, Any]]:
        """Yield the fields of thoughts, text and calls; the first piece has log-probabilities."""
        deltas, self._deltas[index] = self._deltas[index], []
        if not self._splits:
            yield from super().pieces(index, text, entries)
            return
        chat_deltas = [self._delta(index, d) for d in deltas if not isinstance(d, CallEnd)]
        for delta in chat_deltas or ([ChatDelta()] if entries else []):
            yield {"delta": delta, "logprobs": self._logprobs(entries)}
            entries = []

    def _delta(self, index: int, delta: Thought | Content | CallStart | Arguments) -> ChatDelta:
        if isinstance(delta, Thought):
            return {"reasoning_content": delta.text}
        if isinstance(delta, Content):
            return {"content": delta.text}
        return {"tool_calls": [piece(delta, self._readers[index])]}

    def usage(self) -> CompletionUsage:
        """Return the usage, including the tokens of thoughts."""
        usage = super().usage()
        reasoning_tokens = sum(reader.reasoning_tokens for reader in self._readers)
        usage["completion_tokens_details"]["reasoning_tokens"] = reasoning_tokens
        return usage

    def finish_reason(self, index: int, end: Ended) -> str:
        """Return OpenAI's finish reason of a choice, which may be "tool_calls"."""
        return finish_reason(self._use, self._readers[index], end)

    def part(self, text: str, entries: list[Entry]) -> dict[str, Any]:
        """Return the delta of a message, and the log-probabilities."""
        delta: ChatDelta = {"content": text} if text else {}
        return {"delta": delta, "logprobs": self._logprobs(entries)}

    def message(self, index: int, text: str, entries: list[Entry]) -> dict[str, Any]:
        """Return the whole message."""
        message: ChatMessage = {"role": "assistant", "content": text, "refusal": None}
        if self._splits:
            message |= cast(ChatMessage, self._readers[index].message)
        return {"message": message, "logprobs": self._logprobs(entries)}

    def first(self) -> dict[str, Any]:
        """Return a delta with the role and no text."""
        return {"delta": {"role": "assistant", "content": ""}, "logprobs": None}

    def whole(self) -> dict[str, Any]:
        """Return the answer; if asked for, it has the log-probabilities of the choices' prompt."""
        return {**super().whole(), **self.prompt_logprobs(0)}

    def _logprobs(self, entries: list[Entry]) -> ChatLogprobs | None:
        if self.top is None:
            return None
        return {"content": chat_form(self.tokenizer, entries), "refusal": None}
