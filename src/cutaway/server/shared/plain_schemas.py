"""The JSON of tokens, the server's state, and errors; see ``schemas``."""

from typing import Annotated, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

# -- tokens ------------------------------------------------------------------------------------


class Tokenized(TypedDict):
    """The token ids of a text."""

    tokens: list[int]
    count: int
    max_model_len: Annotated[int, Field(description="most tokens of a sequence, prompt included")]
    token_strs: NotRequired[Annotated[list[str], Field(description="their names")]]


class Detokenized(TypedDict):
    """The text of token ids."""

    prompt: str


class TokenizerInfo(TypedDict):
    """What clients need beside ``/tokenize``; null: there is none."""

    bos_token: str | None
    eos_token: str | None
    pad_token: Annotated[str | None, Field(description="texts are not padded: always null")]
    chat_template: Annotated[str | None, Field(description="in Jinja, as the model's file has it")]


# -- vectors -----------------------------------------------------------------------------------


class Vector(TypedDict):
    """Of one text."""

    object: Literal["embedding"]
    index: int
    embedding: Annotated[
        list[float] | str, Field(description="or base64 of float32, little-endian, if asked for")
    ]


class TokensRead(TypedDict):
    """Of all texts."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(TypedDict):
    """A vector of each text, and how it came about."""

    object: Literal["list"]
    data: list[Vector]
    model: str
    usage: TokensRead
    dimensions: Annotated[int, Field(description="ours, as are the next")]
    pooling: Literal["mean", "cls", "last"]
    pooling_from: Literal["files", "default", "asked"]
    normalized: Annotated[bool, Field(description="whether each vector has length 1")]
    normalized_from: Literal["files", "default", "asked"]
    truncated: Annotated[list[int], Field(description="which texts were cut")]


# -- filling in --------------------------------------------------------------------------------


class CandidateOfMask(TypedDict):
    """A candidate for one mask."""

    token_id: Annotated[int | None, Field(description="null for a target of several tokens")]
    token_ids: list[int]
    token: str
    text: str
    score: Annotated[float, Field(description="its probability")]


class TogetherInMasks(TypedDict):
    """Candidates for all masks together."""

    candidates: list[CandidateOfMask]
    score: float


class FilledIn(TypedDict):
    """A text's masks, each with its candidates, best first."""

    method: Annotated[
        Literal["masked", "bayes"],
        Field(description="the model's own answer, or Bayes' rule with a model that writes"),
    ]
    masks: list[list[CandidateOfMask]]
    joint: Annotated[list[TogetherInMasks], Field(description="where there are several masks")]
    covered: Annotated[
        float | None,
        Field(description="bayes: the share of all continuations that was considered"),
    ]


# -- the server --------------------------------------------------------------------------------


class ModelCard(TypedDict):
    """A name that requests may use for the model."""

    id: str
    object: Literal["model"]
    type: Annotated[Literal["model"], Field(description="for Anthropic's clients, as the next")]
    display_name: str
    created_at: Annotated[str, Field(description="RFC 3339")]
    created: Annotated[int, Field(description="when it was loaded, in seconds of the epoch")]
    owned_by: Literal["cutaway"]
    root: Annotated[str, Field(description="the model's own name")]
    max_model_len: Annotated[int, Field(description="most tokens of a sequence, prompt included")]
    attention: Annotated[
        str | int,
        Field(
            description="ours: which tokens a token attends to: causal, those before it; "
            "bidirectional, all; a number, all to the end of its block of this many tokens. But "
            "for causal, ask with denoise"
        ),
    ]
    parent: NotRequired[Annotated[str, Field(description="of an adapter: the model's name")]]
    loaded: NotRequired[
        Annotated[bool, Field(description="ours: of a model that is loaded on demand")]
    ]


class ModelList(TypedDict):
    """All names of the model."""

    object: Literal["list"]
    data: list[ModelCard]
    has_more: Annotated[Literal[False], Field(description="for Anthropic's clients, as the next")]
    first_id: str
    last_id: str


class Health(TypedDict):
    """The engine is alive."""

    status: Literal["ok"]


class Ready(TypedDict):
    """The server takes requests."""

    status: Literal["ready"]
