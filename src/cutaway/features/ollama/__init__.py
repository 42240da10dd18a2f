"""Ollama's API, and the JSON of its answers, whole and line by line; see ``server.shared``."""

from typing import Annotated, Any, Literal, NotRequired

from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

from cutaway.server.body import doc
from cutaway.server.shared import ChatToken, SettingsAndEnding


class EndingWithThought(SettingsAndEnding):
    """Ours: the settings, how the text ended, and what Ollama's own figures leave out."""

    reasoning_tokens: Annotated[int, doc("of the new tokens, those of the thought")]


Reason = Literal["stop", "length", "load", "unload"]
Time = Annotated[str, doc("RFC 3339")]
Nanoseconds = Annotated[int, doc("nanoseconds")]
Loading = Annotated[int, doc("nanoseconds; 0: the model was loaded")]


class OllamaFunction(TypedDict):
    """A function and its arguments."""

    index: Annotated[int, doc("of the call among the answer's")]
    name: str
    arguments: dict[str, Any]


class OllamaCall(TypedDict):
    """A whole call."""

    id: str
    function: OllamaFunction


class OllamaMessage(TypedDict):
    """The answer, or what is new of it."""

    role: Literal["assistant"]
    content: str
    thinking: NotRequired[str]
    tool_calls: NotRequired[list[OllamaCall]]


class _Line(TypedDict):
    model: str
    created_at: Time
    done: Annotated[bool, doc("whether it is the last, which has the figures")]
    done_reason: NotRequired[Annotated[Reason, doc("load, unload: the request had no prompt")]]
    logprobs: NotRequired[list[ChatToken]]
    total_duration: NotRequired[Nanoseconds]
    load_duration: NotRequired[Loading]
    prompt_eval_count: NotRequired[Annotated[int, doc("tokens of the prompt")]]
    prompt_eval_duration: NotRequired[Nanoseconds]
    eval_count: NotRequired[Annotated[int, doc("new tokens")]]
    eval_duration: NotRequired[Nanoseconds]
    cutaway: NotRequired[EndingWithThought]


class OllamaChat(_Line):
    """An answer to a conversation; as a line, what is new of it."""

    message: OllamaMessage


class OllamaGenerated(_Line):
    """An answer to a prompt; as a line, what is new of it."""

    response: str
    thinking: NotRequired[str]
    context: NotRequired[
        Annotated[list[int], doc("of prompt and answer, to continue from; not with raw")]
    ]


class OllamaEmbedded(TypedDict):
    """A vector of each text."""

    model: str
    embeddings: list[list[float]]
    total_duration: Nanoseconds
    load_duration: Loading
    prompt_eval_count: int


class OllamaVector(TypedDict):
    """The vector of a text."""

    embedding: list[float]


class OllamaDetails(TypedDict):
    """What a model is."""

    parent_model: str
    format: Literal["gguf"]
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: Annotated[str, doc("of most of its bytes")]


class OllamaModel(TypedDict):
    """A name of the model."""

    name: str
    model: str
    modified_at: Annotated[Time, doc("when it was loaded")]
    size: Annotated[int, doc("bytes of all weights")]
    digest: Annotated[str, doc("SHA-256 of the weights")]
    details: OllamaDetails


class OllamaTags(TypedDict):
    """All names of the model."""

    models: list[OllamaModel]


class OllamaRunning(TypedDict):
    """A model in memory."""

    name: str
    model: str
    size: Annotated[
        int, doc("bytes of all weights; with keys and values if models are loaded on demand")
    ]
    digest: str
    details: OllamaDetails
    expires_at: Annotated[Time, doc("when it is unloaded if idle; far away: never")]
    size_vram: Literal[0]
    context_length: Annotated[int, doc("tokens of a text, prompt included")]


class OllamaProcesses(TypedDict):
    """What is in memory."""

    models: list[OllamaRunning]


class OllamaShown(TypedDict):
    """What is known of the model."""

    modelfile: str
    parameters: str
    template: Annotated[str, doc("in Jinja, as its file has it")]
    license: str
    details: OllamaDetails
    model_info: dict[str, Any]
    capabilities: list[Literal["completion", "tools", "insert", "thinking", "embedding"]]
    modified_at: Time


class OllamaVersion(TypedDict):
    """Which release of Ollama has this API."""

    version: str
    cutaway: Annotated[str, doc("ours: our own release")]
