"""The requests of ``/api/generate`` and ``/api/chat``, the fields that they share, and options.

Knows ``keep_alive``, how long an idle model stays loaded. Knows nothing of answers.
"""

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

from pydantic import Field, create_model

from cutaway.errors import InputError, Name
from cutaway.requests.base import Prompt
from cutaway.requests.keywords import fields_at
from cutaway.requests.tools import ToolUse
from cutaway.server.body import Body, Stops, Unsupported, examples, optional
from cutaway.server.model_cache import ModelSlot
from cutaway.server.service import Service
from cutaway.server.shared.conversation import ONLY_TEXT, Conversing, Messages
from cutaway.server.shared.fields import NumberFields, Read, own_form
from cutaway.server.shared.thinking import ThinkingFields
from cutaway.text.thinking_switch import NO_WISH, ThinkingWish

KeepAlive = float | str | None
STAYS = (
    "how long the model stays loaded when idle: seconds, or as in 5m; 0 unloads it, below 0: "
    "always; ignored by a server of one model without --unload-after"
)
INERT = "ignored: an option of cutaway serve"


class _Context(Body):
    num_ctx: int | None = optional(
        "an option of cutaway serve (--context); a note says if the server's is less"
    )
    num_keep: int | None = optional("ignored: no text is cut here")


_INERT: dict[str, Any] = {
    name: (kind, Field(None, description=INERT))
    for kind, names in (
        (int | None, "num_batch num_gpu main_gpu num_thread"),
        (bool | None, "numa low_vram f16_kv logits_all vocab_only use_mmap use_mlock"),
        (bool | None, "embedding_only"),
    )
    for name in names.split()
}
OllamaMachine: Any = create_model(
    "OllamaMachine", __base__=_Context, __doc__="How a machine computes.", **_INERT
)


class OllamaOptions(OllamaMachine, NumberFields):  # type: ignore[misc]  # as TextFields
    """Ollama's options, and those of the sampler that it does not have."""

    num_predict: int | None = optional(
        "new tokens at most; -1 or left out: as many as fit the context"
    )
    seed: int | None = optional("below 0 or left out: one is chosen")
    stop: Stops | None = None
    repeat_penalty: float | None = optional("Ollama's name of repetition_penalty")
    mirostat_tau: float | None = optional("ignored without mirostat")
    mirostat_eta: float | None = optional("ignored without mirostat")
    unsupported: ClassVar[Unsupported] = {
        "mirostat": ((0,), "is not supported; leave it out"),
        "tfs_z": ((1, 1.0), "is not supported; leave it out"),
        "penalize_newline": ((True,), "a line feed is penalized like any token here; leave it out"),
        "repeat_last_n": ((-1,), "penalties apply to all of a text here; leave it out"),
    }

    def to_keywords(self) -> dict[str, Any]:
        """Return the keywords that were given."""
        if self.repeat_penalty is not None and self.repetition_penalty is not None:
            raise InputError("repeat_penalty", " is repetition_penalty: give one")
        keywords = {name: getattr(self, name) for name in own_form("ollama")}
        keywords["max_tokens"] = self.num_predict
        if self.repeat_penalty is not None:
            keywords["repetition_penalty"] = self.repeat_penalty
        if self.seed is not None and self.seed < 0:
            keywords["seed"] = None
        if self.top_k == -1:
            keywords["top_k"] = 0
        if self.num_predict in (-1, -2):
            keywords["max_tokens"] = None
        return {name: value for name, value in keywords.items() if value is not None}


