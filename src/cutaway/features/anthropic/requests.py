"""The requests of ``/v1/messages`` and ``/v1/messages/count_tokens``."""

from collections.abc import Iterator
from typing import Any, ClassVar

from pydantic import Field, model_validator

from cutaway.errors import InputError
from cutaway.features.anthropic.conversation import MessagesConversation
from cutaway.server.body import Body, Stops, Unsupported, examples, optional
from cutaway.server.service import Service
from cutaway.server.shared.request_models import TextFields

_KEPT = "nothing is stored here; leave it out"


class Metadata(Body):
    """About the request."""

    user_id: str | None = optional("is written into the log")


class CountRequest(MessagesConversation):
    """A conversation whose tokens are counted."""

    model_config = examples({"messages": [{"role": "user", "content": "Hello"}]})
    model: str | None = optional("one of /v1/models; left out: the first")


class MessagesRequest(TextFields, CountRequest):
    """A conversation to answer."""

    model_config = examples(
        {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 16},
        {
            "system": "Answer in one word.",
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "Which way is north?"}]}
            ],
            "max_tokens": 16,
            "stream": True,
        },
    )
    FACE, PROMPT = "messages", "messages"
    max_tokens: int = Field(ge=1, description="new tokens at most")
    stop_sequences: Stops | None = None
    metadata: Metadata | None = None
    unsupported: ClassVar[Unsupported] = {
        **MessagesConversation.unsupported,
        "service_tier": (("auto", "standard_only"), "there is one tier; leave it out"),
        "container": ((), _KEPT),
        "diagnostics": ((), _KEPT),
        "inference_geo": ((), "there is one place; leave it out"),
    }

    @model_validator(mode="after")
    def _one_user(self) -> "MessagesRequest":
        if self.metadata and self.metadata.user_id is not None:
            self.user = self.metadata.user_id
        return self

    def keywords(self) -> dict[str, Any]:
        """The keywords that were given."""
        given = super().keywords() | {"n": 1, "max_tokens": self.max_tokens}
        budget = self.thinking and self.thinking.budget_tokens
        if budget and budget >= self.max_tokens:
            raise InputError(
                f"thinking.budget_tokens must be less than max_tokens, {self.max_tokens}, which is "
                f"for thought and answer, not {budget}"
            )
        if self.stop_sequences is not None:
            given["stop"] = self.stop_sequences
        schema = self.own_schema
        return given if schema is None else {**given, "json_schema": schema}

    def notes(self, service: Service) -> Iterator[str]:
        """What has no effect here."""
        asked, model = self.thinking, service.llm.model
        if asked and asked.type != "disabled" and model.thinking is None:
            yield "thinking: this model's template has no tokens for it"
        effort = self.output_config and self.output_config.effort
        if effort and self.wish(service).think != effort:
            yield "output_config.effort: ignored; this model's template has no such level"
        yield from self.settled
