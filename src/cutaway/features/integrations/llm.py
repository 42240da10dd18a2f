"""The models of cutaway in Simon Willison's `llm`: ``llm -m cutaway/smollm2 "The sky is"``.

llm imports this module at each start, by its entry point, so heavy modules are imported only when
they are used.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, Any

import llm
from llm.parts import AttachmentPart, ReasoningPart, StreamEvent, ToolCallPart, ToolResultPart

from cutaway.errors import InputError
from cutaway.files.hub.catalog import CATALOG, DEFAULT_MODEL

if TYPE_CHECKING:
    from cutaway.api.llm import LLM
    from cutaway.requests.answer import AnswerPart

_REQUEST_OPTIONS = {
    "seed": (int, "same seed, same text; without it one is chosen, which the log has"),
    "max_tokens": (int, "tokens to write at most; without it, as many as the context holds"),
    "stop": (str | list[str], "stop before this text"),
    "preset": (str, "order of the sampling stages"),
    "regex": (str, "write a text that this regular expression matches"),
    "grammar": (str, "write a text of this grammar, in Lark's notation or in llama.cpp's (GBNF)"),
    "trace": (str, "record the run in this file"),
}
_MODEL = "an alias of 'cutaway models', a .gguf file, a folder of transformers, or hf:org/repo"


@llm.hookimpl
def register_models(register: Callable[..., None]) -> None:
    """Register a model that an option names, and the catalogue's models that generate text."""
    register(Chat("cutaway"), AsyncChat("cutaway"))
    for name, model in CATALOG.items():
        if model.writes:
            register(Chat(f"cutaway/{name}", name), AsyncChat(f"cutaway/{name}", name))


@llm.hookimpl
def register_embedding_models(register: Callable[..., None]) -> None:
    """Register all models of the catalogue, since each can embed texts."""
    for name in CATALOG:
        register(Vectors(f"cutaway/{name}", name))


_opened: dict[str, "LLM"] = {}
_opening = Lock()


def open_model(name: str) -> "LLM":
    """Load the model of that name once. It stays open: llm does not say when to close it."""
    from cutaway.api.llm import LLM

    with _opening:
        if name not in _opened:
            _opened[name] = LLM(name)
        return _opened[name]


@cache
def _options(*, names_model: bool) -> type[llm.Options]:
    """Make the class of a model's options, only when needed: the table of options needs NumPy."""
    from pydantic import Field, create_model

    from cutaway.sampling import PARAMS

    numbers = {
        name: (param.type, f"{param.help}; {param.range}, default {param.default:g}")
        for name, param in PARAMS.items()
    }
    model_option = {"model": (str, _MODEL)} if names_model else {}
    fields: dict[str, Any] = {
        name: (kind | None, Field(None, description=text))
        for name, (kind, text) in {**model_option, **numbers, **_REQUEST_OPTIONS}.items()
    }
    options_class: type[llm.Options] = create_model("Options", __base__=llm.Options, **fields)
    return options_class


class _Chats:
    """The common base of both kinds of model. name: None if an option names the model.

    Both yield tokens as they are generated, streamed or not; a prompt has its whole conversation.
    """

    can_stream = True
    supports_schema = True
    supports_tools = True

    def __init__(self, model_id: str, name: str | None = None) -> None:
        self.model_id, self._name = model_id, name

    @property
    def Options(self) -> type[llm.Options]:  # noqa: N802 - llm's own name
        """The options of a prompt."""
        return _options(names_model=self._name is None)

    def _answer(self, prompt: llm.Prompt) -> "Answer":
        options = {name: value for name, value in prompt.options if value is not None}
        name = self._name or options.pop("model", DEFAULT_MODEL)
        return Answer(open_model(name), prompt, options)


class Chat(_Chats, llm.Model):  # type: ignore[misc]  # llm may not be installed
    """A model that answers a conversation."""

    def execute(
        self, prompt: llm.Prompt, response: llm.Response, **_: Any
    ) -> Iterator[StreamEvent]:
        """Yield text, thoughts and calls as they are generated."""
        answer = self._answer(prompt)
        with closing(answer):
            yield from answer.events()
        answer.tell(response)


class AsyncChat(_Chats, llm.AsyncModel):  # type: ignore[misc]
    """The same model for asyncio; other threads wait for its tokens."""

    async def execute(
        self, prompt: llm.Prompt, response: llm.AsyncResponse, **_: Any
    ) -> AsyncIterator[StreamEvent]:
        """Yield text, thoughts and calls as they are generated."""
        answer = await asyncio.to_thread(self._answer, prompt)
        with closing(answer):
            events = answer.events()
            while (event := await asyncio.to_thread(next, events, None)) is not None:
                yield event
        answer.tell(response)


