"""The requests of ``/v1/messages`` and ``/v1/messages/count_tokens``.

Knows Anthropic's blocks, tools and turns, and turns them into messages for a chat template. Knows
nothing of answers.
"""

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from cutaway.base.checks import shown
from cutaway.errors import InputError, Name
from cutaway.features.anthropic import (
    AssistantBlock,
    CacheControl,
    CallBlock,
    ResultBlock,
    TextBlock,
    Texts,
    ThoughtBlock,
    UserBlock,
)
from cutaway.requests.tools import ToolUse
from cutaway.server.body import Body, Stops, Unsupported, examples, optional, refusal
from cutaway.server.service import Service
from cutaway.server.shared.conversation import Conversing, Messages
from cutaway.server.shared.fields import TextFields
from cutaway.text.thinking_switch import NO_WISH, ThinkingWish
from cutaway.text.tools import Tool

# -- tools -------------------------------------------------------------------------------------


class ClientTool(Body):
    """A tool that the client runs."""

    type: Literal["custom"] | None = None
    name: str
    description: str | None = None
    input_schema: dict[str, Any] = Field(description="of the arguments")
    strict: bool | None = optional(
        "whether a keyword of input_schema that cannot be enforced is an error; else a note says so"
    )
    eager_input_streaming: bool | None = optional(
        "ignored: arguments are streamed as they are written"
    )
    cache_control: CacheControl = None
    unsupported: ClassVar[Unsupported] = {
        "defer_loading": (
            (False,),
            "there is no tool search here; offer the tools that are needed",
        ),
        "allowed_callers": (([], ["direct"]), "tools are called by the model alone; leave it out"),
        "input_examples": (([],), "templates have no place for it; write it into description"),
    }

    def as_function(self) -> dict[str, Any]:
        """Return the tool in OpenAI's form, which ``ToolUse`` reads."""
        return {
            "type": "function",
            "name": self.name,
            "description": self.description,
            "parameters": self.input_schema,
            "strict": self.strict,
        }


def _refuse_server_tool(tool: Any) -> Any:
    """Refuse a tool that runs at Anthropic, by name."""
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind not in (None, "custom"):
        raise refusal(
            f": type {kind!r:.40} is not known here; give tools with input_schema",
            code="unsupported_tool",
        )
    return tool


class MessagesToolChoice(Body):
    """Which tools may or must be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = optional("of the tool that must be called")
    disable_parallel_tool_use: bool | None = optional("at most one call an answer")

    def as_tool_choice(self) -> Any:
        """Return the choice in OpenAI's form, which ``ToolUse`` reads."""
        if self.type == "tool":
            return {"type": "function", "name": self.name}
        return "required" if self.type == "any" else self.type


class WithMessagesTools(Conversing):
    """A conversation whose answer may call tools, in Anthropic's form."""

    tools: list[Annotated[ClientTool, BeforeValidator(_refuse_server_tool)]] | None = optional(
        "what the answer may call", fail_fast=True
    )
    tool_choice: MessagesToolChoice | None = optional("default auto")

    def _make_use(self, service: Service) -> ToolUse:
        choice = self.tool_choice or MessagesToolChoice.model_validate({"type": "auto"})
        if not self.tools and choice.type not in ("none", "auto"):
            raise InputError("tool_choice", " needs tools")
        if (choice.type == "tool") != (choice.name is not None):
            raise InputError(
                Name("tool_choice", "name"), ' goes with type "tool": give both, or neither'
            )
        tools = [tool.as_function() for tool in self.tools or ()]
        return ToolUse(
            service.llm.model,
            tools,
            choice.as_tool_choice(),
            not choice.disable_parallel_tool_use,
            self.wish(service),
            schema_field="input_schema",
        )


# -- the conversation, which becomes messages for a chat template ------------------------------


