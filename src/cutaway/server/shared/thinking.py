"""Whether a model thinks and for how long, by each of the names that clients send.

OpenAI, vLLM, llama-server, OpenRouter, Z.ai, Moonshot, DeepSeek and Alibaba have names of their own
for one switch, and agents send what their setting of a provider says. So a request may use any of
them, and several that agree. The template decides what they do.
"""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from cutaway.errors import InputError, Name
from cutaway.server.body import Body, Unsupported, optional
from cutaway.server.service import Service
from cutaway.text.thinking_switch import FLAGS, OFF, ThinkingWish

Switch = tuple[str, bool | str | None]
"""The name of a field, and whether or how much the model thinks by it; None: it does not say."""
Budget = tuple[str, int | None]
"""The name of a field, and the largest number of tokens of a thought; None: it does not say."""
_VARIABLES = "chat_template_kwargs"
_NOTHING: dict[str, Any] = {}


class ThinkingFields(Body):
    """A budget of the thought, and variables of the template."""

    chat_template_kwargs: dict[str, Any] = Field(
        _NOTHING,
        description="ours, as in vLLM: variables of the model's chat template; a note names those "
        "that it does not read",
    )
    thinking_token_budget: int | None = optional(
        "ours, as in vLLM: tokens of the thought at most; then it is closed", ge=0
    )
    thinking_budget_tokens: int | None = optional(
        "llama-server's name of thinking_token_budget; -1: no budget", ge=-1
    )

    def budgets(self) -> Iterator[Budget]:
        """Yield the fields that limit the thought."""
        yield "thinking_token_budget", self.thinking_token_budget
        tokens = self.thinking_budget_tokens
        yield "thinking_budget_tokens", None if tokens == -1 else tokens

    def make_wish(self, service: Service, *switches: Switch) -> ThinkingWish:
        """Return the thinking settings; InputError for fields that contradict each other.

        What the model's template has no words for is ignored with a note, as most servers ignore
        it; but not a level, which OpenAI refuses, too.
        """
        switches, budgets, notes = (*switches, *self._variable_switches()), [*self.budgets()], []
        if service.llm.model.template and service.llm.model.thinking is None:
            wishes = [name for name, think in switches if think is True]
            wishes += [name for name, tokens in budgets if tokens is not None]
            notes = [f"{name}: ignored, since this model's template has no words for thoughts"
                     for name in wishes]  # fmt: skip
            switches = tuple(switch for switch in switches if switch[1] is not True)
            budgets = [(name, None) for name, _ in budgets]
        name, think = _merge_switches(switches)
        tokens_name, tokens = _merge_budgets(budgets)
        variables, unread = self._variables(service)
        names = (name, tokens_name, _VARIABLES)
        return ThinkingWish(think, tokens, variables, names, (*notes, *unread))

    def _variable_switches(self) -> Iterator[Switch]:
        """Yield the variables that switch thinking off, in this template or in another."""
        for name in FLAGS:
            if self.chat_template_kwargs.get(name) is False:
                yield Name(_VARIABLES, name), False

    def _variables(self, service: Service) -> tuple[dict[str, Any], list[str]]:
        """Return the variables that the template reads, and notes on the others."""
        variables = self.chat_template_kwargs
        read = {name: value for name, value in variables.items() if _is_read(service, name)}
        ignored = [name for name, value in variables.items() if name not in read
                   and not (name in FLAGS and value is False)]  # fmt: skip
        return read, [
            f"{Name(_VARIABLES, name)}: ignored, since this model's template does not read it"
            for name in ignored
        ]


def _is_read(service: Service, name: str) -> bool:
    template = service.llm.model.template
    return template is None or name in template.variables


def _merge_switches(switches: Sequence[Switch]) -> Switch:
    """Return the switch that says most; InputError if two contradict each other."""
    agreed: Switch = next(iter(switches), ("think", None))
    for name, think in switches:
        earlier, other = agreed
        if think is None:
            continue
        if other is not None and _is_off(think) != _is_off(other):
            raise InputError(name, f" contradicts {earlier}: give one of the two")
        if other is None or other is True:
            agreed = name, think
        elif isinstance(think, str) and think != other and not _is_off(think):
            raise InputError(name, f" contradicts {earlier}: give one of the two")
    return agreed


def _is_off(think: bool | str) -> bool:
    return think is False or think in OFF


def _merge_budgets(budgets: Sequence[Budget]) -> Budget:
    """Return the budget that was given; InputError if two differ."""
    limits = [(name, tokens) for name, tokens in budgets if tokens is not None]
    for name, tokens in limits[1:]:
        if tokens != limits[0][1]:
            raise InputError(name, f" contradicts {limits[0][0]}: give one of the two")
    return limits[0] if limits else budgets[0]


# -- the names of chats --------------------------------------------------------------------------


class ThinkingType(Body):
    """Whether the model thinks, as Z.ai, Moonshot and DeepSeek write it, and Anthropic."""

    type: Literal["enabled", "disabled", "adaptive", "auto"]
    budget_tokens: int | None = optional("tokens of the thought at most", ge=0)
    clear_thinking: bool | None = optional("ignored: the template keeps earlier thoughts or not")
    keep: str | None = optional("ignored, as clear_thinking")


class ReasoningSettings(Body):
    """Whether and how much the model thinks, as OpenRouter writes it."""

    enabled: bool | None = optional("whether it thinks")
    effort: str | None = optional("none, or a level that the model's template knows")
    max_tokens: int | None = optional("tokens of the thought at most", ge=0)
    summary: str | None = optional("ignored: all of the thought is sent")
    unsupported: ClassVar[Unsupported] = {
        "exclude": ((False,), "thoughts are sent apart from the answer; leave it out"),
    }


class EffortFields(ThinkingFields):
    """The same, with the names that chats have for it."""

    reasoning_effort: str | None = optional(
        "whether and how much the model thinks: none, or a level that its template knows"
    )
    reasoning: ReasoningSettings | None = optional("ours, as at OpenRouter")
    thinking: ThinkingType | None = optional("ours, as at Z.ai, Moonshot and DeepSeek")
    enable_thinking: bool | None = optional("ours, as at Alibaba: whether the model thinks")
    think: bool | str | None = optional("ours, as Ollama's own API: reasoning_effort, or a switch")

    def budgets(self) -> Iterator[Budget]:
        """Yield the fields that limit the thought."""
        yield from super().budgets()
        if self.reasoning:
            yield Name("reasoning", "max_tokens"), self.reasoning.max_tokens
        if self.thinking:
            yield Name("thinking", "budget_tokens"), self.thinking.budget_tokens

    def switches(self) -> Iterator[Switch]:
        """Yield the fields that say whether or how much the model thinks."""
        yield "reasoning_effort", self.reasoning_effort
        if self.reasoning:
            yield Name("reasoning", "effort"), self.reasoning.effort
            yield Name("reasoning", "enabled"), self.reasoning.enabled
        if self.thinking:
            think = {"enabled": True, "disabled": False}.get(self.thinking.type)
            yield Name("thinking", "type"), think
        yield "enable_thinking", self.enable_thinking
        yield "think", self.think

    def wish(self, service: Service) -> ThinkingWish:
        """Return the thinking settings of the request."""
        return self.make_wish(service, *self.switches())
