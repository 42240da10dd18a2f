"""Anthropic's API: the JSON of answers (see ``server.shared``), and the blocks of requests."""

from typing import Annotated, Any, ClassVar, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

from cutaway.server.body import Body, Unsupported, doc, optional
from cutaway.server.http.errors import MessagesFault
from cutaway.server.shared import (
    Ending,
    InForce,
    PromptIds,
    SettingsAndEnding,
    TokenIds,
    Traced,
)
from cutaway.server.shared.conversation import ONLY_TEXT, only_types

StopReason = Literal[
    "end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"
]


class TextContent(TypedDict):
    """A text of the model."""

    type: Literal["text"]
    text: str
    citations: None


class ThoughtContent(TypedDict):
    """The thought before an answer."""

    type: Literal["thinking"]
    thinking: str
    signature: Annotated[str, doc("empty: nothing is signed here")]


class CallContent(TypedDict):
    """A call of a tool."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: Annotated[
        dict[str, Any], doc("the arguments; of a call that was cut, as far as they came")
    ]


Content = TextContent | ThoughtContent | CallContent


class MessageUsage(TypedDict):
    """Tokens in and out; a prompt has as many as the first three together."""

    input_tokens: Annotated[int, doc("that were read")]
    cache_read_input_tokens: Annotated[int, doc("found in the prefix cache")]
    cache_creation_input_tokens: Annotated[
        Literal[0], doc("none is paid for: what is read is kept while there is room")
    ]
    output_tokens: int
    reasoning_tokens: Annotated[int, doc("ours: how many of these are of the thought")]


class MessageAnswered(TypedDict):
    """An answer to a conversation."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[Content]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage
    system_fingerprint: Annotated[str, doc("ours: what computes")]
    cutaway: InForce | SettingsAndEnding
    prompt_token_ids: NotRequired[PromptIds]
    token_ids: NotRequired[TokenIds]


class Delta(TypedDict):
    """What is added: to a block, or to the message as it ends."""

    type: NotRequired[Literal["text_delta", "thinking_delta", "input_json_delta"]]
    text: NotRequired[str]
    thinking: NotRequired[str]
    partial_json: NotRequired[str]
    stop_reason: NotRequired[StopReason]
    stop_sequence: NotRequired[str | None]


class MessageEvent(TypedDict):
    """An event: its kind, and what is new."""

    type: Literal[
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
        "ping",
        "error",
    ]
    message: NotRequired[MessageAnswered]
    index: NotRequired[Annotated[int, doc("of the block")]]
    content_block: NotRequired[Content]
    delta: NotRequired[Delta]
    usage: NotRequired[MessageUsage]
    token_ids: NotRequired[TokenIds]
    prompt_token_ids: NotRequired[PromptIds]
    cutaway: NotRequired[Ending | Traced]
    error: NotRequired[MessagesFault]


class InputTokens(TypedDict):
    """How many tokens a conversation has."""

    input_tokens: Annotated[int, doc("of the whole prompt, as the model reads it")]


# -- the blocks of a request ------------------------------------------------------------------


CacheControl = Annotated[dict[str, Any] | None, doc("ignored: every prefix is cached")]


class TextBlock(Body):
    """Text."""

    type: Literal["text"]
    text: str
    cache_control: CacheControl = None
    unsupported: ClassVar[Unsupported] = {"citations": (([],), ONLY_TEXT)}


Texts = str | Annotated[list[Annotated[TextBlock, only_types("text")]], Field(fail_fast=True)]


class CallBlock(Body):
    """A call in an earlier answer."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    cache_control: CacheControl = None
    unsupported: ClassVar[Unsupported] = {
        "caller": (({"type": "direct"},), "tools are called by the model alone; leave it out")
    }


class ResultBlock(Body):
    """What a call gave."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: Texts | None = None
    is_error: bool | None = optional("ignored with content; without content the model reads: error")
    cache_control: CacheControl = None


class ThoughtBlock(Body):
    """What was thought before an earlier answer, for templates that have a place for it."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = optional("ignored")


UserBlock = Annotated[
    TextBlock | ResultBlock, Field(discriminator="type"), only_types("text", "tool_result")
]
AssistantBlock = Annotated[
    TextBlock | CallBlock | ThoughtBlock,
    Field(discriminator="type"),
    only_types("text", "tool_use", "thinking"),
]
