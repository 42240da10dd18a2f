"""The requests of ``/v1/responses``: a conversation, or a continuation of an answer that is kept.

Knows which answers are kept in memory; ``response_schemas`` has the items of an input.
"""

import json
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from threading import Lock
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field, TypeAdapter

from cutaway.base.checks import shown
from cutaway.errors import InputError, Name
from cutaway.sampling.observe import MAX_TOP
from cutaway.server.body import Body, MetadataField, Unsupported, optional
from cutaway.server.http.errors import ApiError
from cutaway.server.openai.response_schemas import (
    CallResult,
    ConversationItem,
    EarlierCustomCall,
    EarlierFunctionCall,
    EarlierThoughts,
    InputMessage,
    Items,
)
from cutaway.server.service import Service
from cutaway.server.shared.conversation import (
    BaseMessage,
    FlatFormat,
    FlatSchema,
    Messages,
    TextSettings,
    WithTools,
    constraint,
    schema_of,
)
from cutaway.server.shared.fields import ONE_CACHE, TextFields, own_form, with_keywords
from cutaway.server.shared.thinking import ThinkingFields
from cutaway.text.thinking_switch import ThinkingWish


def check_results(before: Sequence[ConversationItem], items: Sequence[ConversationItem]) -> None:
    """InputError for a result without its call before it. before: the items before ``items``"""
    call_ids = set[str]()
    for i, item in enumerate([*before, *items], -len(before)):
        if isinstance(item, (EarlierFunctionCall, EarlierCustomCall)):
            call_ids.add(item.call_id)
        elif isinstance(item, CallResult) and item.call_id not in call_ids:
            raise InputError(
                Name("input", i, "call_id"),
                f" must be the id of a call before it, not {shown(item.call_id)}",
            )


def conversation(
    items: Iterable[BaseMessage | ConversationItem],
) -> list[dict[str, Any]]:
    """Return items as the messages of a chat.

    Thoughts are put into the assistant's next message, calls into the assistant's last message.
    """
    messages: list[dict[str, Any]] = []
    thoughts: dict[str, str] = {}
    continues = False  # whether the last message is an answer that was cut
    for item in items:
        if isinstance(item, EarlierThoughts):
            thoughts = {"reasoning_content": item.text}
        elif isinstance(item, (EarlierFunctionCall, EarlierCustomCall)):
            if thoughts or not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": "", **thoughts})
            messages[-1].setdefault("tool_calls", []).append(item.call())
            thoughts = {}
        elif continues and isinstance(item, InputMessage) and item.role == "assistant":
            messages[-1]["content"] += item.plain()["content"]
        else:
            messages.append({**item.plain(), **thoughts})
            thoughts = {}
        continues = is_cut(item)
    return messages


def is_cut(item: BaseMessage | ConversationItem) -> bool:
    """Whether an item is an answer that was cut."""
    whole = ("completed", None)
    return isinstance(item, InputMessage) and item.role == "assistant" and item.status not in whole


# -- answers that are kept, so that a later request can continue them --------------------------


_ITEMS: TypeAdapter[list[ConversationItem]] = TypeAdapter(
    list[Annotated[ConversationItem, Field(discriminator="type")]]
)


class _Kept(NamedTuple):
    """An answer, and the conversation that ends with this answer, both as JSON."""

    document: bytes
    conversation: bytes

    @property
    def size(self) -> int:
        """Bytes that count against the limit."""
        return len(self.document) + len(self.conversation)


