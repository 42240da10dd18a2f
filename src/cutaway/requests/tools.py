"""Tools of a chat: the tools in the prompt, the grammar of their calls, and running the calls."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from inspect import iscoroutinefunction
from typing import Any

from cutaway.base.checks import check_bool, shown
from cutaway.compute.loading.model import LoadedModel
from cutaway.engine.constraint.tokens import ThinkingBudget
from cutaway.errors import InputError, Name
from cutaway.requests.answer import AnswerReader, SchemaOrCalls
from cutaway.requests.completion import Completion, ToolCall
from cutaway.text.grammar import KINDS, Grammar, json_schema
from cutaway.text.grammar.compiler import (
    Compiled,
    byte_matcher,
)
from cutaway.text.grammar.llguidance_source import nested_json
from cutaway.text.grammar.matcher import Matcher
from cutaway.text.message_form import MessageForm
from cutaway.text.thinking import Thinking
from cutaway.text.thinking_switch import AS_IS, NO_WISH, ThinkingWish
from cutaway.text.tools import (
    CallParser,
    Dialect,
    Tool,
    ToolChoice,
    call_id,
    grammar,
    parse_choice,
    parse_tools,
    tool_of,
)
from cutaway.text.tools.enforced import EnforcedTools

_MARK = 32  # tokens of a mark at most

Function = Callable[..., Any]
Tools = Iterable[Function | Tool | Mapping[str, Any]]


class ToolUse:
    """The tools of one request, checked.

    tools      the tools that the prompt offers; none if the choice is "none"
    choice     which of them may or must be called
    functions  the Python functions among them, by name
    grammar    the grammar of the answers, compiled by ``options``; None if any text is allowed
    variables  variables of the chat template for the prompt
    """

    def __init__(
        self,
        model: LoadedModel,
        tools: Tools = (),
        choice: Any = None,
        parallel: bool = True,
        wish: ThinkingWish = NO_WISH,
        *,
        schema_field: str = "parameters",
    ) -> None:
        """choice: like OpenAI's ``tool_choice``. InputError for a bad argument.

        schema_field: the client's name of a tool's schema
        """
        self.functions: dict[str, Function] = {}
        items = [self._as_data(tool) for tool in _to_list(tools)]
        try:
            parsed = parse_tools(items)
        except InputError as error:
            path = [schema_field if part == "parameters" else part for part in error.path]
            raise (error.with_name(*path) if path else error) from None
        self.choice: ToolChoice = parse_choice(choice, parsed)
        self.tools: tuple[Tool, ...] = parsed if self.choice.mode != "none" else ()
        self._parallel, self._model = check_bool("parallel_tool_calls", parallel), model
        self._settings = model.thinking_switch.settings(wish) if wish and model.template else AS_IS
        self.variables = self._settings.variables
        self._thinking = self._usual = self._usual_thinking()
        self._is_plain = False  # whether a grammar allows no thought
        # The message that the answer continues.
        self._opening_message: Mapping[str, Any] | None = None
        self._dialect: Dialect | None = None
        self._enforced: EnforcedTools | None = None
        if self.tools:
            self._offer([_schema_name(i, item, schema_field) for i, item in enumerate(items)])
        self.grammar: Compiled | None = None
        self._compiled: Callable[[Grammar], Compiled]  # set by ``options``
        self._either: Matcher | None = None  # of a schema's text or calls, by their bytes

    def _offer(self, schema_names: Sequence[Name]) -> None:
        """Find how the model writes calls, and which schemas its calls can keep to."""
        model, usual = self._model, self._usual
        if model.template is None:
            raise InputError("tools", ": this model has no chat template, which has to offer them")
        dialect = model.template.dialect(model.tokenizer)
        # Some families write an empty thought in each call.
        empty_thought = self._thinking.empty if self._thinking else ""
        self._dialect = replace(dialect, begin=dialect.begin.removeprefix(empty_thought))
        self._enforced = EnforcedTools(
            self.tools,
            schema_names,
            usual.calls if isinstance(usual, MessageForm) else self._dialect,
            model.grammars.read,
        )

    def _usual_thinking(self) -> Thinking | None:
        """Return how thoughts are written after a question."""
        thinking = self._model.thinking
        if isinstance(thinking, MessageForm) and self._settings.tokens is not None:
            return replace(thinking, once=True)
        return thinking

    def _as_data(self, tool: Function | Tool | Mapping[str, Any]) -> Any:
        if isinstance(tool, Tool) or not callable(tool):
            return tool.as_data() if isinstance(tool, Tool) else tool
        parsed = tool_of(tool)
        self.functions[parsed.name] = tool
        return parsed.as_data()

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks for the answer about how thinking and tools were read."""
        return (*self._settings.notes, *(self._enforced.notes if self._enforced else ()))

    @property
    def _enforced_tools(self) -> tuple[Tool, ...]:
        """The tools, with the schemas that their calls keep to."""
        return self._enforced.tools if self._enforced else ()

    @property
    def compiles(self) -> bool:
        """Whether ``options`` compiles a grammar, which may take seconds."""
        return self._dialect is not None

    def set_prompt(
        self, prompt: Sequence[int], opening_message: Mapping[str, Any] | None = None
    ) -> None:
        """Set the prompt to be answered; call this before ``options``.

        opening_message: the assistant's message that the answer continues
        """
        self._opening_message, thinking = opening_message, self._usual
        if thinking and opening_message and opening_message["content"].strip():
            thinking = thinking.with_start(opening_message["content"])
        elif thinking:
            end = self._model.tokenizer.decode(prompt[-_MARK:], special=True)
            thinking = thinking.with_prompt(end)
        self._thinking = thinking

    def options(self, keywords: Mapping[str, Any], *, ready: bool = False) -> dict[str, Any]:
        """Return a request's keywords with the grammar of the calls, compiled, as ``grammar``.

        With a JSON schema, calls may or must replace the JSON, by the choice. InputError with
        another grammar, or if the schema of a tool or of the text does not compile.

        ready: compile nothing; UncompiledError if something must be compiled
        """
        grammar_names = [name for name in KINDS if keywords.get(name) not in (None, (), [])]
        thinking, thought_keywords = self._thinking, dict[str, Any]()
        is_over = self._settings.is_off or bool(thinking and thinking.closed)
        self._is_plain = is_over and bool(grammar_names or self.choice.mode == "required")
        if thinking and (grammar_names or self._dialect) and not is_over:
            thought_keywords["thought"] = thinking.grammar
        if not (grammar_names and is_over):  # a grammar without thoughts needs no budget
            keywords = {**keywords, **self._budget()}
        if self._dialect is None:
            if isinstance(thinking, MessageForm) and thinking.once and not grammar_names:
                thought_keywords = {"grammar": thinking.any_text}  # or it could think again
            return {**keywords, **thought_keywords}
        grammars = self._model.grammars
        self._compiled = grammars.ready if ready else grammars.compile
        self._is_ready = ready
        if other_names := [name for name in grammar_names if name != "json_schema"]:
            raise InputError("tools", f" and {other_names[0]} exclude each other: give one")
        if keywords.get("denoise") is not None:
            raise InputError(
                "tools",
                " need a text that is written from left to right: leave out tools or denoise",
            )
        if isinstance(thinking, MessageForm):
            return self._compile_messages(thinking, keywords)
        either = bool(grammar_names) and self.choice.mode == "auto"
        calls = self._compile(lambda: self._grammar(only=either), **thought_keywords)
        self._either = self._compile_either(keywords, calls, ready=ready) if either else None
        if either:
            return {**keywords, **thought_keywords, "calls": calls.text}
        rest = dict(keywords)
        if grammar_names:  # a call is required, so the schema is only checked
            json_schema(rest.pop("json_schema"))
            rest.pop("json_compact", None)
        return {**rest, **thought_keywords, "grammar": calls.text}

    def _budget(self) -> dict[str, Any]:
        """Return the keyword that limits the tokens of the answer's thought."""
        thinking, settings = self._thinking, self._settings
        if thinking is None or settings.tokens is None:
            return {}
        opening, closing = thinking.opening, thinking.closing
        opens = settings.opens and not (thinking.opened or thinking.closed)
        if opens:  # as the template would write an empty thought
            _, _, closing = thinking.empty.partition(opening)
        first, last = (
            thinking.token_ids(mark, self._model.tokenizer) for mark in (opening, closing)
        )
        return {
            "thinking_budget": ThinkingBudget(
                tokens=settings.tokens,
                opening=first,
                closing=last,
                begun=thinking.opened,
                opens=opens,
            )
        }

    def _compile_messages(self, form: MessageForm, keywords: Mapping[str, Any]) -> dict[str, Any]:
        """Return a request's keywords with one grammar for all the messages of an answer."""
        if self._opening_message is not None and self.choice.mode == "required":
            raise InputError(
                "continue_final_message",
                ": this model calls no tool within an answer that has begun: leave out tool_choice",
            )
        rest, text = dict(keywords), "TEXT"
        if rest.get("json_schema") is not None:
            schema = json.loads(json_schema(rest.pop("json_schema")))
            text = nested_json(schema, compact=rest.pop("json_compact", None) is True)
        calls = self._compile(
            lambda: form.with_tools(self._enforced_tools, self.choice, text, self._parallel)
        )
        return {**rest, "grammar": calls.text}

    def _compile(self, write: Callable[[], str], thought: str = "") -> Grammar:
        """Compile the grammar of the calls, loosened if need be, and return it.

        An InputError names the tool at fault.
        """
        try:
            calls = Grammar("grammar", write(), thought=thought)
            self.grammar = self._compiled(calls)
        except InputError as error:
            assert self._enforced is not None
            allowed = self.choice.allowed_tools(self.tools)
            if not self._enforced.loosen(allowed, ready=self._is_ready):
                raise InputError("tools", f": {error}") from None
            return self._compile(write, thought)
        return calls

    def _compile_either(
        self, keywords: Mapping[str, Any], calls: Grammar, *, ready: bool
    ) -> Matcher:
        """Compile the schema and the calls; return a matcher of bytes for either text.

        ready: see ``options``
        """
        schema = json_schema(keywords["json_schema"])
        compact = keywords.get("json_compact") is True
        either = Grammar("json_schema", schema, compact, calls.thought, calls.text)
        self.grammar = self._compiled(either)
        assert self._dialect is not None
        dialect = replace(self._dialect, control={})  # control tokens are read as their names
        bare = self._grammar(only=True, dialect=dialect)
        return byte_matcher(replace(either, thought="", calls=bare), ready=ready)

    def _grammar(self, *, only: bool, dialect: Dialect | None = None) -> str:
        """Return the grammar of the answers that the choice allows.

        only: an answer consists of calls, without other text
        """
        choice = replace(self.choice, mode="required") if only else self.choice
        form = dialect or self._dialect
        assert form is not None
        return grammar(form, self._enforced_tools, choice, self._parallel)

    def reader(self, request: str) -> AnswerReader:
        """Return a reader of one answer. request: the prefix of its calls' ids."""
        token_bytes = self._model.tokenizer.token_bytes
        thinking = None if self._is_plain else self._thinking
        new_id = partial(call_id, request)
        if isinstance(thinking, MessageForm):
            parser = thinking.reader(self.choice.allowed_tools(self._enforced_tools), new_id)
            return AnswerReader(parser, {}, token_bytes, thinking)
        if self._dialect is None:
            return AnswerReader(None, {}, token_bytes, thinking)
        allowed, either = self.choice.allowed_tools(self._enforced_tools), self._either
        required = either is not None or self.choice.mode == "required"
        calls = CallParser(self._dialect, allowed, new_id, required)
        parts = SchemaOrCalls(either.fork(), calls) if either else calls
        return AnswerReader(parts, self._dialect.token_bytes, token_bytes, thinking)

    def free(self) -> None:
        """Require no more calls: the required call was made. The next answer is a new one."""
        self._thinking, self._opening_message = self._usual, None
        if self.choice.mode == "required":
            self.choice = replace(self.choice, mode="auto")

    def read(self, done: Any, request: str) -> Any:
        """Return a completion, or a list of them, with the messages parsed."""
        if isinstance(done, list):
            return [self.read(sample, f"{request}/{i}") for i, sample in enumerate(done)]
        completion: Completion = done
        reader = self.reader(request)
        for step in completion.steps:
            reader.push(step)
        reader.finish(completion.text[sum(len(step.text) for step in completion.steps) :])
        reasoning_tokens = reader.reasoning_tokens
        message = self._whole(reader.message)
        return replace(completion, new_messages=(message,), reasoning_tokens=reasoning_tokens)

    def with_notes(self, done: Any) -> Any:
        """Return a completion, or a list of them, with the notes on thinking and tools, too."""
        if isinstance(done, list):
            return [self.with_notes(sample) for sample in done]
        return replace(done, notes=(*done.notes, *self.notes)) if self.notes else done

    def _whole(self, message: dict[str, Any]) -> dict[str, Any]:
        """Join a message to the one that it continues."""
        if self._opening_message is None:
            return message
        content = self._opening_message["content"] + (message["content"] or "")
        return {**self._opening_message, **message, "content": content}

    def run(self, calls: Iterable[ToolCall]) -> list[dict[str, Any]]:
        """Call the Python functions; return a message with each result. Their errors are raised.

        InputError if a call was cut, before any is made, or if a result is not JSON.
        """
        pairs = [(call, call.values()) for call in calls]
        return [self.result(call, self.functions[call.name](**values)) for call, values in pairs]

    @staticmethod
    def result(call: ToolCall, value: Any) -> dict[str, Any]:
        """Return the message with a call's result; InputError if the result is not JSON."""
        try:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(
                f"what {call.name} returned is no JSON ({error}): return text, numbers, lists or "
                "dicts"
            ) from None
        return {"role": "tool", "tool_call_id": call.id, "content": text}


def _schema_name(i: int, tool: Any, schema_field: str) -> Name:
    """Return the client's name of a tool's schema."""
    nested = ("function",) if isinstance(tool, Mapping) and "function" in tool else ()
    return Name("tools", i, *nested, schema_field)


def _to_list(tools: Any) -> list[Any]:
    try:
        if isinstance(tools, (str, bytes, bytearray, memoryview, Mapping)):
            raise TypeError
        return [*tools]
    except TypeError:
        raise InputError("tools", f" must be a list of tools, not {shown(tools)}") from None


def check_function(function: Function) -> None:
    """Raise InputError for a coroutine function, which cannot be called here."""
    if iscoroutinefunction(function):
        raise InputError(f"{function.__name__} is async: give a function that is not")
