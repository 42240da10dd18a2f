"""Write a conversation the way the model was trained to read it.

Knows the model's own template. Only the template opens and closes turns: a message or a tool that
spells a special token stays text. Jinja2 is imported at the first rendering, because
completion never needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from cutaway.base.checks import check_bool
from cutaway.errors import CutawayError, FormatError, InputError
from cutaway.text.tokenizers.vocabulary import special_id

if TYPE_CHECKING:
    from jinja2 import Template

    from cutaway.text.tokenizers import Tokenizer
    from cutaway.text.tools.dialect import Dialect
    from cutaway.text.tools.tool import Tool
    from cutaway.text.tools.tool_support import ToolSupport

FIELD = "tokenizer.chat_template"
_RESERVED = frozenset(
    {"messages", "tools", "bos_token", "eos_token", "builtin_tools"}
    | {"add_generation_prompt", "continue_final_message"}
)
"""Variables that a request cannot set: they have fields of their own, or are not supported."""
_MAX_DEPTH = 68  # of nested lists and objects: 64 of a schema, and 4 around it
ORIGIN = "cutaway.chat_template_origin"  # the template's file, unless that is a GGUF file


class ChatTemplate:
    """A Jinja2 template with the variables and the sandbox of ``transformers``."""

    def __init__(self, source: str, bos_token: str, eos_token: str) -> None:
        self.source = source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], tokenizer: Tokenizer) -> ChatTemplate | None:
        """Read the file's template; None if there is none, FormatError if the field is not text."""
        source = metadata.get(FIELD)
        if source is None:
            return None
        if not isinstance(source, str):
            raise FormatError(f"{FIELD} is not a text: convert the model again")
        eos_id = special_id(metadata, "tokenizer.ggml.eos_token_id", tokenizer.vocab_size)
        bos, eos = (
            "" if token_id is None else tokenizer.token_name(token_id)
            for token_id in (tokenizer.bos_id, eos_id)
        )
        return cls(source, bos, eos)

    def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        tokenizer: Tokenizer,
        check: Callable[[str], object] = str,
        tools: Sequence[Tool] = (),
        *,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> list[int]:
        """Return the token ids of the prompt for a conversation; raise as ``render`` does.

        check: gets the prompt before it is tokenized, and raises to refuse it
        """
        template_messages, template_tools = self._prepare(messages, tools, continue_final_message)
        mark = self._find_unused_letter(template_messages, template_tools, variables)
        escape = partial(tokenizer.escape_special_tokens, mark=mark)
        template_messages, template_tools = (
            _map_strings(template_messages, escape),
            _map_strings(template_tools, escape),
        )
        variables = {name: _map_strings(value, escape) for name, value in variables.items()}
        end = mark if continue_final_message else ""
        text = self._text(template_messages, template_tools, variables, end)
        check(text.replace(mark, ""))
        return tokenizer.encode(text, special=True, mark=mark)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Tool] = (),
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        """Return the prompt for ``messages``, which have the form of OpenAI's chat.

        tools: the tools that the model may call
        add_generation_prompt: end with the opening of the assistant's turn
        continue_final_message: end with the last message, the assistant's, to be continued
        variables: other variables that the template reads (enable_thinking, ...)
        InputError: a malformed message, or one that the template refuses; tools whose calls
        this model writes in a form that is not supported; a message that cannot be continued.
        FormatError: a template that cannot be compiled or fails.
        """
        variables["add_generation_prompt"] = add_generation_prompt
        template_messages, template_tools = self._prepare(messages, tools, continue_final_message)
        end = (
            self._find_unused_letter(template_messages, template_tools)
            if continue_final_message
            else ""
        )
        return self._text(template_messages, template_tools, variables, end)

    def dialect(self, tokenizer: Tokenizer) -> Dialect:
        """Return how the model writes tool calls; InputError where that is not supported."""
        form = self._tool_support
        if form.dialect is None:
            raise InputError(*form.refusal)
        end = form.dialect.end.removesuffix(self._tokens["eos_token"])  # EOS ends the answer anyway
        dialect = replace(form.dialect, end=end)
        texts = [part for part in dialect.all_parts if isinstance(part, str)]
        return replace(dialect, control=tokenizer.control_tokens("".join(texts)))

    def _prepare(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Tool], goes_on: bool
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
        """Return (messages, tools) for the template. goes_on: the last message is continued."""
        from cutaway.text.messages import (  # not for completion
            check_goes_on,
            split_messages,
            to_template_messages,
        )

        read = to_template_messages(messages)
        if check_bool("continue_final_message", goes_on):
            check_goes_on(read[-1])
        read = split_messages(read, self.source)
        if not tools and not any(m["role"] == "tool" or "tool_calls" in m for m in read):
            return read, None
        if tools and self._tool_support.dialect is None:
            raise InputError(*self._tool_support.refusal)
        return self._tool_support.prepare(read, tools)

    def _text(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        variables: Mapping[str, Any],
        end: str,
    ) -> str:
        """Render prepared messages; with an ``end``, only up to the end of the last message.

        As in ``transformers``, a mark after the last message shows where it ends. The mark is the
        character ``end``, written twice. A template that trims messages also removes the space
        after the mark.
        """
        if not end:
            return self.render_prepared(messages, tools, variables)
        *before, last = messages
        content, cut = last["content"], 2 * end  # no escaped text has ``end`` twice
        marked = [*before, {**last, "content": f"{content}{cut} "}]
        text, separator, rest = self.render_prepared(
            marked, tools, {**variables, "add_generation_prompt": False}
        ).rpartition(cut)
        stripped = content.strip()
        if not (separator and text.rstrip().endswith(stripped)):
            raise InputError(
                "continue_final_message",
                ": the model's chat template does not end with the last "
                "message as it is, so that it cannot go on; leave it out",
            )
        return text if not stripped or rest.startswith(" ") else text.rstrip()

    def render_prepared(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any],
    ) -> str:
        """Render messages and tools that already have the form which the template takes."""
        context: dict[str, Any] = {
            **self._tokens,
            "messages": messages,
            "add_generation_prompt": True,
        }
        if tools is not None:
            context["tools"] = tools
        try:
            from cutaway.text.sandbox import render_pieces

            context |= variables
            input_size = sum(len(text) for value in context.values() for text in _strings(value))
            return render_pieces(lambda: self._template.generate(**context), input_size)
        except CutawayError:
            raise  # raise_exception in the template, a failed compilation, an old Jinja2
        except Exception as error:  # a template is a program and may fail in any way
            raise _broken(error) from error

    def _find_unused_letter(self, *values: Any) -> str:
        """Return a character that occurs neither in the template nor in these values.

        The character is a rare letter without case: templates may trim or rewrite an unprintable
        character, but do not change a letter.
        """
        used = set(self.source).union(*(string for value in values for string in _strings(value)))
        unused = (letter for letter in map(chr, range(0x20000, 0x2A6D7)) if letter not in used)
        if letter := next(unused, None):
            return letter
        raise InputError(
            "messages", ": they have all of CJK Extension B; leave out one of its letters"
        )

    @cached_property
    def variables(self) -> frozenset[str]:
        """The names of the variables that the template reads and a request may set."""
        from cutaway.text.sandbox import variables_of

        try:
            return variables_of(self.source) - _RESERVED
        except CutawayError:
            raise  # an old Jinja2
        except Exception as error:  # as in ``_template``
            raise _broken(error) from error

    @cached_property
    def named_roles(self) -> frozenset[str]:
        """The roles for which the template writes a message's ``name``."""
        roles = ("system", "user", "assistant")
        probes = [{"role": role, "content": "a", "name": f"cutaway probe {role}"} for role in roles]
        # The second conversation is for templates that take no system message.
        for messages in ([*probes, probes[1]], [*probes[1:], probes[1]]):
            try:
                text = self.render_prepared(messages, None, {})
            except (InputError, FormatError):
                continue
            return frozenset(role for role in roles if f"cutaway probe {role}" in text)
        return frozenset()

    def has(self, word: str) -> bool:
        """Return whether the template's source has this word as a quoted string."""
        return f"'{word}'" in self.source or f'"{word}"' in self.source

    @cached_property
    def _tool_support(self) -> ToolSupport:
        from cutaway.text.tools.tool_support import ToolSupport

        def render(messages: Sequence[Mapping[str, Any]], tools: Any) -> str:
            return self.render_prepared(messages, tools, {"add_generation_prompt": False})

        return ToolSupport.probe(self.source, render)

    @cached_property
    def _template(self) -> Template:
        from cutaway.text.sandbox import environment

        sandbox = environment()
        try:
            return sandbox.from_string(self.source)
        except Exception as error:  # the compiler may also reach limits of Python
            raise _broken(error) from error


