"""The input of ``/v1/responses``: a text or items, as the messages of a conversation.

Knows the forms in which clients say something, and in which they send back earlier answers.
Refuses to know templates.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from cutaway.server.http.errors import ApiError
from cutaway.server.openai.request_models import Body, Unsupported


class InputText(Body):
    """A part of what somebody said."""

    type: Literal["input_text"]
    text: str


class OutputText(Body):
    """A part of an earlier answer."""

    type: Literal["output_text"]
    text: str
    logprobs: list[Any] | None = Field(None, description="as it was answered; is not read again")
    unsupported: ClassVar[Unsupported] = {
        "annotations": (([],), "only text is read and written here; leave it out"),
    }


def _of_text(part: Any) -> Any:
    """Parts that are no text are refused by name."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in ("input_text", "output_text"):
        raise ApiError(
            400, f"content: a part of type {kind!r:.40} cannot be read; only text can",
            param="input", code="unsupported_content",
        )  # fmt: skip
    return part


Part = Annotated[InputText | OutputText, Field(discriminator="type"), BeforeValidator(_of_text)]


class InputMessage(Body):
    """What somebody said. Developers speak as the system: templates know no other name."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[Part]
    id: str | None = Field(None, description="as it was answered; nothing is looked up by it")
    status: Literal["in_progress", "completed", "incomplete"] | None = Field(
        None, description="as it was answered; a message that was cut off is read as it is"
    )
    unsupported: ClassVar[Unsupported] = {
        "phase": ((), "templates have no place for it; leave it out")
    }

    def plain(self) -> dict[str, str]:
        """As templates know it."""
        role = "system" if self.role == "developer" else self.role
        said = self.content
        text = said if isinstance(said, str) else "".join(part.text for part in said)
        return {"role": role, "content": text}


def _items(value: Any) -> Any:
    """A text is said by the user; items that are no messages are refused by name."""
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
