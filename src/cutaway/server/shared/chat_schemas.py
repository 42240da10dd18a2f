"""The JSON of chats; see ``schemas``."""

from typing import Annotated, Literal, NotRequired

from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

from cutaway.server.body import doc
from cutaway.server.shared.schemas import (
    Choice,
    ChoiceEnding,
    CompletionUsage,
    Ending,
    InForce,
    PromptIds,
    PromptLogprobs,
    TokenIds,
    Traced,
    _Frame,
)

ChatReason = Literal["stop", "length", "tool_calls"]


class LikelyToken(TypedDict):
    """A token and its natural log-probability."""

    token: str
    logprob: float
    bytes: Annotated[list[int] | None, doc("of the token, which may be part of a character")]


class ChatToken(LikelyToken):
    """A token, and the likeliest in its place."""

    top_logprobs: list[LikelyToken]


class ChatLogprobs(TypedDict):
    """Of each token."""

    content: list[ChatToken]
    refusal: None


class CalledFunction(TypedDict):
    """A function and its arguments."""

    name: str
    arguments: Annotated[str, doc("JSON")]


class CalledCustom(TypedDict):
    """A custom tool and its text."""

    name: str
    input: str


class FunctionCall(TypedDict):
    """A call of a function."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class CustomCall(TypedDict):
    """A call of a custom tool."""

    id: str
    type: Literal["custom"]
    custom: CalledCustom


class ChatMessage(TypedDict):
    """The answer."""

    role: Literal["assistant"]
    content: Annotated[str | None, doc("null where there are only calls")]
    refusal: None
    reasoning_content: NotRequired[
        Annotated[str, doc("what was thought before a text of a grammar")]
    ]
    tool_calls: NotRequired[list[FunctionCall | CustomCall]]


class ChatChoice(TypedDict):
    """One completion."""

    index: Choice
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatReason
    cutaway: ChoiceEnding
    token_ids: NotRequired[TokenIds]
    prompt_token_ids: NotRequired[PromptIds]


class ChatCompletion(_Frame):
    """Answers to a conversation."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: CompletionUsage
    cutaway: InForce
    prompt_logprobs: NotRequired[PromptLogprobs]


class CallPiece(TypedDict):
    """What is added to a call: the first piece has the name, later ones more of its arguments."""

    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["function", "custom"]]
    function: NotRequired[dict[str, str]]
    custom: NotRequired[dict[str, str]]


class ChatDelta(TypedDict):
    """What is added to a message."""

    role: NotRequired[Literal["assistant"]]
    content: NotRequired[str]
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[CallPiece]]


class ChatPiece(TypedDict):
    """What an event adds to one choice."""

    index: Choice
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: ChatReason | None
    cutaway: NotRequired[Ending | Traced]
    token_ids: NotRequired[TokenIds]
    prompt_token_ids: NotRequired[PromptIds]


class ChatChunk(_Frame):
    """An event. The first has the settings, the last the usage if that was asked for."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatPiece]
    usage: NotRequired[CompletionUsage | None]
    cutaway: NotRequired[InForce]
