"""The blocks of which messages are made in Anthropic's form.

Knows the fields of each kind, and which kinds cannot be read here. Refuses to know what templates
make of them: ``conversation`` does.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from cutaway.server.body import Body, Unsupported
from cutaway.server.http.errors import ApiError
from cutaway.server.shared.messages import ONLY_TEXT

CacheControl = Annotated[
    dict[str, Any] | None,
    Field(description="asks for nothing: whatever was read before is found again"),
]


class TextBlock(Body):
    """Text."""

    type: Literal["text"]
    text: str
    cache_control: CacheControl = None
    unsupported: ClassVar[Unsupported] = {"citations": (([],), ONLY_TEXT)}


def readable(*types: str) -> BeforeValidator:
    """Refuses blocks of other types than these by name."""

    def check(block: Any) -> Any:
        given = block.get("type") if isinstance(block, dict) else None
        if isinstance(block, dict) and given not in types:
            raise ApiError(
                400, f"content: a block of type {given!r:.40} cannot be read here; "
                f"{', '.join(types)} can", param="messages", code="unsupported_content",
            )  # fmt: skip
        return block

    return BeforeValidator(check)


Texts = str | list[Annotated[TextBlock, readable("text")]]


class CallBlock(Body):
    """A call in an earlier answer."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    cache_control: CacheControl = None
    unsupported: ClassVar[Unsupported] = {
        "caller": (({"type": "direct"},), "tools are called by the model alone; leave it out")
    }


class ResultBlock(Body):
    """What a call gave."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: Texts | None = None
    is_error: bool | None = Field(
        None, description="is told by the content; without content the model reads: error"
    )
    cache_control: CacheControl = None


class ThoughtBlock(Body):
    """What was thought before an earlier answer, for templates that have a place for it."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = Field(None, description="is not looked at")


UserBlock = Annotated[
    TextBlock | ResultBlock, Field(discriminator="type"), readable("text", "tool_result")
]
AssistantBlock = Annotated[
    TextBlock | CallBlock | ThoughtBlock,
    Field(discriminator="type"),
    readable("text", "tool_use", "thinking"),
]
