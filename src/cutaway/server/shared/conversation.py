"""Requests whose prompt is a conversation: messages, tools, and JSON in the answer.

Knows the fields that several protocols share; each protocol has messages of its own.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import from_json

from cutaway.engine import Ended
from cutaway.errors import InputError
from cutaway.requests.answer import AnswerReader
from cutaway.requests.tools import ToolUse
from cutaway.server.body import Body, Unsupported, doc, optional, refusal
from cutaway.server.service import Service
from cutaway.server.shared import CallPiece, ChatReason, answers
from cutaway.server.shared.fields import Read
from cutaway.text.grammar import KINDS
from cutaway.text.messages import with_schema
from cutaway.text.thinking_switch import NO_WISH, ThinkingWish
from cutaway.text.tools import Arguments, CallStart, Tool

ONLY_TEXT = "only text is read and written here; leave it out"


class TurnFields(Body):
    """Where the prompt of a conversation ends, in vLLM's form."""

    add_generation_prompt: bool | None = optional(
        "whether the assistant's turn is opened: always, unless the last message is continued"
    )
    continue_final_message: bool = Field(
        False, description="ours, as in vLLM: the text continues the last message, an assistant's"
    )

    @model_validator(mode="after")
    def _one_end(self) -> "TurnFields":
        if self.add_generation_prompt and self.continue_final_message:
            raise refusal(
                ": continue_final_message opens no turn: leave one of them out",
                "add_generation_prompt",
            )
        if self.add_generation_prompt is False and not self.continue_final_message:
            raise refusal(
                ": the assistant's turn is opened, unless continue_final_message is true: "
                "leave it out",
                "add_generation_prompt",
            )
        return self

    @property
    def goes_on(self) -> bool:
        """Whether the answer continues the last message."""
        return self.continue_final_message


class BaseMessage(Body):
    """A message. Developer messages are given to templates as system messages, which all know."""

    role: str
    content: str | list[Any]

    @property
    def plain_role(self) -> str:
        """The role, by the name in chat templates."""
        return "system" if self.role == "developer" else self.role

    def plain(self) -> dict[str, Any]:
        """Return the message in the form that chat templates take."""
        return {"role": self.plain_role, "content": content_text(self.content)}


def content_text(content: str | list[Any]) -> str:
    """Return the text of a content: a string, or parts that have texts."""
    return content if isinstance(content, str) else "".join(part.text for part in content)


def only_types(*types: str) -> BeforeValidator:
    """Return a validator that refuses parts of a message that have another type than these."""

    def check(part: Any) -> Any:
        part_type = part.get("type") if isinstance(part, dict) else None
        if isinstance(part, dict) and part_type not in types:
            readable = ", ".join(types)
            sentence = f": type {part_type!r:.40} cannot be read here; {readable} can"
            raise refusal(sentence, code="unsupported_content")
        return part

    return BeforeValidator(check)


# -- a conversation, its tools, and the schema that the prompt may have ------------------------


Messages = list[dict[str, Any]]


class Conversing(Body):
    """A request with a conversation, in any protocol."""

    schema_in_prompt: Annotated[
        bool, doc("ours: false keeps the schema of the format out of the first message")
    ] = True
    _use: ToolUse | None = None

    def use(self, service: Service) -> ToolUse:
        """Return the request's tools, made at the first call; InputError for bad tools.

        The first call parses all tools, and so must run in a thread.
        """
        self._use = self._use or self._make_use(service)
        return self._use

    def _make_use(self, service: Service) -> ToolUse:
        raise NotImplementedError

    def wish(self, service: Service) -> ThinkingWish:  # noqa: ARG002 - others need it
        """Return the thinking settings of the request."""
        return NO_WISH

    @property
    def use_notes(self) -> Sequence[str]:
        """Notes on how the fields of tools and thinking were understood."""
        return self._use.notes if self._use else ()

    def conversation(self) -> Messages:
        """Return the messages in the form that chat templates take."""
        raise NotImplementedError

    def keywords(self) -> dict[str, Any]:
        """Return the keywords that the client gave."""
        raise NotImplementedError

    @property
    def own_schema(self) -> Any:
        """The JSON schema that the client gave for the text; None without one."""
        raise NotImplementedError

    @property
    def schema_shown(self) -> bool:
        """Whether the prompt contains the schema."""
        return self.schema_in_prompt and self.own_schema is not None

    def shown_conversation(self, tools: Sequence[Tool]) -> Messages:
        """Return the conversation, with the schema if the prompt should contain it."""
        messages = self.conversation()
        return with_schema(messages, self.own_schema, tools) if self.schema_shown else messages

    @property
    def goes_on(self) -> bool:
        """Whether the answer continues the last message."""
        return False

    async def ids(self, service: Service) -> list[int]:
        """Return the token ids of the conversation in the model's chat template."""
        # A thread does it: 32,000 messages take 0.4 s, the largest tools 0.1 s.
        messages = await asyncio.to_thread(lambda: self.shown_conversation(self.use(service).tools))
        use = self.use(service)
        prompt_ids = await service.chat_ids(
            messages, use.tools, goes_on=self.goes_on, **use.variables
        )
        use.set_prompt(prompt_ids, messages[-1] if self.goes_on else None)
        return prompt_ids

    async def read(self, service: Service) -> Read:
        """Return the prompt, the keywords and the tools."""
        keywords = await asyncio.to_thread(self.keywords)
        return Read([await self.ids(service)], keywords, self.use(service))


