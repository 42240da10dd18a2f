"""The input of ``/v1/responses``: a string or messages, earlier answers among them."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from cutaway.server.http.errors import ApiError
from cutaway.server.openai.messages import ONLY_TEXT, BaseMessage, text_parts
from cutaway.server.openai.request_models import Body, Unsupported


class InputText(Body):
    """A part of a message."""

    type: Literal["input_text"]
    text: str


class OutputText(Body):
    """A part of an earlier answer."""

    type: Literal["output_text"]
    text: str
    logprobs: list[Any] | None = Field(None, description="as it was answered; ignored")
    unsupported: ClassVar[Unsupported] = {
        "annotations": (([],), ONLY_TEXT),
    }


Part = Annotated[
    InputText | OutputText,
    Field(discriminator="type"),
    text_parts("input", "input_text", "output_text"),
]


class InputMessage(BaseMessage):
    """A message. Developer messages are given to templates as system messages, which all know."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[Part]
    id: str | None = Field(None, description="as it was answered; nothing is looked up by it")
    status: Literal["in_progress", "completed", "incomplete"] | None = Field(
        None, description="as it was answered; an incomplete message is read as it is"
    )
    unsupported: ClassVar[Unsupported] = {
        "phase": ((), "templates have no place for it; leave it out")
    }


def _items(value: Any) -> Any:
    """A string as a user's message; items other than messages are refused by name."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list):
        raise ApiError(400, "input must be a string or a list of messages", param="input")
    for i, item in enumerate(value):
        kind = item.get("type") if isinstance(item, dict) else None
        if kind not in (None, "message"):
            raise ApiError(
                400, f"input[{i}]: an item of type {kind!r:.40} cannot be read; only messages can",
                param="input", code="unsupported_item",
            )  # fmt: skip
    return value


Items = Annotated[
    list[InputMessage],
    Field(min_length=1),
    BeforeValidator(_items, json_schema_input_type=str | list[InputMessage]),
]
