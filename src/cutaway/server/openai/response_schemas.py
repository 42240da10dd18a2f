"""The JSON of ``/v1/responses``: the types of its answers, and the items of its inputs."""

from typing import Annotated, Any, ClassVar, Literal, NotRequired

from pydantic import BeforeValidator, Field
from typing_extensions import TypedDict

from cutaway.server.body import Body, Unsupported, doc, optional, refusal
from cutaway.server.http.errors import Fault
from cutaway.server.shared import (
    ChatToken,
    InForce,
    PromptIds,
    SettingsAndEnding,
    TokenIds,
    Traced,
)
from cutaway.server.shared.conversation import ONLY_TEXT, BaseMessage, content_text, only_types

MessageStatus = Literal["in_progress", "completed", "incomplete"]
_Status = Literal["in_progress", "completed", "incomplete", "failed"]


class OutputText(TypedDict):
    """The text of a message."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[ChatToken]


class OutputMessage(TypedDict):
    """A message of the model."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    status: MessageStatus
    content: list[OutputText]


class FunctionItem(TypedDict):
    """A call of a function."""

    id: str
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: Annotated[str, doc("JSON")]
    status: MessageStatus


class CustomItem(TypedDict):
    """A call of a custom tool."""

    id: str
    type: Literal["custom_tool_call"]
    call_id: str
    name: str
    input: str
    status: MessageStatus


class ReasoningText(TypedDict):
    """A thought."""

    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(TypedDict):
    """The thought before an answer."""

    id: str
    type: Literal["reasoning"]
    summary: list[Any]
    content: list[ReasoningText]
    status: MessageStatus


CallItem = FunctionItem | CustomItem
OutputItem = OutputMessage | ReasoningItem | CallItem


class InputDetails(TypedDict):
    """What became of the input tokens."""

    cached_tokens: Annotated[int, doc("found in the prefix cache")]
    cache_write_tokens: int


class OutputDetails(TypedDict):
    """What became of the output tokens."""

    reasoning_tokens: int


class ResponseUsage(TypedDict):
    """Tokens in and out."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class Incomplete(TypedDict):
    """Why the output ended early."""

    reason: Literal["max_output_tokens"]


class Failure(TypedDict):
    """What failed during generation."""

    code: Literal["server_error"]
    message: str


class Response(TypedDict):
    """An answer: a message, which has one part, or calls, or both."""

    id: str
    object: Literal["response"]
    created_at: Annotated[int, doc("seconds of the epoch")]
    completed_at: int | None
    model: str
    system_fingerprint: str
    status: _Status
    error: Failure | None
    incomplete_details: Incomplete | None
    instructions: str | None
    output: list[OutputItem]
    usage: ResponseUsage | None
    max_output_tokens: int | None
    temperature: float
    top_p: float
    top_logprobs: int
    metadata: dict[str, str]
    user: str | None
    safety_identifier: str | None
    prompt_cache_key: str | None
    background: Literal[False]
    max_tool_calls: None
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: None
    service_tier: Literal["default"]
    store: Annotated[bool, doc("whether it is kept, for previous_response_id")]
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    truncation: Literal["disabled"]
    cutaway: InForce | SettingsAndEnding
    prompt_token_ids: NotRequired[PromptIds]
    token_ids: NotRequired[TokenIds]


class ResponseDeleted(TypedDict):
    """An answer that is no longer kept."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class ResponseEvent(TypedDict):
    """An event: its kind, its number from 0, and what is new."""

    type: Literal[
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.custom_tool_call_input.delta",
        "response.custom_tool_call_input.done",
        "response.output_item.done",
        "response.completed",
        "response.incomplete",
        "response.failed",
        "error",
    ]
    sequence_number: int
    response: NotRequired[Response]
    output_index: NotRequired[int]
    content_index: NotRequired[int]
    item_id: NotRequired[str]
    item: NotRequired[OutputItem]
    part: NotRequired[OutputText]
    delta: NotRequired[str]
    text: NotRequired[str]
    name: NotRequired[str]
    arguments: NotRequired[str]
    input: NotRequired[str]
    logprobs: NotRequired[list[ChatToken]]
    token_ids: NotRequired[TokenIds]
    cutaway: NotRequired[Traced]
    error: NotRequired[Fault]
    code: NotRequired[str | None]
    message: NotRequired[str]
    param: NotRequired[str | None]