class OllamaFields(ThinkingFields, Conversing):
    """What every request for text may say."""

    FACE: ClassVar[str] = "chat"  # the API whose field names an answer's settings use
    PROMPT: ClassVar[str] = "prompt"
    FILL: ClassVar[bool] = True
    user: ClassVar[None] = None
    trace: ClassVar[bool] = False
    return_token_ids: ClassVar[bool] = False
    readings: ClassVar[Sequence[str]] = ()

    model: str | None = optional("one of /api/tags, with :latest or without; left out: the first")
    stream: bool = Field(True, description="lines of JSON, a token at a time")
    format: Literal["", "json"] | dict[str, Any] | None = optional(
        "json: any object; or the JSON schema of the text"
    )
    options: OllamaOptions | None = optional("what is left out is as for /v1")
    think: bool | Literal["low", "medium", "high", "max"] | None = optional(
        "whether the model thinks, or how much; left out: as its template has it"
    )
    logprobs: bool | None = optional("include each token's log-probability")
    top_logprobs: int | None = optional("and those of the likeliest tokens in its place, 0 to 1000")
    keep_alive: KeepAlive = optional(STAYS)
    unsupported: ClassVar[Unsupported] = {
        "truncate": ((False,), "nothing is cut here; shorten it yourself"),
        "shift": ((False,), "nothing is cut here; a text ends where the context is full"),
    }

    def prompt_to_log(self) -> Any:
        """Return the prompt as it was sent, for the log."""
        return self.model_dump(include={self.PROMPT}, exclude_none=True).get(self.PROMPT)

    def field_names(self) -> Mapping[str, str]:
        """Return the name that each keyword's field has in this request."""
        renamed = {"repetition_penalty": "repeat_penalty"}
        return {"prompt": self.PROMPT, **fields_at("ollama"), **renamed}

    def keywords(self) -> dict[str, Any]:
        """Return the keywords that were given."""
        keywords = self.options.to_keywords() if self.options else {}
        if self.top_logprobs is not None and not self.logprobs:
            raise InputError("top_logprobs", " needs logprobs: true")
        if self.logprobs:
            keywords["logprobs"] = self.top_logprobs or 0
        schema = {"type": "object"} if self.format == "json" else self.own_schema
        return keywords if schema is None else {**keywords, "json_schema": schema}

    @property
    def own_schema(self) -> dict[str, Any] | None:
        """The JSON schema in the field format; None for "json" and for plain text."""
        return self.format if isinstance(self.format, dict) else None

    def _make_use(self, service: Service) -> ToolUse:
        """Return the tools and the thinking; InputError for ``think`` if the model cannot think."""
        if self.think and service.llm.model.thinking is None:
            raise InputError(
                "think",
                f": {self.model or service.names.first} does not support thinking: its "
                "template has no tokens for it; leave it out",
            )
        return ToolUse(service.llm.model, self.offered_tools(), wish=self.wish(service))

    def wish(self, service: Service) -> ThinkingWish:
        """Return the request's wish for thinking; a level that the template lacks is on."""
        think, model = self.think, service.llm.model
        if isinstance(think, str) and model.template:
            levels = model.thinking_switch.levels
            think = think if think in levels else True
        return self.make_wish(service, ("think", think))

    def offered_tools(self) -> Sequence[Any]:
        """Return the tools that the answer may call."""
        return ()

    def notes(self, service: Service) -> Iterator[str]:
        """Yield notes on how thinking was read, and on a num_ctx above the server's room."""
        yield from self.use_notes
        room = self.options and self.options.num_ctx
        if room and room > service.room:
            yield f"num_ctx: the server has room for {service.room} tokens; --context says so"