_BILLING = "x-anthropic-billing-header:"
"""The beginning of a block that Claude Code sends. The prompt leaves the block out, since the block
changes with each request: the prefix cache would never have the prompt's beginning."""


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
            raise refusal(": without thoughts there is no budget; leave it out", "budget_tokens")
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
        """The JSON schema that the answer must match; None for plain text."""
        config = self.output_config
        return config.format.schema_ if config and config.format else None

    def shown_conversation(self, tools: Sequence[Tool]) -> Messages:
        """See ``Conversing``. Raises InputError for a tool's result without an earlier call."""
        call_ids = set[str]()
        for i, turn in enumerate(self.messages):
            for j, block in enumerate(_blocks(turn)):
                if isinstance(block, CallBlock):
                    call_ids.add(block.id)
                elif isinstance(block, ResultBlock) and block.tool_use_id not in call_ids:
                    field = Name("messages", i, "content", j, "tool_use_id")
                    raise InputError(
                        field,
                        f" must be the id of a tool_use block in an earlier message, "
                        f"not {shown(block.tool_use_id)}",
                    )
        return super().shown_conversation(tools)

    def conversation(self) -> Messages:
        """Return the messages as chat templates take them."""
        if self.goes_on:
            self._check_prefill()
        messages: Messages = []
        if text := _system(self.system):
            messages.append({"role": "system", "content": text})
        for role, turns in groupby(self.messages, key=lambda turn: turn.role):
            blocks = [block for turn in turns for block in _blocks(turn)]
            messages += [_assistant(blocks)] if role == "assistant" else _to_messages(role, blocks)
        return messages

    def wish(self, service: Service) -> ThinkingWish:
        """Return the request's wish for thinking, as far as the model can follow it.

        Clients always send a wish, so a wish that the model cannot follow is no error.
        """
        model, thinking = service.llm.model, self.thinking
        if model.template is None or model.thinking is None:
            return NO_WISH
        effort = self.output_config and self.output_config.effort
        level = effort if effort in model.thinking_switch.levels else None
        think = {"enabled": True, "disabled": False}.get(thinking.type) if thinking else None
        tokens = thinking.budget_tokens if thinking and think is not False else None
        names = ("thinking", Name("thinking", "budget_tokens"), "")
        return ThinkingWish(think if think is False else level or think, tokens, names=names)

    @property
    def goes_on(self) -> bool:
        """Whether the last message is the beginning of the answer (a prefill)."""
        return self.messages[-1].role == "assistant"

    def _check_prefill(self) -> None:
        """Raise InputError for a prefill that Anthropic refuses, too."""
        if self.own_schema is not None:
            raise InputError(
                Name("output_config", "format"),
                " describes the whole answer, and the last message begins it: "
                "end with a user's, or leave out format",
            )
        blocks, field = _blocks(self.messages[-1]), Name("messages", len(self.messages) - 1)
        last = blocks[-1] if blocks else None
        if isinstance(last, ThoughtBlock):
            raise InputError(field, ": a beginning of the answer ends with text, not a thought")
        if isinstance(last, TextBlock) and last.text != last.text.rstrip():
            raise InputError(
                field, " is the beginning of the answer, and ends with white space: leave that out"
            )


def _blocks(turn: UserTurn | AssistantTurn | SystemTurn) -> Sequence[Block]:
    if isinstance(turn.content, str):
        return [TextBlock(type="text", text=turn.content)]
    return turn.content


def _text(content: Texts | None) -> str:
    """Return the text, with each block on a line of its own."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(block.text for block in content)


def _system(content: Texts | None) -> str:
    if isinstance(content, list):
        content = [block for block in content if not block.text.startswith(_BILLING)]
    return _text(content)


def _assistant(blocks: Sequence[Block]) -> dict[str, Any]:
    """Return one message. Its texts are joined, since only blocks of other kinds lie between."""
    texts = [block.text for block in blocks if isinstance(block, TextBlock)]
    thoughts = [block.thinking for block in blocks if isinstance(block, ThoughtBlock)]
    calls = [_call(block) for block in blocks if isinstance(block, CallBlock)]
    more = {"tool_calls": calls, "reasoning_content": "".join(thoughts)}
    extra = {name: value for name, value in more.items() if value}
    return {"role": "assistant", "content": "".join(texts), **extra}


def _call(block: CallBlock) -> dict[str, Any]:
    arguments = json.dumps(block.input, ensure_ascii=False)
    function = {"name": block.name, "arguments": arguments}
    return {"id": block.id, "type": "function", "function": function}


def _to_messages(role: str, blocks: Sequence[Block]) -> Iterator[dict[str, Any]]:
    """Yield a message for each tool result, and for each run of text blocks between results."""
    for is_text, group in groupby(blocks, key=lambda block: isinstance(block, TextBlock)):
        if is_text:
            texts = [block for block in group if isinstance(block, TextBlock)]
            yield {"role": role, "content": _text(texts)}
            continue
        for block in group:
            if isinstance(block, ResultBlock):
                content = _text(block.content) or ("error" if block.is_error else "")
                yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": content}


# -- the requests ------------------------------------------------------------------------------


_NOT_STORED = "nothing is stored here; leave it out"


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
        "container": ((), _NOT_STORED),
        "diagnostics": ((), _NOT_STORED),
        "inference_geo": ((), "there is one place; leave it out"),
    }

    @model_validator(mode="after")
    def _one_user(self) -> "MessagesRequest":
        if self.metadata and self.metadata.user_id is not None:
            self.user = self.metadata.user_id
        return self

    def keywords(self) -> dict[str, Any]:
        """Return the keywords that were given."""
        keywords = super().keywords() | {"n": 1, "max_tokens": self.max_tokens}
        budget = self.thinking and self.thinking.budget_tokens
        if budget and budget >= self.max_tokens:
            raise InputError(
                Name("thinking", "budget_tokens"),
                f" must be less than max_tokens, {self.max_tokens}, which is "
                f"for thought and answer, not {budget}",
            )
        if self.stop_sequences is not None:
            keywords["stop"] = self.stop_sequences
        schema = self.own_schema
        return keywords if schema is None else {**keywords, "json_schema": schema}

    def notes(self, service: Service) -> Iterator[str]:
        """Yield notes on fields without an effect, and on how thinking was read."""
        thinking, model = self.thinking, service.llm.model
        if thinking and thinking.type != "disabled" and model.thinking is None:
            yield "thinking: this model's template has no tokens for it"
        effort = self.output_config and self.output_config.effort
        if effort and self.wish(service).think != effort:
            yield "output_config.effort: ignored; this model's template has no such level"
        yield from self.use_notes
