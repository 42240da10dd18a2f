"""The forms in which clients ask for JSON: ``response_format`` of chats, ``text`` of responses."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from cutaway.errors import InputError
from cutaway.server.body import Body, Unsupported, optional
from cutaway.text.grammar import KINDS


class PlainText(Body):
    """Any text."""

    type: Literal["text"]


class AnyObject(Body):
    """Any JSON object."""

    type: Literal["json_object"]


class NamedSchema(Body):
    """A JSON schema. The text is constrained to it, whatever ``strict`` says."""

    model_config = ConfigDict(extra="forbid", strict=True, serialize_by_alias=True)
    name: str = Field(description="ignored", pattern="^[A-Za-z0-9_-]{1,64}$")
    description: str | None = optional("ignored")
    schema_: dict[str, Any] = Field(alias="schema", description="of the text, which is JSON")
    strict: bool | None = optional("as if true: the text always has the schema")


class ChatSchema(Body):
    """JSON that a schema describes."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


class FlatSchema(NamedSchema):
    """JSON that a schema describes."""

    type: Literal["json_schema"]


ChatFormat = Annotated[PlainText | AnyObject | ChatSchema, Field(discriminator="type")]
FlatFormat = Annotated[PlainText | AnyObject | FlatSchema, Field(discriminator="type")]


class TextSettings(Body):
    """The form of a response's text."""

    format: FlatFormat | None = optional("text, or JSON")
    unsupported: ClassVar[Unsupported] = {
        "verbosity": (("medium",), "this server cannot set it; leave it out"),
    }


def schema_of(asked: ChatFormat | FlatFormat | None) -> dict[str, Any] | None:
    """The schema of the text, if it is JSON."""
    if isinstance(asked, ChatSchema):
        return asked.json_schema.schema_
    if isinstance(asked, FlatSchema):
        return asked.schema_
    return {"type": "object"} if isinstance(asked, AnyObject) else None


def constraint(
    field: str, asked: ChatFormat | FlatFormat | None, given: Mapping[str, Any]
) -> dict[str, Any]:
    """The keyword that a format is, which must be alone among those ``given``."""
    if (schema := schema_of(asked)) is None:
        return {}
    if both := [name for name in KINDS if name in given]:
        raise InputError(f"{field} and {both[0]} exclude each other: give one")
    return {"json_schema": schema}


def answered(text: TextSettings | None) -> dict[str, Any]:
    """The settings of a response's text, as the answer has them."""
    asked = text.format if text and text.format else PlainText(type="text")
    return {"format": asked.model_dump(exclude_none=True)}
