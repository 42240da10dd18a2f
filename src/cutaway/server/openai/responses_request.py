"""The requests of ``/v1/responses``: a conversation, or what follows an answer that is kept.

Knows the items of an input, earlier answers among them, and which answers are kept in memory.
"""

import json
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from threading import Lock
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import BeforeValidator, Field, TypeAdapter

from cutaway.base.checks import shown
from cutaway.errors import InputError, Name
from cutaway.sampling.observe import MAX_TOP
from cutaway.server.body import Body, MetadataField, Unsupported, optional, refused
from cutaway.server.http.errors import ApiError
from cutaway.server.service import Service
from cutaway.server.shared.conversation import (
    ONLY_TEXT,
    BaseMessage,
    FlatFormat,
    FlatSchema,
    Messages,
    TextSettings,
    ThinkingFields,
    WithTools,
    constraint,
    only_types,
    schema_of,
)
from cutaway.server.shared.fields import ONE_CACHE, TextFields, own_form, with_keywords
from cutaway.text.thinking import ThinkingWish

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
        raise refused(" must be a string or a list of messages")
    items = [{"type": "message"} | i if isinstance(i, dict) else i for i in value]
    for i, item in enumerate(items):
        kind = item.get("type") if isinstance(item, dict) else None
        if isinstance(item, dict) and kind not in _KINDS:
            raise refused(
                f": type {kind!r:.40} cannot be read here; messages, thoughts, calls "
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
                Name("input", i, "call_id"),
                f" must be the id of a call before it, not {shown(item.call_id)}",
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


# -- answers that are kept, so that a later request can continue them --------------------------


_ITEMS: TypeAdapter[list[Said]] = TypeAdapter(list[Annotated[Said, Field(discriminator="type")]])


class _Kept(NamedTuple):
    """The answer's document, and its whole conversation with this answer, both as JSON."""

    document: bytes
    conversation: bytes

    @property
    def size(self) -> int:
        """Bytes that count against the limit."""
        return len(self.document) + len(self.conversation)


class KeptResponses:
    """The latest answers, by id; the oldest are dropped where there is no more room.

    limit  bytes of all; 0 keeps none
    """

    def __init__(self, limit: int) -> None:
        self.limit, self._size, self._lock = limit, 0, Lock()
        self._kept: OrderedDict[str, _Kept] = OrderedDict()

    def keep(self, document: bytes, id: str, said: Sequence[Said], output: Sequence[Any]) -> bool:
        """Keep an answer; False where it alone is larger than the limit.

        said    the conversation that it answers
        output  the answer's items
        """
        before = _ITEMS.dump_python([*said], mode="json", exclude_none=True)
        written = [_without_logprobs(item) for item in output]
        conversation = json.dumps([*before, *written]).encode()
        new = _Kept(document, conversation)
        with self._lock:
            self._drop(id)
            if new.size > self.limit:
                return False
            while self._size + new.size > self.limit:
                self._drop(next(iter(self._kept)))
            self._kept[id] = new
            self._size += new.size
        return True

    def conversation(self, id: str) -> list[Said]:
        """The conversation up to an answer, with it. ApiError 404 where it is not kept."""
        return _ITEMS.validate_python(
            json.loads(self._found(id, "previous_response_id").conversation)
        )

    def document(self, id: str) -> bytes:
        """An answer. ApiError 404 where it is not kept."""
        return self._found(id, "response_id").document

    def delete(self, id: str) -> None:
        """Forget an answer. ApiError 404 where it is not kept."""
        self._found(id, "response_id")
        with self._lock:
            self._drop(id)

    def _found(self, id: str, field: str) -> _Kept:
        with self._lock:
            if (kept := self._kept.get(id)) is not None:
                return kept
        raise ApiError(
            404, f"{field}: there is no response {id[:100]!r}; the latest are kept, {self.limit} "
            "bytes of them (serve --keep-responses) and none with store: false: send the whole "
            "conversation as input", param=field, code="response_not_found",
        )  # fmt: skip

    def _drop(self, id: str) -> None:
        if (old := self._kept.pop(id, None)) is not None:
            self._size -= old.size


def _without_logprobs(item: Any) -> Any:
    """An item of an answer as it is kept in a conversation."""
    if item["type"] != "message":
        return item
    return {**item, "content": [{**part, "logprobs": []} for part in item["content"]]}


# -- the request -------------------------------------------------------------------------------


_NOT_STORED = "conversations have no id here; give previous_response_id, or all of it as input"


class Reasoning(Body):
    """Whether and how much the model thinks; all of it is answered, which no summary shortens."""

    summary: Literal["auto"] | None = None
    effort: str | None = optional("none, or a level that the model's template knows")


_LOGPROBS = "message.output_text.logprobs"
Include = Literal["message.output_text.logprobs", "reasoning.encrypted_content"]
_Responses: Any = with_keywords("_Responses", TextFields, own_form("responses"))


class ResponsesRequest(_Responses, ThinkingFields, WithTools):  # type: ignore[misc]  # as TextFields
    """A text or a conversation to answer."""

    FACE, PROMPT, FILL = "responses", "input", True
    input: Items = Field(description="a text, or messages from the first said to the last")
    instructions: str | None = optional("what the system says before them")
    max_output_tokens: int | None = optional("new tokens; left out: all there is room for", ge=1)
    text: TextSettings | None = optional(
        "its format: text, any JSON object, or JSON that a schema describes"
    )
    include: list[Include] | None = optional(
        "message.output_text.logprobs: each token's log-probability; "
        "reasoning.encrypted_content: changes nothing, as thoughts are sent readable",
        fail_fast=True,
    )
    top_logprobs: int | None = optional("and the likeliest beside it", ge=0, le=MAX_TOP)
    reasoning: Reasoning | None = None
    metadata: MetadataField | None = optional("returned with the answer")
    previous_response_id: str | None = optional(
        "the answer that input follows; its instructions are not taken over"
    )
    store: bool | None = optional(
        "whether the answer is kept in memory for previous_response_id, while there is room "
        "(serve --keep-responses); left out: true"
    )
    _before: Sequence[Said] = ()
    unsupported: ClassVar[Unsupported] = {
        "max_tokens": ((), "did you mean 'max_output_tokens'?"),
        "max_tool_calls": ((), "calls are not run here; leave it out"),
        "conversation": ((), _NOT_STORED),
        "prompt": ((), "no prompts are stored here; write it into input"),
        "background": ((False,), "nothing is stored to be fetched later; leave it out"),
        "truncation": (("disabled",), "nothing is cut here; shorten the input yourself"),
        "context_management": (([],), "nothing is cut here; shorten the input yourself"),
        "service_tier": (("auto", "default"), "there is one tier; leave it out"),
        "stream_options": (
            ({}, {"include_obfuscation": False}), "nothing is padded here; leave it out",
        ),
        "prompt_cache_retention": (("in_memory", "in-memory"), ONE_CACHE),
        "prompt_cache_options": ((), ONE_CACHE),
        "moderation": ((), "nothing is moderated here; leave it out"),
        "stop": (([],), "this endpoint has none; /v1/chat/completions has"),
    }  # fmt: skip

    def keywords(self) -> dict[str, Any]:
        """The keywords that were given."""
        # There is one answer, whatever the server's default.
        given: dict[str, Any] = super().keywords() | {"n": 1}
        if self.max_output_tokens is not None:
            given["max_tokens"] = self.max_output_tokens
        if self.has_logprobs:
            given["logprobs"] = self.top_logprobs or 0
        elif self.top_logprobs:
            raise InputError("top_logprobs", f' needs include: ["{_LOGPROBS}"]')
        return given | constraint("text", self._format, given)

    @property
    def has_logprobs(self) -> bool:
        """Whether the answer has each token's log-probability."""
        return _LOGPROBS in (self.include or ())

    def wish(self, service: Service) -> ThinkingWish:  # noqa: ARG002 - others need it
        """What it says of thinking."""
        effort = self.reasoning.effort if self.reasoning else None
        return self.asked(effort, Name("reasoning", "effort"))

    @property
    def readings(self) -> list[str]:
        """Of thinking, too."""
        return [*super().readings, *self.settled]

    def conversation(self) -> Messages:
        """The input as chat templates take it, after what it follows."""
        check_results(self._before, self.input)
        said = conversation(self.said_so_far)
        if self.instructions is not None:
            said.insert(0, {"role": "system", "content": self.instructions})
        return said

    @property
    def goes_on(self) -> bool:
        """Whether the last message is an answer that was cut, which this one continues."""
        return is_cut(self.input[-1])

    def follow(self, kept: KeptResponses) -> None:
        """Look up what it follows. ApiError 404 where that is not kept."""
        if self.previous_response_id is not None:
            self._before = kept.conversation(self.previous_response_id)

    @property
    def said_so_far(self) -> list[Said]:
        """All that is answered, but for instructions."""
        return [*self._before, *self.input]

    @property
    def own_schema(self) -> Any:
        """Of the format."""
        return schema_of(self._format) if isinstance(self._format, FlatSchema) else None

    @property
    def _format(self) -> FlatFormat | None:
        return self.text.format if self.text else None

    def offered(self) -> dict[str, Any]:
        """Its tools, as the answer has them."""
        if not self.tools:
            return {"tools": [], "tool_choice": "none", "parallel_tool_calls": False}
        return {
            "tools": self.tools,
            "tool_choice": self.tool_choice or "auto",
            "parallel_tool_calls": self.parallel_tool_calls is not False,
        }
