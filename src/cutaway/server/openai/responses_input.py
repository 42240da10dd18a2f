"""The input of ``/v1/responses``: a string or messages, earlier answers among them."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from cutaway.base.checks import shown
from cutaway.errors import InputError
from cutaway.server.body import Body, Unsupported, optional, refused
from cutaway.server.shared.messages import ONLY_TEXT, BaseMessage, only_types

Status = Literal["in_progress", "completed", "incomplete"]


class InputText(Body):
    """A part of a message."""

    type: Literal["input_text"]
    text: str


class EarlierText(Body):
    """A part of an earlier answer."""

    type: Literal["output_text"]
    text: str
    logprobs: list[Any] | None = optional("as it was answered; ignored")
    unsupported: ClassVar[Unsupported] = {
        "annotations": (([],), ONLY_TEXT),
    }


Part = Annotated[
    InputText | EarlierText,
    Field(discriminator="type"),
    only_types("input_text", "output_text"),
]


class SaidMessage(BaseMessage):
    """A message. Developer messages are given to templates as system messages, which all know."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    id: str | None = optional("as it was answered; nothing is looked up by it")
    status: Status | None = optional(
        "as it was answered; an incomplete answer goes on if it is last"
    )
    unsupported: ClassVar[Unsupported] = {
        "phase": ((), "templates have no place for it; leave it out")
    }


class InputMessage(SaidMessage):
    """A message of texts."""

    content: str | Annotated[list[Part], Field(fail_fast=True)]


class _Call(Body):
    call_id: str
    name: str
    id: str | None = optional("as it was answered; nothing is looked up by it")
    status: Status | None = optional("as it was answered")


class EarlierFunctionCall(_Call):
    """A call of a function in an earlier answer."""

    type: Literal["function_call"]
    arguments: str

    def call(self) -> dict[str, Any]:
        """As chats have it."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.call_id, "type": "function", "function": function}


class EarlierCustomCall(_Call):
    """A call of a custom tool in an earlier answer."""

    type: Literal["custom_tool_call"]
    input: str

    def call(self) -> dict[str, Any]:
        """As chats have it."""
        custom = {"name": self.name, "input": self.input}
        return {"id": self.call_id, "type": "custom", "custom": custom}


class CallResult(Body):
    """What a call gave."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: str
    output: str | Annotated[list[Part], Field(fail_fast=True)]
    id: str | None = optional("nothing is looked up by it")
    status: Status | None = optional("ignored")

    def plain(self) -> dict[str, Any]:
        """The message as chat templates take it."""
        output = self.output
        if isinstance(output, list):
            output = "".join(part.text for part in output)
        return {"role": "tool", "tool_call_id": self.call_id, "content": output}


class Thoughts(Body):
    """A part of them."""

    type: Literal["reasoning_text"]
    text: str


class EarlierThoughts(Body):
    """What was thought before an answer, as it was answered."""

    type: Literal["reasoning"]
    id: str | None = optional("as it was answered; nothing is looked up by it")
    summary: list[Any] | None = optional("empty: nothing is summarised here")
    content: list[Thoughts] | None = optional("all of it", fail_fast=True)
    status: Status | None = None
    unsupported: ClassVar[Unsupported] = {
        "encrypted_content": ((), "only thoughts of this server can be read; leave it out")
    }

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(part.text for part in self.content or ())


_KINDS = (
    "message", "function_call", "custom_tool_call", "function_call_output",
    "custom_tool_call_output", "reasoning",
)  # fmt: skip


def as_items(value: Any) -> Any:
    """A string as a user's message; items of other kinds are refused by name."""
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": value}]
    if not isinstance(value, list):
        raise refused("{field} must be a string or a list of messages")
    items = [{"type": "message"} | i if isinstance(i, dict) else i for i in value]
    for i, item in enumerate(items):
        kind = item.get("type") if isinstance(item, dict) else None
        if isinstance(item, dict) and kind not in _KINDS:
            raise refused(
                f"{{field}}: type {kind!r:.40} cannot be read here; messages, thoughts, calls "
                "and their results can", i, "unsupported_item",
            )  # fmt: skip
    return items


Said = InputMessage | EarlierFunctionCall | EarlierCustomCall | CallResult | EarlierThoughts
"""An item of a conversation."""
Item = Annotated[Said, Field(discriminator="type")]
Items = Annotated[
    list[Item],
    Field(min_length=1, fail_fast=True),
    BeforeValidator(as_items, json_schema_input_type=str | list[Item]),
]


def check_results(before: Sequence[Said], items: Sequence[Said]) -> None:
    """InputError for a result of no call. before: what the items follow"""
    called = set[str]()
    for i, item in enumerate([*before, *items], -len(before)):
        if isinstance(item, (EarlierFunctionCall, EarlierCustomCall)):
            called.add(item.call_id)
        elif isinstance(item, CallResult) and item.call_id not in called:
            raise InputError(
                f"input[{i}].call_id must be the id of a call before it, not {shown(item.call_id)}"
            )


def conversation(
    items: "Iterable[BaseMessage | Said]",
) -> list[dict[str, Any]]:
    """As chats have it: thoughts belong to the assistant's message after them, calls to that before
    them."""
    said: list[dict[str, Any]] = []
    thought: dict[str, str] = {}
    goes_on = False  # an answer that was cut, with what is after it
    for item in items:
        if isinstance(item, EarlierThoughts):
            thought = {"reasoning_content": item.text}
        elif isinstance(item, (EarlierFunctionCall, EarlierCustomCall)):
            if thought or not said or said[-1]["role"] != "assistant":
                said.append({"role": "assistant", "content": "", **thought})
            said[-1].setdefault("tool_calls", []).append(item.call())
            thought = {}
        elif goes_on and isinstance(item, InputMessage) and item.role == "assistant":
            said[-1]["content"] += item.plain()["content"]
        else:
            said.append({**item.plain(), **thought})
            thought = {}
        goes_on = is_cut(item)
    return said


def is_cut(item: "BaseMessage | Said") -> bool:
    """Whether an item is an answer that did not end."""
    whole = ("completed", None)
    return isinstance(item, InputMessage) and item.role == "assistant" and item.status not in whole