# -- the two requests --------------------------------------------------------------------------


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
        """Return the prompt, the keywords, and a ``ToolUse`` without tools."""
        use = self.use(service)
        keywords = await asyncio.to_thread(self.keywords)
        prompt, keywords = await self._prompt(service, keywords)
        return Read([prompt], keywords, use)

    def wish(self, service: Service) -> ThinkingWish:
        """Return the request's wish for thinking; no wish if the chat template is not used."""
        return NO_WISH if self.raw or self.suffix else super().wish(service)

    async def _prompt(self, service: Service, keywords: dict[str, Any]) -> tuple[Prompt, Any]:
        """Return the prompt, and the keywords of its request."""
        if self.raw:
            for name in ("system", "context", "suffix"):
                if getattr(self, name):
                    raise InputError(name, f": raw is the whole prompt: leave out {name} or raw")
            return self.prompt, {**keywords, "special": True}
        llm = service.llm
        if self.suffix:
            return self._infill_prompt(service), {**keywords, "suffix": self.suffix}
        if llm.model.template is None and not (self.system or self.context):
            return self.prompt, keywords
        ids = await self.ids(service)
        if not self.context:
            return ids, keywords
        has_bos = ids[:1] == [llm.tokenizer.bos_id]
        return [*self.context, *ids[has_bos:]], keywords

    def _infill_prompt(self, service: Service) -> str:
        """Return the text before a suffix; InputError if the model cannot fill in text."""
        if service.llm.tokenizer.fim is None:
            raise InputError(
                "suffix",
                ": this model has no fill-in-the-middle tokens and does not support "
                "insert; /v1/completions does without (docs/fill.md)",
            )
        for name in ("system", "context"):
            if getattr(self, name):
                raise InputError(name, ": leave it out, or leave out suffix")
        return self.prompt

    def conversation(self) -> Messages:
        """Return the system prompt, if any, and the prompt as a user's message."""
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

    def offered_tools(self) -> Sequence[Any]:
        """Return the tools that the answer may call."""
        return self.tools or ()

    @property
    def goes_on(self) -> bool:
        """Whether the last message is the beginning of the answer."""
        return self.messages[-1].role == "assistant"

    def conversation(self) -> Messages:
        """Return the messages as chat templates take them."""
        return [*_plain(self.messages)]


def _plain(messages: Sequence[OllamaTurn]) -> Iterator[dict[str, Any]]:
    """Yield messages as chat templates take them; each tool result has the id of its call."""
    open_calls: list[tuple[str, str]] = []  # (id, name), oldest first
    for i, message in enumerate(messages):
        plain_message: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.thinking is not None:
            plain_message["reasoning_content"] = message.thinking
        if message.tool_calls and message.role == "assistant":
            calls = [_call(call, f"call_{i}_{n}") for n, call in enumerate(message.tool_calls)]
            open_calls += [(call["id"], call["function"]["name"]) for call in calls]
            plain_message["tool_calls"] = calls
        elif message.role == "tool":
            plain_message["tool_call_id"] = id = message.tool_call_id or _find_open_call(
                message, i, open_calls
            )
            open_calls = [call for call in open_calls if call[0] != id]
        yield plain_message


def _call(call: OllamaGivenCall, otherwise: str) -> dict[str, Any]:
    arguments = json.dumps(call.function.arguments, ensure_ascii=False)
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id or otherwise, "type": "function", "function": function}


def _find_open_call(message: OllamaTurn, i: int, calls: Sequence[tuple[str, str]]) -> str:
    """Return the id of the oldest unanswered call to the named tool, or to any if none is named."""
    for id, name in calls:
        if message.tool_name in (None, name):
            return id
    raise InputError(
        Name("messages", i),
        " is of a tool, and no call before it is without an answer; give the "
        "assistant's message with its tool_calls",
    )


# -- how long an idle model stays loaded -------------------------------------------------------


_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|ms|s|m|h)")
_DURATION = re.compile(rf"[+-]?(?:{_PART.pattern})+")
_LONGEST = 10.0 * 365 * 24 * 3600


def keep_alive_setter(slot: ModelSlot | None, keep_alive: float | str | None) -> Callable[[], None]:
    """Return a function that sets how long an idle model stays loaded.

    Call it once the request has begun. If slot is None, the model always stays loaded, and the
    function does nothing. InputError if keep_alive is not a duration.
    """
    if slot is None:
        return lambda: None
    if keep_alive is None:
        return slot.keep_as_usual
    seconds = seconds_of(keep_alive)
    return partial(slot.keep, seconds if 0 <= seconds <= _LONGEST else None)


def seconds_of(keep_alive: float | str) -> float:
    """Read a number of seconds, or a text such as "1h30m"; below 0 means for ever."""
    if not isinstance(keep_alive, str):
        return keep_alive
    text = keep_alive.strip()
    if re.fullmatch(r"[+-]?\d+\.?\d*", text):
        return float(text)
    if not _DURATION.fullmatch(text):
        raise InputError(
            "keep_alive", f" must be seconds, or a time as in 5m or 1h30m, not {text!r:.40}"
        )
    total = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    return -total if text.startswith("-") else total
