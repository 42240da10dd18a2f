"""The JSON of ``/v1/responses``; see ``schemas``."""

from typing import Annotated, Any, Literal, NotRequired

from typing_extensions import TypedDict

from cutaway.server.body import doc
from cutaway.server.http.errors import Fault
from cutaway.server.shared import (
    ChatToken,
    InForce,
    PromptIds,
    SettingsAndEnding,
    TokenIds,
    Traced,
)

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
