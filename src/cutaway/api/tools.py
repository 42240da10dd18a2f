"""Tools in a chat: what the prompt offers, what the text is held to, and the calls that it makes.

Knows how tools, grammar and splitter belong together for one request. Refuses to know who steps the
engine, and HTTP.
"""

import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from inspect import iscoroutinefunction
from typing import Any

from cutaway.api.completion import Completion, ToolCall
from cutaway.checks import shown
from cutaway.engine import Step
from cutaway.errors import InputError
from cutaway.grammar import KINDS, Grammar
from cutaway.loading.model import LoadedModel
from cutaway.text.thinking import Thinking, Thoughts
from cutaway.text.tools import (
    Arguments,
    CallEnd,
    CallStart,
    Content,
    Dialect,
    Splitter,
    Tool,
    ToolChoice,
    call_id,
    grammar,
    parse_choice,
    parse_tools,
    tool_of,
)

Function = Callable[..., Any]
Tools = Iterable[Function | Tool | Mapping[str, Any]]


@dataclass(frozen=True)
class Thought:
    """Text that is thought before the answer."""

    text: str


Delta = Thought | Content | CallStart | Arguments | CallEnd


class ToolUse:
    """The tools of one request, checked.

    tools      what the prompt offers; none where the choice is "none"
    choice     which of them may or must be called
    functions  by name, those of them that are Python's
    """

    def __init__(
        self, model: LoadedModel, tools: Tools = (), choice: Any = None, parallel: bool = True
    ) -> None:
        """choice: as OpenAI's ``tool_choice``; InputError for what cannot be."""
        self.functions: dict[str, Function] = {}
        offered = parse_tools([self._as_data(tool) for tool in _listed(tools)])
        self.choice: ToolChoice = parse_choice(choice, offered)
        if not isinstance(parallel, bool):
            raise InputError(f"parallel_tool_calls must be true or false, not {shown(parallel)}")
        self.tools: tuple[Tool, ...] = offered if self.choice.mode != "none" else ()
        self._parallel, self._model = parallel, model
        self._dialect: Dialect | None = None
        if self.tools:
            if model.template is None:
                raise InputError("tools: this model has no chat template, which has to offer them")
            self._dialect = model.template.dialect(model.tokenizer)

    def _as_data(self, tool: Function | Tool | Mapping[str, Any]) -> Any:
        if isinstance(tool, Tool) or not callable(tool):
            return tool.as_data() if isinstance(tool, Tool) else tool
        made = tool_of(tool)
        self.functions[made.name] = tool
        return made.as_data()

    def options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The keywords of a request with the grammar of the calls, which is compiled.

        InputError where they have another grammar, or a tool's schema cannot be had.
        """
        held = [name for name in KINDS if given.get(name) not in (None, (), [])]
        thinking = self._model.thinking
        thought: dict[str, Any] = {}
        if thinking and (held or self._dialect):
            thought["thought"] = thinking.grammar
        if self._dialect is None:
            return {**given, **thought}
        if held:
            raise InputError(f"tools and {held[0]} exclude each other: give one")
        if given.get("denoise") is not None:
            raise InputError(
                "tools need a text that is written from left to right: leave out tools or denoise"
            )
        text = grammar(self._dialect, self.tools, self.choice, self._parallel)
        try:
            self._model.grammars.compile(Grammar("grammar", text, **thought))
        except InputError as error:
            self._check_each()
            raise InputError(f"tools: {error}") from None
        return {**given, **thought, "grammar": text}

    def _check_each(self) -> None:
        """InputError for the first whose arguments cannot be described."""
        for i, tool in enumerate(self.tools):
            try:
                self._model.grammars.compile(Grammar("json_schema", json.dumps(tool.schema())))
            except InputError as error:
                said = str(error).removeprefix("json_schema: ")
                raise InputError(f"tools[{i}]: parameters of {tool.name}: {said}") from None

    def reader(self, request: str, thought: str = "") -> "AnswerReader":
        """Of one answer; request: what the ids of its calls are made of; thought: the keyword."""
        token_bytes = self._model.tokenizer.token_bytes
        thinking = self._model.thinking if thought else None
        if self._dialect is None:
            return AnswerReader(None, {}, token_bytes, thinking)
        allowed = self.choice.allowed(self.tools)
        required = self.choice.mode == "required"
        splitter = Splitter(self._dialect, allowed, partial(call_id, request), required)
        return AnswerReader(splitter, self._dialect.token_bytes, token_bytes, thinking)

    def free(self) -> None:
        """From now on nothing has to be called: what was required has been."""
        if self.choice.mode == "required":
            self.choice = replace(self.choice, mode="auto")

    def read(self, done: Any, request: str) -> Any:
        """A completion, or each of a list, with the message that it is."""
        if isinstance(done, list):
            return [self.read(one, f"{request}/{i}") for i, one in enumerate(done)]
        completion: Completion = done
        reader = self.reader(request, completion.params["thought"])
        for step in completion.steps:
            reader.push(step)
        reader.finish(completion.text[sum(len(step.text) for step in completion.steps) :])
        return replace(completion, new_messages=(reader.message,))

    def run(self, calls: Iterable[ToolCall]) -> list[dict[str, Any]]:
        """Call Python's functions: a message with the result of each. What they raise is raised.

        InputError where a call was cut, and then none is made; where a result is no JSON.
        """
        given = [(call, call.values()) for call in calls]
        return [self.result(call, self.functions[call.name](**values)) for call, values in given]

    @staticmethod
    def result(call: ToolCall, value: Any) -> dict[str, Any]:
        """The message that gives a call's result to the model; InputError where it is no JSON."""
        try:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(
                f"what {call.name} returned is no JSON ({error}): return text, numbers, lists or "
                "dicts"
            ) from None
        return {"role": "tool", "tool_call_id": call.id, "content": text}


