"""Requests whose prompt is a conversation: messages, thinking, tools, and the JSON that is asked.

Knows what several protocols ask in fields of one form; each has its own messages beside.
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
from cutaway.server.body import Body, Unsupported, doc, optional, refused
from cutaway.server.service import Service
from cutaway.server.shared import CallPiece, ChatReason, answers
from cutaway.server.shared.fields import Read
from cutaway.text.grammar import KINDS
from cutaway.text.messages import with_schema
from cutaway.text.thinking import NO_WISH, ThinkingWish
from cutaway.text.tools import Arguments, CallStart, Tool

ONLY_TEXT = "only text is read and written here; leave it out"


class TurnFields(Body):
    """Where the prompt of a conversation ends, in vLLM's form."""

    add_generation_prompt: bool | None = optional(
        "whether the assistant's turn is opened: always, unless the last message goes on"
    )
    continue_final_message: bool = Field(
        False, description="ours, as in vLLM: the text goes on from the last, the assistant's"
    )

    @model_validator(mode="after")
    def _one_end(self) -> "TurnFields":
        if self.add_generation_prompt and self.continue_final_message:
            raise refused(
                ": continue_final_message opens no turn: leave one of them out",
                "add_generation_prompt",
            )
        if self.add_generation_prompt is False and not self.continue_final_message:
            raise refused(
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
        """The role as chat templates take it."""
        return "system" if self.role == "developer" else self.role

    def plain(self) -> dict[str, Any]:
        """The message as chat templates take it."""
        content = self.content
        if isinstance(content, list):
            content = "".join(part.text for part in content)
        return {"role": self.plain_role, "content": content}


def only_types(*types: str) -> BeforeValidator:
    """Refuses parts of messages of other types than these by name."""

    def check(part: Any) -> Any:
        given = part.get("type") if isinstance(part, dict) else None
        if isinstance(part, dict) and given not in types:
            readable = ", ".join(types)
            said = f": type {given!r:.40} cannot be read here; {readable} can"
            raise refused(said, code="unsupported_content")
        return part

    return BeforeValidator(check)


# -- thinking: vLLM's and llama-server's fields, beside OpenAI's own ---------------------------


NOTHING: dict[str, Any] = {}


class ThinkingFields(Body):
    """A budget of the thought, and variables of the template."""

    chat_template_kwargs: dict[str, Any] = Field(
        NOTHING, description="ours, as in vLLM: variables of the model's chat template"
    )
    thinking_token_budget: int | None = optional(
        "ours, as in vLLM: tokens of the thought at most; then it is closed", ge=0
    )
    thinking_budget_tokens: int | None = optional(
        "llama-server's name of thinking_token_budget; -1: no budget", ge=-1
    )

    @model_validator(mode="after")
    def _one_budget(self) -> "ThinkingFields":
        theirs = self.thinking_budget_tokens
        if theirs is not None and self.thinking_token_budget is not None:
            raise refused(" is thinking_token_budget: give one", "thinking_budget_tokens")
        return self

    def asked(self, think: bool | str | None, name: str) -> ThinkingWish:
        """The wish. think: whether or how much, in the field of this name."""
        tokens, called = self.thinking_token_budget, "thinking_token_budget"
        if self.thinking_budget_tokens is not None:
            called = "thinking_budget_tokens"
            tokens = None if self.thinking_budget_tokens < 0 else self.thinking_budget_tokens
        names = (name, called, "chat_template_kwargs")
        return ThinkingWish(think, tokens, self.chat_template_kwargs, names)


class EffortFields(ThinkingFields):
    """The same beside OpenAI's own field."""

    reasoning_effort: str | None = optional(
        "whether and how much the model thinks: none, or a level that its template knows"
    )

    def wish(self, service: Service) -> ThinkingWish:  # noqa: ARG002 - others need it
        """What it says of thinking."""
        return self.asked(self.reasoning_effort, "reasoning_effort")


# -- a conversation, its tools, and the schema that the prompt may show ------------------------


Messages = list[dict[str, Any]]


class Conversing(Body):
    """A request with a conversation, in any protocol."""

    schema_in_prompt: Annotated[
        bool, doc("ours: false keeps the schema of the format out of the first message")
    ] = True
    _use: ToolUse | None = None

    def use(self, service: Service) -> ToolUse:
        """Its tools, always the same; InputError for those that cannot be.

        The first call reads all of them, and is for a thread.
        """
        self._use = self._use or self._checked(service)
        return self._use

    def _checked(self, service: Service) -> ToolUse:
        raise NotImplementedError

    def wish(self, service: Service) -> ThinkingWish:  # noqa: ARG002 - others need it
        """What it says of thinking."""
        return NO_WISH

    @property
    def settled(self) -> Sequence[str]:
        """Notes on how its wish was read."""
        return self._use.notes if self._use else ()

    def conversation(self) -> Messages:
        """The messages as chat templates take them."""
        raise NotImplementedError

    def keywords(self) -> dict[str, Any]:
        """The keywords that were given."""
        raise NotImplementedError

    @property
    def own_schema(self) -> Any:
        """The JSON schema that the client gave for the text; None: none."""
        raise NotImplementedError

    @property
    def schema_shown(self) -> bool:
        """Whether the prompt has the schema."""
        return self.schema_in_prompt and self.own_schema is not None

    def shown(self, tools: Sequence[Tool]) -> Messages:
        """The conversation, with the schema if the prompt is to have it."""
        said = self.conversation()
        return with_schema(said, self.own_schema, tools) if self.schema_shown else said

    @property
    def goes_on(self) -> bool:
        """Whether the answer continues the last message."""
        return False

    async def ids(self, service: Service) -> list[int]:
        """The prompt in the model's template."""
        # Of 32,000 messages 0.4 s, of the largest tools 0.1 s.
        said = await asyncio.to_thread(lambda: self.shown(self.use(service).tools))
        use = self.use(service)
        found = await service.chat_ids(said, use.tools, goes_on=self.goes_on, **use.variables)
        use.set_prompt(found, said[-1] if self.goes_on else None)
        return found

    async def read(self, service: Service) -> Read:
        """The prompt, the keywords and the tools."""
        given = await asyncio.to_thread(self.keywords)
        return Read([await self.ids(service)], given, self.use(service))


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


def schema_of(asked: ChatFormat | FlatFormat | None) -> dict[str, Any] | None:
    """The schema of the text, if it is JSON."""
    if isinstance(asked, ChatSchema):
        return asked.json_schema.schema_
    if isinstance(asked, FlatSchema):
        return asked.schema_
    return {"type": "object"} if isinstance(asked, AnyObject) else None


def constraint(
    field: str, asked: ChatFormat | FlatFormat | None, given: Mapping[str, Any]
) -> dict[str, Any]:
    """The keyword that a format is, which must be alone among those ``given``."""
    if (schema := schema_of(asked)) is None:
        return {}
    if both := [name for name in KINDS if name in given]:
        raise InputError(field, f" and {both[0]} exclude each other: give one")
    return {"json_schema": schema}


def answered(text: TextSettings | None) -> dict[str, Any]:
    """The settings of a response's text, as the answer has them."""
    asked = text.format if text and text.format else PlainText(type="text")
    return {"format": asked.model_dump(exclude_none=True)}


# -- tools in requests and answers -------------------------------------------------------------


Tools = Annotated[list[dict[str, Any]], Field(fail_fast=True)]
Choice = str | dict[str, Any]


def arguments_of(call: str) -> dict[str, Any]:
    """A call's arguments as an object; of a call that was cut, as far as they came.

    Empty where Python has no value for what the schema lets pass, such as 1e999.
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

    def _checked(self, service: Service) -> ToolUse:
        if self.tools is None and self.tool_choice not in (None, "none", "auto"):
            raise InputError("tool_choice", " needs tools")
        parallel = self.parallel_tool_calls is not False
        return ToolUse(
            service.llm.model, self.tools or (), self.tool_choice, parallel, self.wish(service)
        )


def piece(delta: CallStart | Arguments, reader: AnswerReader) -> CallPiece:
    """What a chat's event adds to a call: the first piece has the name."""
    is_function = reader.tool(delta.index).format is None
    said: dict[str, str] = {"arguments" if is_function else "input": ""}
    made: CallPiece = {"index": delta.index}
    if isinstance(delta, CallStart):
        made |= {"id": delta.id, "type": "function" if is_function else "custom"}
        said = {"name": delta.tool.name, **said}
    else:
        said = dict.fromkeys(said, delta.text)
    return {**made, "function": said} if is_function else {**made, "custom": said}


def finish_reason(use: ToolUse, reader: AnswerReader, ended: Ended) -> ChatReason:
    """OpenAI's word: "tool_calls" where there is a call, unless the client named its tool."""
    reason = answers.finish_reason(ended)
    if reason == "stop" and reader.has_called and not use.choice.is_named:
        return "tool_calls"
    return reason
