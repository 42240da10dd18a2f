"""What requests say of thinking in vLLM's and llama-server's forms, beside OpenAI's own field."""

from typing import Any

from pydantic import Field, model_validator

from cutaway.server.body import Body, optional, refused
from cutaway.server.service import Service
from cutaway.text.thinking import ThinkingWish

NOTHING: dict[str, Any] = {}


class ThinkingFields(Body):
    """A budget of the thought, and variables of the template."""

    chat_template_kwargs: dict[str, Any] = Field(
        NOTHING, description="ours, as in vLLM: variables of the model's chat template"
    )
    thinking_token_budget: int | None = optional(
        "ours, as in vLLM: tokens of the thought at most; then it is closed", ge=0
    )
    thinking_budget_tokens: int | None = optional(
        "llama-server's name of thinking_token_budget; -1: no budget", ge=-1
    )

    @model_validator(mode="after")
    def _one_budget(self) -> "ThinkingFields":
        theirs = self.thinking_budget_tokens
        if theirs is not None and self.thinking_token_budget is not None:
            raise refused("{field} is thinking_token_budget: give one", "thinking_budget_tokens")
        return self

    def asked(self, think: bool | str | None, name: str) -> ThinkingWish:
        """The wish. think: whether or how much, in the field of this name."""
        tokens, called = self.thinking_token_budget, "thinking_token_budget"
        if self.thinking_budget_tokens is not None:
            called = "thinking_budget_tokens"
            tokens = None if self.thinking_budget_tokens < 0 else self.thinking_budget_tokens
        names = (name, called, "chat_template_kwargs")
        return ThinkingWish(think, tokens, self.chat_template_kwargs, names)


class EffortFields(ThinkingFields):
    """The same beside OpenAI's own field."""

    reasoning_effort: str | None = optional(
        "whether and how much the model thinks: none, or a level that its template knows"
    )

    def wish(self, service: Service) -> ThinkingWish:  # noqa: ARG002 - others need it
        """What it says of thinking."""
        return self.asked(self.reasoning_effort, "reasoning_effort")