class Answer:
    """One queued answer. Raises InputError, which llm shows, if the request cannot run."""

    def __init__(self, model: "LLM", prompt: llm.Prompt, keywords: Mapping[str, Any]) -> None:
        """keywords: the request's keywords."""
        from cutaway.requests.tools import ToolUse
        from cutaway.text.messages import with_schema

        use = ToolUse(model.model, [_tool(tool) for tool in prompt.tools])
        messages = [turn for message in prompt.messages for turn in _messages(message)]
        if prompt.schema:
            messages = with_schema(messages, prompt.schema, use.tools)
            keywords = {**keywords, "json_schema": prompt.schema}
        if model.template is None and [turn["role"] for turn in messages] == ["user"]:
            ids = model.tokenize(messages[0]["content"])  # the model only continues texts
        else:
            ids = model.chat_prompt(messages, use.tools)
        room = max(1, model.room - len(ids))
        use.set_prompt(ids)
        options = use.options({"max_tokens": room, **keywords})
        self._stream = model.stream(ids, **options)
        self._reader = use.reader(f"{len(messages)}")

    def events(self) -> Iterator[StreamEvent]:
        """Yield text, thoughts and calls as they are generated."""
        for step in self._stream:
            yield from self._convert(self._reader.push(step))
        yield from self._convert(self._reader.finish(self._stream.held_text))

    def _convert(self, deltas: "Iterable[AnswerPart]") -> Iterator[StreamEvent]:
        from cutaway.text.thinking import Thought
        from cutaway.text.tools import Arguments, CallStart, Content

        for delta in deltas:
            match delta:
                case Content():
                    yield StreamEvent("text", delta.text)
                case Thought():
                    yield StreamEvent("reasoning", delta.text)
                case CallStart():
                    id, name = delta.id, delta.tool.name
                    yield StreamEvent("tool_call_name", name, tool_call_id=id)
                case Arguments():
                    id = self._reader.message["tool_calls"][delta.index]["id"]
                    yield StreamEvent("tool_call_args", delta.text, tool_call_id=id)

    def tell(self, response: Any) -> None:
        """Fill in the usage, model, seed and calls, which llm logs.

        InputError if the answer was cut within a call.
        """
        done = replace(self._stream.completion(), new_messages=(self._reader.message,))
        cached = {"prompt_tokens_details": {"cached_tokens": done.usage.cached_tokens}}
        response.set_usage(
            input=done.usage.prompt_tokens, output=done.usage.completion_tokens, details=cached
        )
        response.set_resolved_model(done.model)
        response.response_json = {
            "finish_reason": done.finish_reason, "seed": done.seed,
            "fingerprint": done.fingerprint, "notes": [*done.notes],
        }  # fmt: skip
        for call in done.tool_calls:
            response.add_tool_call(llm.ToolCall(call.name, call.values(), call.id))

    def close(self) -> None:
        """Stop generating."""
        self._stream.close()


def _tool(tool: llm.Tool) -> dict[str, Any]:
    """Return a tool in the form of OpenAI's chat API."""
    function = {"name": tool.name, "parameters": tool.input_schema or None}
    return {"type": "function", "function": function | {"description": tool.description or ""}}


def _messages(message: Any) -> Iterator[dict[str, Any]]:
    """Yield llm's message in OpenAI's form, in which each tool result is a message of its own."""
    text, reasoning, calls = "", "", list[dict[str, Any]]()
    for part in message.parts:
        is_result = isinstance(part, ToolResultPart)
        if isinstance(part, AttachmentPart) or (is_result and part.attachments):
            raise InputError("attachments", ": the model reads text alone; leave them out")
        if is_result:
            yield {"role": "tool", "tool_call_id": part.tool_call_id, "content": part.output}
        elif isinstance(part, ToolCallPart):
            function = {"name": part.name, "arguments": part.arguments}
            calls.append({"id": part.tool_call_id, "type": "function", "function": function})
        elif isinstance(part, ReasoningPart):
            reasoning += part.text
        else:
            text += part.text
    if message.role == "tool":
        return
    turn: dict[str, Any] = {"role": message.role, "content": text}
    yield (
        turn
        | ({"reasoning_content": reasoning} if reasoning else {})
        | ({"tool_calls": calls} if calls else {})
    )


class Vectors(llm.EmbeddingModel):  # type: ignore[misc]
    """A model that embeds texts."""

    batch_size = 64

    def __init__(self, model_id: str, name: str) -> None:
        self.model_id, self._name = model_id, name

    def embed_batch(self, items: Iterable[str], *, key: str | None = None) -> Iterator[list[float]]:  # noqa: ARG002
        """Yield the vector of each text. Errors are click's, since llm shows no others here."""
        from click import ClickException

        try:
            vectors: list[list[float]] = open_model(self._name).embed([*items]).vectors.tolist()
        except InputError as error:
            raise ClickException(str(error)) from None
        return iter(vectors)