class KeptResponses:
    """The latest answers, by id; the oldest answers are dropped to make room for a new answer.

    limit  the most bytes of all kept answers and conversations; 0 keeps none
    """

    def __init__(self, limit: int) -> None:
        self.limit, self._size, self._lock = limit, 0, Lock()
        self._responses: OrderedDict[str, _Kept] = OrderedDict()

    def keep(
        self,
        document: bytes,
        id: str,
        prompt_items: Sequence[ConversationItem],
        output: Sequence[Any],
    ) -> bool:
        """Keep an answer; return False, and keep nothing, if it alone is larger than the limit.

        document      the answer as JSON
        prompt_items  the conversation before the answer
        output        the answer's items
        """
        before = _ITEMS.dump_python([*prompt_items], mode="json", exclude_none=True)
        answer_items = [_without_logprobs(item) for item in output]
        conversation = json.dumps([*before, *answer_items]).encode()
        new = _Kept(document, conversation)
        with self._lock:
            self._drop(id)
            if new.size > self.limit:
                return False
            while self._size + new.size > self.limit:
                self._drop(next(iter(self._responses)))
            self._responses[id] = new
            self._size += new.size
        return True

    def conversation(self, id: str) -> list[ConversationItem]:
        """Return the conversation that ends with an answer. ApiError 404 if it is not kept."""
        return _ITEMS.validate_python(
            json.loads(self._find(id, "previous_response_id").conversation)
        )

    def document(self, id: str) -> bytes:
        """Return an answer as JSON. ApiError 404 if it is not kept."""
        return self._find(id, "response_id").document

    def delete(self, id: str) -> None:
        """Forget an answer. ApiError 404 if it is not kept."""
        self._find(id, "response_id")
        with self._lock:
            self._drop(id)

    def _find(self, id: str, field: str) -> _Kept:
        with self._lock:
            if (response := self._responses.get(id)) is not None:
                return response
        raise ApiError(
            404, f"{field}: there is no response {id[:100]!r}; the latest are kept, {self.limit} "
            "bytes of them (serve --keep-responses) and none with store: false: send the whole "
            "conversation as input", param=field, code="response_not_found",
        )  # fmt: skip

    def _drop(self, id: str) -> None:
        if (old := self._responses.pop(id, None)) is not None:
            self._size -= old.size


def _without_logprobs(item: Any) -> Any:
    """Return an item of an answer without log-probabilities, which no conversation needs."""
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
    _before: Sequence[ConversationItem] = ()
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
        """Return the keywords that the client gave."""
        # This API has one answer, even if the server's default n is larger.
        keywords: dict[str, Any] = super().keywords() | {"n": 1}
        if self.max_output_tokens is not None:
            keywords["max_tokens"] = self.max_output_tokens
        if self.has_logprobs:
            keywords["logprobs"] = self.top_logprobs or 0
        elif self.top_logprobs:
            raise InputError("top_logprobs", f' needs include: ["{_LOGPROBS}"]')
        return keywords | constraint("text", self._format, keywords)

    @property
    def has_logprobs(self) -> bool:
        """Whether the client asked for each token's log-probability."""
        return _LOGPROBS in (self.include or ())

    def wish(self, service: Service) -> ThinkingWish:
        """Return the thinking settings of the request."""
        effort = self.reasoning.effort if self.reasoning else None
        return self.make_wish(service, (Name("reasoning", "effort"), effort))

    @property
    def readings(self) -> list[str]:
        """Notes on how fields were understood, including thinking and tools."""
        return [*super().readings, *self.use_notes]

    def conversation(self) -> Messages:
        """Return the kept conversation and the input, in the form that chat templates take."""
        check_results(self._before, self.input)
        messages = conversation(self.conversation_items)
        if self.instructions is not None:
            messages.insert(0, {"role": "system", "content": self.instructions})
        return messages

    @property
    def goes_on(self) -> bool:
        """Whether the answer continues the last message: an earlier answer that was cut."""
        return is_cut(self.input[-1])

    def follow(self, kept_responses: KeptResponses) -> None:
        """Look up the conversation of previous_response_id. ApiError 404 if it is not kept."""
        if self.previous_response_id is not None:
            self._before = kept_responses.conversation(self.previous_response_id)

    @property
    def conversation_items(self) -> list[ConversationItem]:
        """The whole conversation to answer, without instructions."""
        return [*self._before, *self.input]

    @property
    def own_schema(self) -> Any:
        """The JSON schema in text.format; None without one."""
        return schema_of(self._format) if isinstance(self._format, FlatSchema) else None

    @property
    def _format(self) -> FlatFormat | None:
        return self.text.format if self.text else None

    def tool_fields(self) -> dict[str, Any]:
        """Return the tools' fields, which the answer repeats."""
        if not self.tools:
            return {"tools": [], "tool_choice": "none", "parallel_tool_calls": False}
        return {
            "tools": self.tools,
            "tool_choice": self.tool_choice or "auto",
            "parallel_tool_calls": self.parallel_tool_calls is not False,
        }
