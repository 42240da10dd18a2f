"""The requests of ``/v1/responses``, of a whole conversation, or after an answer that is kept."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from cutaway.errors import InputError
from cutaway.sampling.observe import MAX_TOP
from cutaway.server.body import Body, MetadataField, Unsupported, optional
from cutaway.server.openai.kept_responses import KeptResponses
from cutaway.server.openai.responses_input import (
    Items,
    Said,
    check_results,
    conversation,
    is_cut,
)
from cutaway.server.service import Service
from cutaway.server.shared.conversing import Messages
from cutaway.server.shared.formats import (
    FlatFormat,
    FlatSchema,
    TextSettings,
    constraint,
    schema_of,
)
from cutaway.server.shared.keyword_fields import own_form, with_keywords
from cutaway.server.shared.request_models import ONE_CACHE, TextFields
from cutaway.server.shared.thinking import ThinkingFields
from cutaway.server.shared.tools import WithTools
from cutaway.text.thinking import ThinkingWish

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
            raise InputError(f'top_logprobs needs include: ["{_LOGPROBS}"]')
        return given | constraint("text", self._format, given)

    @property
    def has_logprobs(self) -> bool:
        """Whether the answer has each token's log-probability."""
        return _LOGPROBS in (self.include or ())

    def wish(self, service: Service) -> ThinkingWish:  # noqa: ARG002 - others need it
        """What it says of thinking."""
        return self.asked(self.reasoning.effort if self.reasoning else None, "reasoning.effort")

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
