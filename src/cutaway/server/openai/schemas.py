"""How answers with text look: the shapes that the document at ``/openapi.json`` shows.

Knows names and types, for readers and for programs that write clients. Refuses to make answers:
nothing is checked against these while the server runs, only in its tests. A field that OpenAI
does not have says "ours".
"""

from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

# -- what all texts have -----------------------------------------------------------------------

Reason = Literal["stop", "length"]
Record = Annotated[dict[str, Any], Field(description="a record of a trace, as docs/trace.md says")]
Choice = Annotated[int, Field(description="which text: the samples of the first prompt, then …")]
TokenIds = Annotated[list[int], Field(description="ours: what was written")]
PromptIds = Annotated[list[int], Field(description="ours: what was read")]


class PromptDetails(TypedDict):
    """Of the prompts' tokens."""

    cached_tokens: Annotated[int, Field(description="that were not computed again")]


class CompletionDetails(TypedDict):
    """Of the written tokens."""

    accepted_prediction_tokens: Annotated[int, Field(description="guessed ahead, and right")]
    rejected_prediction_tokens: Annotated[int, Field(description="guessed ahead, and wrong")]


class Usage(TypedDict):
    """Tokens in and out, of all texts; a prompt counts once, whatever n is."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class InForce(TypedDict):
    """Ours: every setting in force that can be asked for; what to send for the same text again."""

    params: Annotated[dict[str, Any], Field(description="settings by name")]
    params_source: Annotated[
        dict[str, Literal["given", "default", "server", "chosen"]],
        Field(description="where each came from; chosen: a seed drawn by the server"),
    ]
    chain: Annotated[
        list[dict[str, Any]],
        Field(description="the stages between logits and token, in order, each with its rule"),
    ]
    seeds: Annotated[list[int], Field(description="of each text")]


class TextTiming(TypedDict):
    """How long a text took."""

    queue_s: Annotated[float | None, Field(description="seconds until it began")]
    ttft_s: Annotated[float | None, Field(description="seconds until its first token")]
    decode_tokens_per_s: Annotated[float | None, Field(description="after its first token")]


class Ending(TypedDict):
    """Ours: how a text ended."""

    finish_reason: Literal["end_token", "stop_string", "stop_token", "max_tokens", "context_full"]
    matched: Annotated[
        str | int | None, Field(description="the stop string, or the token, that ended it")
    ]
    fingerprint: Annotated[
        str,
        Field(
            pattern="^[0-9a-f]{16}$",
            description="equal fingerprints mean equal logits of all steps, bit for bit",
        ),
    ]
    notes: Annotated[list[str], Field(description="what may be wrong with the prompt")]
    timing: TextTiming
    trace: NotRequired[list[Record]]


class Traced(TypedDict):
    """Ours: what a trace says of one step."""

    trace: list[Record]


class _Frame(TypedDict):
    """What every answer with text has."""

    id: str
    created: Annotated[int, Field(description="seconds of the epoch")]
    model: str
    system_fingerprint: Annotated[str, Field(description="what computed it, and which weights")]


# -- completions -------------------------------------------------------------------------------


class CompletionLogprobs(TypedDict):
    """Of each token its name, its logarithm, the likeliest beside it, and where it begins."""

    tokens: list[str]
    token_logprobs: Annotated[
        list[float | None], Field(description="natural; null for the first token of a prompt")
    ]
    top_logprobs: list[dict[str, float] | None]
    text_offset: Annotated[list[int], Field(description="characters of the text before it")]


class CompletionChoice(TypedDict):
    """One text."""

    index: Choice
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Reason
    cutaway: Ending
    token_ids: NotRequired[TokenIds]
    prompt_token_ids: NotRequired[PromptIds]


class Completion(_Frame):
    """Texts that continue prompts."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: Usage
    cutaway: InForce


class CompletionPiece(TypedDict):
    """What is added to one text."""

    index: Choice
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Reason | None
    cutaway: NotRequired[Ending | Traced]
    token_ids: NotRequired[TokenIds]
    prompt_token_ids: NotRequired[PromptIds]


class CompletionChunk(_Frame):
    """An event. The first has the settings, the last the usage if that was asked for."""

    object: Literal["text_completion"]
    choices: list[CompletionPiece]
    usage: NotRequired[Usage | None]
    cutaway: NotRequired[InForce]


# -- chat --------------------------------------------------------------------------------------


class LikelyToken(TypedDict):
    """A token and its natural logarithm."""

    token: str
    logprob: float
    bytes: Annotated[
        list[int] | None, Field(description="its own, also where they are part of a character")
    ]


class ChatToken(LikelyToken):
    """A written token, and the likeliest in its place."""

    top_logprobs: list[LikelyToken]


class ChatLogprobs(TypedDict):
    """Of each token."""

    content: list[ChatToken]
    refusal: None


class ChatMessage(TypedDict):
    """The answer."""

    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(TypedDict):
    """One text."""

    index: Choice
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: Reason
    cutaway: Ending
    token_ids: NotRequired[TokenIds]
    prompt_token_ids: NotRequired[PromptIds]


class ChatCompletion(_Frame):
    """Answers to a conversation."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Usage
    cutaway: InForce


class ChatDelta(TypedDict):
    """What is added to a message."""

    role: NotRequired[Literal["assistant"]]
    content: NotRequired[str]


class ChatPiece(TypedDict):
    """What is added to one text."""

    index: Choice
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: Reason | None
    cutaway: NotRequired[Ending | Traced]
    token_ids: NotRequired[TokenIds]
    prompt_token_ids: NotRequired[PromptIds]


class ChatChunk(_Frame):
    """An event. The first has the settings, the last the usage if that was asked for."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatPiece]
    usage: NotRequired[Usage | None]
    cutaway: NotRequired[InForce]