# -- JSON: response_format of chats, text of responses -----------------------------------------


class PlainText(Body):
    """Any text."""

    type: Literal["text"]


class AnyObject(Body):
    """Any JSON object."""

    type: Literal["json_object"]


class NamedSchema(Body):
    """A JSON schema. The text is constrained to it, whatever ``strict`` says."""

    model_config = ConfigDict(extra="forbid", strict=True, serialize_by_alias=True)
    name: str = Field(description="ignored", pattern="^[A-Za-z0-9_-]{1,64}$")
    description: str | None = optional("ignored")
    schema_: dict[str, Any] = Field(alias="schema", description="of the text, which is JSON")
    strict: bool | None = optional("as if true: the text always has the schema")


class ChatSchema(Body):
    """JSON that a schema describes."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


class FlatSchema(NamedSchema):
    """JSON that a schema describes."""

    type: Literal["json_schema"]


ChatFormat = Annotated[PlainText | AnyObject | ChatSchema, Field(discriminator="type")]
FlatFormat = Annotated[PlainText | AnyObject | FlatSchema, Field(discriminator="type")]


class TextSettings(Body):
    """The form of a response's text."""

    format: FlatFormat | None = optional("text, or JSON")
    unsupported: ClassVar[Unsupported] = {
        "verbosity": (("medium",), "this server cannot set it; leave it out"),
    }


def schema_of(text_format: ChatFormat | FlatFormat | None) -> dict[str, Any] | None:
    """Return the JSON schema that a format asks for; None if any text will do."""
    if isinstance(text_format, ChatSchema):
        return text_format.json_schema.schema_
    if isinstance(text_format, FlatSchema):
        return text_format.schema_
    return {"type": "object"} if isinstance(text_format, AnyObject) else None


def constraint(
    field: str, text_format: ChatFormat | FlatFormat | None, keywords: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a format as the keyword json_schema, or {} for text.

    InputError if ``keywords`` has another constraint; ``field`` is the format's name.
    """
    if (schema := schema_of(text_format)) is None:
        return {}
    if conflicting := [name for name in KINDS if name in keywords]:
        raise InputError(field, f" and {conflicting[0]} exclude each other: give one")
    return {"json_schema": schema}


def text_settings(text: TextSettings | None) -> dict[str, Any]:
    """Return the settings of a response's text, which the answer repeats."""
    text_format = text.format if text and text.format else PlainText(type="text")
    return {"format": text_format.model_dump(exclude_none=True)}


# -- tools in requests and answers -------------------------------------------------------------


Tools = Annotated[list[dict[str, Any]], Field(fail_fast=True)]
Choice = str | dict[str, Any]


def arguments_of(call: str) -> dict[str, Any]:
    """Return a call's arguments as an object; of a call that was cut, the part that was written.

    Return {} for JSON that Python has no value for, such as 1e999, and for JSON that is no object.
    """
    try:
        value = from_json(call or "{}", allow_partial="trailing-strings")
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


class WithTools(Conversing):
    """A conversation whose answer may call tools, in OpenAI's forms."""

    tools: Tools | None = optional("what the answer may call")
    tool_choice: Choice | None = optional(
        "none, auto, required, a tool, or allowed_tools; default auto"
    )
    parallel_tool_calls: bool | None = optional(
        "whether an answer may have several calls; default true"
    )

    def _make_use(self, service: Service) -> ToolUse:
        if self.tools is None and self.tool_choice not in (None, "none", "auto"):
            raise InputError("tool_choice", " needs tools")
        parallel = self.parallel_tool_calls is not False
        return ToolUse(
            service.llm.model, self.tools or (), self.tool_choice, parallel, self.wish(service)
        )


def piece(delta: CallStart | Arguments, reader: AnswerReader) -> CallPiece:
    """Return the piece that a chat's event adds to a call: the first piece has the name."""
    is_function = reader.tool(delta.index).format is None
    content: dict[str, str] = {"arguments" if is_function else "input": ""}
    call: CallPiece = {"index": delta.index}
    if isinstance(delta, CallStart):
        call |= {"id": delta.id, "type": "function" if is_function else "custom"}
        content = {"name": delta.tool.name, **content}
    else:
        content = dict.fromkeys(content, delta.text)
    return {**call, "function": content} if is_function else {**call, "custom": content}


def finish_reason(use: ToolUse, reader: AnswerReader, end: Ended) -> ChatReason:
    """Return OpenAI's finish reason: "tool_calls" for a call, unless the client named the tool."""
    reason = answers.finish_reason(end)
    if reason == "stop" and reader.has_called and not use.choice.is_named:
        return "tool_calls"
    return reason
