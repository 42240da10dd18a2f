"""The requests of ``/api/generate`` and ``/api/chat``."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from cutaway.errors import InputError
from cutaway.features.ollama.fields import OllamaFields
from cutaway.requests.prompts import Prompt
from cutaway.server.body import Body, Unsupported, examples, optional
from cutaway.server.service import Service
from cutaway.server.shared.conversing import Messages
from cutaway.server.shared.messages import ONLY_TEXT
from cutaway.server.shared.request_models import Read
from cutaway.text.thinking import NO_WISH, ThinkingWish

_TEMPLATE = "the model's own template is used; leave it out, or give raw and the whole prompt"


class OllamaGenerateRequest(OllamaFields):
    """A prompt to answer, or a text to continue."""

    model_config = examples(
        {"prompt": "Which way is north?", "options": {"num_predict": 16}},
        {"prompt": "Once upon a time", "raw": True, "stream": False},
    )
    prompt: str = Field("", description="of the user; empty: only loads the model")
    system: str | None = optional("what the system says before it")
    suffix: str | None = optional(
        "the text that must follow, for models with fill-in-the-middle tokens"
    )
    raw: bool = Field(False, description="the prompt is the whole text, with its special tokens")
    context: list[int] | None = optional(
        "of an earlier answer, which this one continues", fail_fast=True
    )
    unsupported: ClassVar[Unsupported] = {
        **OllamaFields.unsupported,
        "template": (("",), _TEMPLATE),
        "images": (([],), ONLY_TEXT),
        "width": ((0,), ONLY_TEXT),
        "height": ((0,), ONLY_TEXT),
        "steps": ((0,), ONLY_TEXT),
    }

    @property
    def asks_nothing(self) -> bool:
        """Whether the request only loads or unloads the model."""
        return not self.prompt and not self.suffix

    async def read(self, service: Service) -> Read:
        """The prompt, the keywords, and no tools."""
        use = self.use(service)
        given = await asyncio.to_thread(self.keywords)
        prompt, given = await self._prompt(service, given)
        return Read([prompt], given, use)

    def wish(self, service: Service) -> ThinkingWish:
        """Of a prompt that the template writes."""
        return NO_WISH if self.raw or self.suffix else super().wish(service)

    async def _prompt(self, service: Service, given: dict[str, Any]) -> tuple[Prompt, Any]:
        """The prompt, and the keywords that it needs."""
        if self.raw:
            for name in ("system", "context", "suffix"):
                if getattr(self, name):
                    raise InputError(f"{name}: raw is the whole prompt: leave out {name} or raw")
            return self.prompt, {**given, "special": True}
        llm = service.llm
        if self.suffix:
            return self._before(service), {**given, "suffix": self.suffix}
        if llm.model.template is None and not (self.system or self.context):
            return self.prompt, given
        ids = await self.ids(service)
        if not self.context:
            return ids, given
        begun = ids[:1] == [llm.tokenizer.bos_id]
        return [*self.context, *ids[begun:]], given

    def _before(self, service: Service) -> str:
        """The text before a suffix."""
        if service.llm.tokenizer.fim is None:
            raise InputError(
                "suffix: this model has no fill-in-the-middle tokens and does not support "
                "insert; /v1/completions does without (docs/fill.md)"
            )
        for name in ("system", "context"):
            if getattr(self, name):
                raise InputError(f"{name}: leave it out, or leave out suffix")
        return self.prompt

    def conversation(self) -> Messages:
        """The prompt as a user's message."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, {"role": "user", "content": self.prompt}]


class OllamaGivenFunction(Body):
    """A function, and its arguments."""

    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    index: int | None = optional("ignored")
    description: str | None = optional("ignored")


class OllamaGivenCall(Body):
    """A call in an earlier answer."""

    function: OllamaGivenFunction
    id: str | None = optional("left out: a tool's message answers the oldest call")
    type: Literal["function"] | None = None


class OllamaTurn(Body):
    """A message."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    thinking: str | None = optional(
        "of an assistant: what it thought, for templates that have a place for it"
    )
    tool_calls: list[OllamaGivenCall] | None = optional("of an assistant", fail_fast=True)
    tool_name: str | None = optional("of a tool: which one it is")
    tool_call_id: str | None = optional("of a tool: the call that it answers")
    unsupported: ClassVar[Unsupported] = {"images": (([],), ONLY_TEXT)}


class OllamaChatRequest(OllamaFields):
    """A conversation to answer."""

    PROMPT: ClassVar[str] = "messages"
    model_config = examples(
        {"messages": [{"role": "user", "content": "Hello"}], "options": {"num_predict": 16}},
        {"messages": [{"role": "user", "content": "Hello"}], "stream": False, "format": "json"},
    )
    messages: list[OllamaTurn] = Field(
        default_factory=list, fail_fast=True,
        description="the conversation, oldest message first; empty: only loads the model",
    )  # fmt: skip
    tools: list[dict[str, Any]] | None = optional("what the answer may call", fail_fast=True)

    @property
    def asks_nothing(self) -> bool:
        """Whether the request only loads or unloads the model."""
        return not self.messages

    def offered(self) -> Sequence[Any]:
        """What the answer may call."""
        return self.tools or ()

    @property
    def goes_on(self) -> bool:
        """Whether the last message is the beginning of the answer."""
        return self.messages[-1].role == "assistant"

    def conversation(self) -> Messages:
        """The messages as chat templates take them."""
        return [*_plain(self.messages)]


def _plain(messages: Sequence[OllamaTurn]) -> Iterator[dict[str, Any]]:
    """The messages as templates know them: calls have ids, and results those of their calls."""
    open_calls: list[tuple[str, str]] = []  # (id, name), oldest first
    for i, message in enumerate(messages):
        said: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.thinking is not None:
            said["reasoning_content"] = message.thinking
        if message.tool_calls and message.role == "assistant":
            calls = [_call(call, f"call_{i}_{n}") for n, call in enumerate(message.tool_calls)]
            open_calls += [(call["id"], call["function"]["name"]) for call in calls]
            said["tool_calls"] = calls
        elif message.role == "tool":
            said["tool_call_id"] = id = message.tool_call_id or _answered(message, i, open_calls)
            open_calls = [call for call in open_calls if call[0] != id]
        yield said


def _call(call: OllamaGivenCall, otherwise: str) -> dict[str, Any]:
    arguments = json.dumps(call.function.arguments, ensure_ascii=False)
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id or otherwise, "type": "function", "function": function}


def _answered(message: OllamaTurn, i: int, calls: Sequence[tuple[str, str]]) -> str:
    """The oldest call, of the tool where that is named, that nothing has answered."""
    for id, name in calls:
        if message.tool_name in (None, name):
            return id
    raise InputError(
        f"messages[{i}] is of a tool, and no call before it is without an answer; give the "
        "assistant's message with its tool_calls"
    )
