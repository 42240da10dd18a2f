"""How answers without text look, and refusals: shapes for the document at ``/openapi.json``.

Knows names and types, as ``shapes`` does.
"""

from typing import Annotated, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

# -- tokens ------------------------------------------------------------------------------------


class Tokenized(TypedDict):
    """A text's tokens."""

    tokens: list[int]
    count: int
    max_model_len: Annotated[int, Field(description="tokens that a text can have at most")]
    token_strs: NotRequired[Annotated[list[str], Field(description="their names")]]


class Detokenized(TypedDict):
    """The text of tokens."""

    prompt: str


# -- the server --------------------------------------------------------------------------------


class Model(TypedDict):
    """A name by which the model may be asked for."""

    id: str
    object: Literal["model"]
    created: Annotated[int, Field(description="when it was loaded, in seconds of the epoch")]
    owned_by: Literal["cutaway"]
    root: Annotated[str, Field(description="the model's own name")]
    max_model_len: Annotated[int, Field(description="tokens that a text can have at most")]


class Models(TypedDict):
    """All of them."""

    object: Literal["list"]
    data: list[Model]


class Health(TypedDict):
    """The engine is alive."""

    status: Literal["ok"]


class Ready(TypedDict):
    """The server takes requests."""

    status: Literal["ready"]


class Fault(TypedDict):
    """Why a request was refused."""

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
    code: Annotated[str | None, Field(description="a word that programs compare")]


class Error(TypedDict):
    """The answer to a request that was refused; in a stream, an event after which nothing comes."""

    error: Fault
