"""The JSON of completions and chats as types, for mypy and the document at ``/openapi.json``.

The types of Anthropic's, Ollama's and llama.cpp's APIs use some of these.

A field that OpenAI does not have is described as "ours".
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired

from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

from cutaway.server.body import doc

# -- common -----------------------------------------------------------------------

Reason = Literal["stop", "length"]
OwnReason = Literal[
    "end_token", "stop_string", "stop_token", "max_tokens", "context_full", "constraint", "scored",
]  # fmt: skip
Source = Literal["given", "default", "server", "chosen"]
Record = Annotated[dict[str, Any], doc("a record of a trace, as docs/trace.md says")]
Choice = Annotated[int, doc("the samples of the first prompt, then those of the second, …")]
TokenIds = Annotated[list[int], doc("ours: the new tokens")]
PromptIds = Annotated[list[int], doc("ours: the prompt")]


class PromptDetails(TypedDict):
    """What became of the prompt tokens."""

    cached_tokens: Annotated[int, doc("found in the prefix cache")]


class CompletionDetails(TypedDict):
    """What became of the completion tokens."""

    accepted_prediction_tokens: Annotated[int, doc("draft tokens that were accepted")]
    rejected_prediction_tokens: Annotated[int, doc("draft tokens that were rejected")]
    reasoning_tokens: NotRequired[Annotated[int, doc("of a chat: tokens of thoughts")]]


class CompletionUsage(TypedDict):
    """Tokens in and out, of all choices; a prompt counts once, whatever n is."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class SamplesEstimate(TypedDict):
    """Ours: what n texts under a constraint tell about the model; natural logarithms."""

    n: int
    log_probability: Annotated[float, doc("that the model keeps to the constraint without it")]
    probability: float
    kl: Annotated[float, doc("of the constrained draw from the model's own over what is allowed")]
    effective_n: Annotated[float, doc("the effective sample size")]


class InForce(TypedDict):
    """Ours: all settings in force; sent as fields, they give the same text again."""

    params: Annotated[dict[str, Any], doc("settings by name")]
    params_source: Annotated[
        dict[str, Source], doc("where each came from; chosen: a seed drawn by the server")
    ]
    chain: Annotated[
        list[Mapping[str, Any]],
        doc("the stages between logits and token, in order, each with its rule"),
    ]
    seeds: Annotated[list[int], doc("of each choice")]
    schema_in_prompt: Annotated[
        bool, doc("whether the first message was given the schema of the answer")
    ]
    replica: NotRequired[Annotated[str, doc("of a server with replicas: which one, and why")]]
    constraint_estimates: NotRequired[
        Annotated[
            list[SamplesEstimate | None],
            doc("of each prompt, in whole answers with n above 1 under a constraint"),
        ]
    ]


class TextTiming(TypedDict):
    """Times of one choice."""

    queue_s: Annotated[float | None, doc("seconds in the queue")]
    ttft_s: Annotated[float | None, doc("seconds until its first token")]
    decode_tokens_per_s: Annotated[float | None, doc("after its first token")]


class GrammarReport(TypedDict):
    """Ours: the grammar of a text, and how the text kept to it."""

    kind: Literal["json_schema", "regex", "grammar", "choice"]
    sha256: Annotated[str, doc("of the grammar")]
    forced: Annotated[int, doc("tokens that were the only ones it allowed")]
    complete: Annotated[bool, doc("whether the text is complete, not cut")]
    neg_log_z: Annotated[
        float | None, doc("minus ln of the probability mass that it left; with n above 1, or trace")
    ]


class AlignedChoice(TypedDict):
    """Ours: how one of n texts was chosen."""

    chosen: Annotated[int, doc("which it is, from 0")]
    neg_log_z: Annotated[list[float], doc("of each text")]
    weights: Annotated[list[float], doc("of each text; their sum is 1")]


class CanvasCost(TypedDict):
    """Ours: the cost of a canvas."""

    passes: int
    rows: Annotated[int, doc("computed rows of all passes")]