@dataclass
class _Call:
    """A call while it is written."""

    start: CallStart
    arguments: str = ""
    whole: bool = False

    def to_dict(self) -> dict[str, Any]:
        name = self.start.tool.name
        if self.start.tool.format is None:
            said = {"type": "function", "function": {"name": name, "arguments": self.arguments}}
        else:
            said = {"type": "custom", "custom": {"name": name, "input": self.arguments}}
        return {"id": self.start.id, **said}


class AnswerReader:
    """One answer, split into what is said and what is called, while it is written.

    splitter     None where the answer is only said
    control      the control tokens that the splitter wants to see, by id
    token_bytes  of any token, as text
    thinking     how a thought is written that may precede the answer; None where none may
    """

    def __init__(
        self,
        splitter: Splitter | None,
        control: Mapping[int, bytes],
        token_bytes: Callable[[int], bytes],
        thinking: Thinking | None = None,
    ) -> None:
        self._splitter, self._token_bytes = splitter, token_bytes
        self._thoughts = thinking and Thoughts(thinking)
        self._control = {**control, **(thinking.token_bytes if thinking else {})}
        self._thought, self._content, self._calls = "", "", list[_Call]()
        self._made = self._shown = 0  # bytes of text
        self._due = deque[tuple[int, bytes]]()  # control tokens that text must precede

    def push(self, step: Step) -> list[Delta]:
        """What is certain after a step."""
        if step.token_id in self._control:
            self._due.append((self._made, self._control[step.token_id]))
        self._made += len(self._token_bytes(step.token_id))
        return self._push(step.text)

    def finish(self, held: str = "") -> list[Delta]:
        """What becomes certain by the end, which may release text that no step has shown."""
        deltas = self._push(held)
        if self._thoughts:
            deltas += self._split(*self._thoughts.finish())
        return deltas if self._splitter is None else [*deltas, *self._note(self._splitter.finish())]

    def _push(self, text: str) -> list[Delta]:
        """A control token is no text, and stands where it was drawn: text may come late."""
        if self._splitter is None and self._thoughts is None:
            return self._note([Content(text)] if text else [])
        data, rest = bytearray(), text.encode()
        while self._due and self._due[0][0] <= self._shown + len(rest):
            position, name = self._due.popleft()
            size = max(position - self._shown, 0)
            data += rest[:size] + name
            rest, self._shown = rest[size:], self._shown + size
        self._shown += len(rest)
        thought, said = b"", bytes(data + rest)
        if self._thoughts:
            thought, said = self._thoughts.push(said)
        return self._split(thought, said)

    def _split(self, thought: bytes, said: bytes) -> list[Delta]:
        """Whole characters: the tags that they are cut at are ASCII."""
        deltas: list[Delta] = [Thought(thought.decode())] if thought else []
        if self._splitter:
            deltas += self._splitter.push(said)
        elif said:
            deltas.append(Content(said.decode()))
        return self._note(deltas)

    def _note(self, deltas: Sequence[Delta]) -> list[Delta]:
        for delta in deltas:
            if isinstance(delta, Content):
                self._content += delta.text
            elif isinstance(delta, Thought):
                self._thought += delta.text
            elif isinstance(delta, CallStart):
                self._calls.append(_Call(delta))
            elif isinstance(delta, Arguments):
                self._calls[delta.index].arguments += delta.text
            elif isinstance(delta, CallEnd):
                self._calls[delta.index].whole = True
        return [*deltas]

    def tool(self, index: int) -> Tool:
        """Who is called by a call that has begun."""
        return self._calls[index].start.tool

    @property
    def has_called(self) -> bool:
        """Whether there are calls, the last of them whole."""
        return bool(self._calls) and self._calls[-1].whole

    @property
    def message(self) -> dict[str, Any]:
        """The answer as a message of a conversation, in OpenAI's form."""
        calls = [call.to_dict() for call in self._calls]
        content = self._content or (None if calls else "")
        said: dict[str, Any] = {"role": "assistant", "content": content}
        if self._thought:
            said["reasoning_content"] = self._thought
        return said | ({"tool_calls": calls} if calls else {})


def _listed(tools: Any) -> list[Any]:
    try:
        if isinstance(tools, (str, bytes, bytearray, memoryview, Mapping)):
            raise TypeError
        return [*tools]
    except TypeError:
        raise InputError(f"tools must be a list of tools, not {shown(tools)}") from None


def check_function(function: Function) -> None:
    """InputError for one that cannot be called from here."""
    if iscoroutinefunction(function):
        raise InputError(f"{function.__name__} is async: give a function that is not")
