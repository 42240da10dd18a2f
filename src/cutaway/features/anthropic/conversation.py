"""The conversation of an Anthropic request, and the same as messages for a chat template."""

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from cutaway.base.checks import shown
from cutaway.errors import InputError
from cutaway.features.anthropic.blocks import (
    AssistantBlock,
    CacheControl,
    CallBlock,
    ResultBlock,
    TextBlock,
    Texts,
    ThoughtBlock,
    UserBlock,
)
from cutaway.features.anthropic.tools import WithMessagesTools
from cutaway.server.body import Body, Unsupported, optional, refused
from cutaway.server.service import Service
from cutaway.server.shared.conversing import Messages
from cutaway.text.thinking import NO_WISH, ThinkingWish
from cutaway.text.tools import Tool

_BILLING = "x-anthropic-billing-header:"
"""The beginning of a block that Claude Code sends: it changes with each request, so that no prompt
would be found in the prefix cache."""


class UserTurn(Body):
    """What a user says, and what calls gave."""

    role: Literal["user"]
    content: str | Annotated[list[UserBlock], Field(min_length=1, fail_fast=True)]


class AssistantTurn(Body):
    """An earlier answer."""

    role: Literal["assistant"]
    content: str | Annotated[list[AssistantBlock], Field(fail_fast=True)]


class SystemTurn(Body):
    """What the system says in between, for templates that have a place for it."""

    role: Literal["system"]
    content: Texts


Turn = Annotated[UserTurn | AssistantTurn | SystemTurn, Field(discriminator="role")]
Block = TextBlock | ResultBlock | CallBlock | ThoughtBlock


class JsonFormat(Body):
    """JSON that a schema describes."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema", description="of the text, which is JSON")


class OutputConfig(Body):
    """The form of the answer."""

    format: JsonFormat | None = optional("left out: text")
    effort: str | None = optional(
        "how much the model thinks; a note says where its template has no such level"
    )
    unsupported: ClassVar[Unsupported] = {
        "task_budget": ((), "max_tokens is the only budget here; give that")
    }


class MessagesThinking(Body):
    """Whether the model thinks before it answers; adaptive: as its template has it."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: int | None = optional(
        "tokens of the thought at most, fewer than max_tokens", ge=1
    )
    unsupported: ClassVar[Unsupported] = {
        "display": (("summarized",), "thoughts are sent whole; leave it out")
    }

    @model_validator(mode="after")
    def _thinks(self) -> "MessagesThinking":
        if self.type == "disabled" and self.budget_tokens is not None:
            raise refused(
                "{field}: without thoughts there is no budget; leave it out", "budget_tokens"
            )
        return self