class Ending(TypedDict):
    """Ours: how one choice ended."""

    finish_reason: OwnReason
    matched: Annotated[str | int | None, doc("the stop string, or the token, that ended it")]
    fingerprint: Annotated[
        str,
        doc(
            "equal fingerprints mean equal logits of all steps, bit for bit",
            pattern="^[0-9a-f]{16}$",
        ),
    ]
    notes: Annotated[list[str], doc("warnings about the prompt, and what was checked")]
    timing: TextTiming
    grammar: NotRequired[GrammarReport]
    canvas: NotRequired[CanvasCost]
    replicas: NotRequired[
        Annotated[list[str], doc("of a server with replicas: those that wrote the text, in order")]
    ]
    resumed: NotRequired[Annotated[int, doc("how many times another replica continued the text")]]
    trace: NotRequired[list[Record]]


class ChoiceEnding(Ending):
    """Ours: how a choice of a whole answer ended."""

    aligned: NotRequired[AlignedChoice]


class SettingsAndEnding(InForce, Ending):
    """Ours: the settings in force, and how the text ended."""


class Traced(TypedDict):
    """Ours: the trace records of one step."""

    trace: list[Record]


class _Frame(TypedDict):
    """Fields of every response with text."""

    id: str
    created: Annotated[int, doc("seconds of the epoch")]
    model: str
    system_fingerprint: Annotated[
        str, doc("the arithmetic, which releases share, the backend and the weights")
    ]


# -- completions -------------------------------------------------------------------------------


class Infilled(TypedDict):
    """Ours: how the text before a suffix was found."""

    method: Annotated[
        Literal["tokens", "canvas", "bayes"],
        doc(
            "by fill-in-the-middle tokens, as a canvas between both, or chosen among continuations"
        ),
    ]
    drawn: Annotated[int | None, doc("continuations that were written")]
    candidates: Annotated[int | None, doc("prefixes of them that were weighed")]
    share: Annotated[float | None, doc("of the chosen one in the weight of all")]
    logprob: Annotated[float | None, doc("natural, of the suffix after the text")]


class CompletionEnding(ChoiceEnding):
    """Ours: how a choice ended; a stream lacks what only whole answers can have."""

    between: NotRequired[Infilled]


class CompletionLogprobs(TypedDict):
    """Each token's text, log-probability and offset, and the likeliest tokens in its place."""

    tokens: list[str]
    token_logprobs: Annotated[
        list[float | None], doc("natural; null for the first token of a prompt")
    ]
    top_logprobs: list[dict[str, float] | None]
    text_offset: Annotated[list[int], doc("characters of the text before it")]


class PromptToken(TypedDict):
    """A token in a prompt, or one that is likely in its place."""

    logprob: Annotated[float, doc("natural")]
    rank: Annotated[int, doc("1 is the likeliest")]
    decoded_token: str


PromptLogprobs = Annotated[
    list[dict[str, PromptToken] | None],
    doc("of each token of the prompt, by token id; null for the first"),
]


class CompletionChoice(TypedDict):
    """One completion."""

    index: Choice
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Reason
    cutaway: CompletionEnding
    prompt_logprobs: NotRequired[PromptLogprobs]
    token_ids: NotRequired[TokenIds]
    prompt_token_ids: NotRequired[PromptIds]


class TextCompletion(_Frame):
    """Continuations of the prompts."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: CompletionUsage
    cutaway: InForce


class CompletionPiece(TypedDict):
    """What an event adds to one choice."""

    index: Choice
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Reason | None
    cutaway: NotRequired[CompletionEnding | Traced]
    token_ids: NotRequired[TokenIds]
    prompt_token_ids: NotRequired[PromptIds]


class CompletionChunk(_Frame):
    """An event. The first has the settings, the last the usage if asked for."""

    object: Literal["text_completion"]
    choices: list[CompletionPiece]
    usage: NotRequired[CompletionUsage | None]
    cutaway: NotRequired[InForce]


# -- chats -------------------------------------------------------------------------------------


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
    """The log-probability of each token, and the likeliest in its place."""

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
    """What is added to a call: its name first, then pieces of its arguments."""

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
    """An event. The first has the settings, the last the usage if asked for."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatPiece]
    usage: NotRequired[CompletionUsage | None]
    cutaway: NotRequired[InForce]
