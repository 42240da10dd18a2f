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


# -- the server --------------------------------------------------------------------------------


class Model(TypedDict):
    """A name that requests may use for the model."""

    id: str
    object: Literal["model"]
    created: Annotated[int, Field(description="when it was loaded, in seconds of the epoch")]
    owned_by: Literal["cutaway"]
    root: Annotated[str, Field(description="the model's own name")]
    max_model_len: Annotated[int, Field(description="most tokens of a sequence, prompt included")]


class Models(TypedDict):
    """All names of the model."""

    object: Literal["list"]
    data: list[Model]


class Health(TypedDict):
    """The engine is alive."""

    status: Literal["ok"]


class Ready(TypedDict):
    """The server takes requests."""

    status: Literal["ready"]


class Fault(TypedDict):
    """Why a request failed."""

    message: Annotated[str, Field(description="one sentence that names the field and the fix")]
    type: Literal[
        "invalid_request_error",
        "authentication_error",
        "permission_error",
        "not_found_error",
        "rate_limit_error",
        "server_error",
    ]
    param: Annotated[str | None, Field(description="the field, where there is one")]
    code: Annotated[str | None, Field(description="an identifier for programs")]


class Error(TypedDict):
    """An error response; in a stream, the last event."""

    error: Fault