class MessagesConversation(WithMessagesTools):
    """The part of a request that the model reads."""

    messages: list[Turn] = Field(
        fail_fast=True, description="the conversation, oldest message first", min_length=1
    )
    system: Texts | None = optional("what the system says before them")
    thinking: MessagesThinking | None = None
    output_config: OutputConfig | None = None
    cache_control: CacheControl = None
    unsupported: ClassVar[Unsupported] = {
        "context_management": (
            ({}, {"edits": []}, {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}),
            "nothing is cut here; shorten the messages yourself",
        ),
        "mcp_servers": (([],), "calls are not run here; offer their tools as tools"),
        "speed": (("standard",), "there is one speed; leave it out"),
    }  # fmt: skip

    @property
    def own_schema(self) -> dict[str, Any] | None:
        """Of the text, if it is JSON."""
        config = self.output_config
        return config.format.schema_ if config and config.format else None

    def shown(self, tools: Sequence[Tool]) -> Messages:
        """See ``Conversing``; InputError for a result of no call before it."""
        called = set[str]()
        for i, turn in enumerate(self.messages):
            for j, block in enumerate(_blocks(turn)):
                if isinstance(block, CallBlock):
                    called.add(block.id)
                elif isinstance(block, ResultBlock) and block.tool_use_id not in called:
                    field = f"messages[{i}].content[{j}].tool_use_id"
                    raise InputError(
                        f"{field} must be the id of a tool_use block in an earlier message, "
                        f"not {shown(block.tool_use_id)}"
                    )
        return super().shown(tools)

    def conversation(self) -> Messages:
        """The messages as chat templates take them."""
        if self.goes_on:
            self._check_begun()
        said: Messages = []
        if text := _system(self.system):
            said.append({"role": "system", "content": text})
        for role, turns in groupby(self.messages, key=lambda turn: turn.role):
            blocks = [block for turn in turns for block in _blocks(turn)]
            said += [_assistant(blocks)] if role == "assistant" else _others(role, blocks)
        return said

    def wish(self, service: Service) -> ThinkingWish:
        """What it says of thinking, as far as the model has it: clients ask it of any model."""
        model, asked = service.llm.model, self.thinking
        if model.template is None or model.thinking is None:
            return NO_WISH
        effort = self.output_config and self.output_config.effort
        level = effort if effort in model.thinking_switch.levels else None
        think = {"enabled": True, "disabled": False}.get(asked.type) if asked else None
        tokens = asked.budget_tokens if asked and think is not False else None
        names = ("thinking", "thinking.budget_tokens", "")
        return ThinkingWish(think if think is False else level or think, tokens, names=names)

    @property
    def goes_on(self) -> bool:
        """Whether the last message is the beginning of the answer (a prefill)."""
        return self.messages[-1].role == "assistant"

    def _check_begun(self) -> None:
        """InputError for a beginning that Anthropic refuses, too."""
        if self.own_schema is not None:
            raise InputError(
                "output_config.format describes the whole answer, and the last message begins it: "
                "end with a user's, or leave out format"
            )
        blocks, where = _blocks(self.messages[-1]), f"messages[{len(self.messages) - 1}]"
        last = blocks[-1] if blocks else None
        if isinstance(last, ThoughtBlock):
            raise InputError(f"{where}: a beginning of the answer ends with text, not a thought")
        if isinstance(last, TextBlock) and last.text != last.text.rstrip():
            raise InputError(
                f"{where} is the beginning of the answer, and ends with white space: leave that out"
            )


def _blocks(turn: UserTurn | AssistantTurn | SystemTurn) -> Sequence[Block]:
    if isinstance(turn.content, str):
        return [TextBlock(type="text", text=turn.content)]
    return turn.content


def _text(content: Texts | None) -> str:
    """Blocks are lines of their own."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(block.text for block in content)


def _system(content: Texts | None) -> str:
    if isinstance(content, list):
        content = [block for block in content if not block.text.startswith(_BILLING)]
    return _text(content)


def _assistant(blocks: Sequence[Block]) -> dict[str, Any]:
    """One message, as it was answered: its texts were separated only by other blocks."""
    texts = [block.text for block in blocks if isinstance(block, TextBlock)]
    thoughts = [block.thinking for block in blocks if isinstance(block, ThoughtBlock)]
    calls = [_call(block) for block in blocks if isinstance(block, CallBlock)]
    more = {"tool_calls": calls, "reasoning_content": "".join(thoughts)}
    said = {name: value for name, value in more.items() if value}
    return {"role": "assistant", "content": "".join(texts), **said}


def _call(block: CallBlock) -> dict[str, Any]:
    arguments = json.dumps(block.input, ensure_ascii=False)
    function = {"name": block.name, "arguments": arguments}
    return {"id": block.id, "type": "function", "function": function}


def _others(role: str, blocks: Sequence[Block]) -> Iterator[dict[str, Any]]:
    """Each result is a message, and so is the text between them."""
    for is_text, group in groupby(blocks, key=lambda block: isinstance(block, TextBlock)):
        if is_text:
            texts = [block for block in group if isinstance(block, TextBlock)]
            yield {"role": role, "content": _text(texts)}
            continue
        for block in group:
            if isinstance(block, ResultBlock):
                content = _text(block.content) or ("error" if block.is_error else "")
                yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": content}
