"""The JSON of tokens, the server's state, and errors; see ``schemas``."""

from typing import Annotated, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

from cutaway.server.http.errors import Error, Fault

__all__ = [
    "Detokenized", "Error", "Fault", "Health", "Model", "Models", "Ready", "Tokenized",
]  # fmt: skip

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