# -- the items of an input, which may be those of an earlier answer ------------------------------


class InputText(Body):
    """A part of a message."""

    type: Literal["input_text"]
    text: str


class EarlierText(Body):
    """A part of an earlier answer."""

    type: Literal["output_text"]
    text: str
    logprobs: list[Any] | None = optional("as it was answered; ignored")
    unsupported: ClassVar[Unsupported] = {
        "annotations": (([],), ONLY_TEXT),
    }


Part = Annotated[
    InputText | EarlierText,
    Field(discriminator="type"),
    only_types("input_text", "output_text"),
]


class BaseInputMessage(BaseMessage):
    """A message. Developer messages are given to templates as system messages, which all know."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    id: str | None = optional("as it was answered; nothing is looked up by it")
    status: MessageStatus | None = optional(
        "as it was answered; an incomplete answer is continued if it is last"
    )
    unsupported: ClassVar[Unsupported] = {
        "phase": ((), "templates have no place for it; leave it out")
    }


class InputMessage(BaseInputMessage):
    """A message of texts."""

    content: str | Annotated[list[Part], Field(fail_fast=True)]


class _Call(Body):
    call_id: str
    name: str
    id: str | None = optional("as it was answered; nothing is looked up by it")
    status: MessageStatus | None = optional("as it was answered")


class EarlierFunctionCall(_Call):
    """A call of a function in an earlier answer."""

    type: Literal["function_call"]
    arguments: str

    def call(self) -> dict[str, Any]:
        """Return the call in the form of chats."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.call_id, "type": "function", "function": function}


class EarlierCustomCall(_Call):
    """A call of a custom tool in an earlier answer."""

    type: Literal["custom_tool_call"]
    input: str

    def call(self) -> dict[str, Any]:
        """Return the call in the form of chats."""
        custom = {"name": self.name, "input": self.input}
        return {"id": self.call_id, "type": "custom", "custom": custom}


class CallResult(Body):
    """What a call gave."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: str
    output: str | Annotated[list[Part], Field(fail_fast=True)]
    id: str | None = optional("nothing is looked up by it")
    status: MessageStatus | None = optional("ignored")

    def plain(self) -> dict[str, Any]:
        """Return the message in the form that chat templates take."""
        return {"role": "tool", "tool_call_id": self.call_id, "content": content_text(self.output)}


class Thoughts(Body):
    """A part of them."""

    type: Literal["reasoning_text"]
    text: str


class EarlierThoughts(Body):
    """What was thought before an answer, as it was answered."""

    type: Literal["reasoning"]
    id: str | None = optional("as it was answered; nothing is looked up by it")
    summary: list[Any] | None = optional("empty: nothing is summarised here")
    content: list[Thoughts] | None = optional("all of it", fail_fast=True)
    status: MessageStatus | None = None
    unsupported: ClassVar[Unsupported] = {
        "encrypted_content": ((), "only thoughts of this server can be read; leave it out")
    }

    @property
    def text(self) -> str:
        """The whole thought."""
        return "".join(part.text for part in self.content or ())


_KINDS = (
    "message", "function_call", "custom_tool_call", "function_call_output",
    "custom_tool_call_output", "reasoning",
)  # fmt: skip


def as_items(value: Any) -> Any:
    """Return a string as a user's message; refuse an item of an unknown kind."""
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": value}]
    if not isinstance(value, list):
        raise refusal(" must be a string or a list of messages")
    items = [{"type": "message"} | i if isinstance(i, dict) else i for i in value]
    for i, item in enumerate(items):
        kind = item.get("type") if isinstance(item, dict) else None
        if isinstance(item, dict) and kind not in _KINDS:
            raise refusal(
                f": type {kind!r:.40} cannot be read here; messages, thoughts, calls "
                "and their results can", i, "unsupported_item",
            )  # fmt: skip
    return items


ConversationItem = (
    InputMessage | EarlierFunctionCall | EarlierCustomCall | CallResult | EarlierThoughts
)
"""An item of a conversation."""
Item = Annotated[ConversationItem, Field(discriminator="type")]
Items = Annotated[
    list[Item],
    Field(min_length=1, fail_fast=True),
    BeforeValidator(as_items, json_schema_input_type=str | list[Item]),
]