def _map_strings(value: Any, change: Callable[[str], str], depth: int = 0) -> Any:
    """Return a JSON value with each of its strings changed, keys of objects included.

    InputError for a value that JSON cannot express: a template could write it with its strings
    unchanged.
    """
    if isinstance(value, str):
        return change(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if depth > _MAX_DEPTH:
        raise InputError("messages", f" must not nest deeper than {_MAX_DEPTH} levels")
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise InputError("messages", ": an object's keys must be strings")
        return {change(k): _map_strings(v, change, depth + 1) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_map_strings(item, change, depth + 1) for item in value]
    raise InputError(
        "messages",
        f": a message cannot hold a {type(value).__name__}; it holds text, numbers, true, "
        "false, null, lists and objects",
    )


def _strings(value: Any) -> list[str]:
    """Return every string in a JSON value."""
    strings: list[str] = []

    def keep(string: str) -> str:
        strings.append(string)
        return string

    _map_strings(value, keep)
    return strings


def _broken(error: Exception) -> FormatError:
    message = " ".join(str(error).split()) or "no reason given"
    line = getattr(error, "lineno", None)
    place = f" in line {line}" if line else ""
    return FormatError(
        f"{FIELD} fails{place} ({type(error).__name__}: {message}): "
        "check the messages, or give another template"
    )
