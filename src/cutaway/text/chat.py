"""A conversation, written the way the model was trained to read it.

Knows the model's own template, and that only the template opens and closes turns: what looks like a
special token in a message or a tool stays text. Jinja2 is imported at the first rendering, because
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
_GIVEN = frozenset(
    {"messages", "tools", "bos_token", "eos_token", "builtin_tools"}
    | {"add_generation_prompt", "continue_final_message"}
)
"""Variables that a request cannot set: what they say has fields of its own, or no place here."""
_MAX_DEPTH = 68  # of lists and objects in each other: a schema's 64, and those around it
ORIGIN = "cutaway.chat_template_origin"  # the file that has it, where that was not a GGUF file


class ChatTemplate:
    """A Jinja2 template with the variables and the sandbox of ``transformers``."""

    def __init__(self, source: str, bos_token: str, eos_token: str) -> None:
        self.source = source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], tokenizer: Tokenizer) -> ChatTemplate | None:
        """The file's template, None where it has none; FormatError where it is not a text."""
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
        """Token ids of the conversation, ready to be answered; raises as ``render`` does.

        check: may refuse the text before it is read, by raising
        """
        said, offered = self._prepared(messages, tools, continue_final_message)
        mark = self._unused(said, offered, variables)
        escape = partial(tokenizer.escape_special_tokens, mark=mark)
        said, offered = _map_strings(said, escape), _map_strings(offered, escape)
        variables = {name: _map_strings(value, escape) for name, value in variables.items()}
        end = mark if continue_final_message else ""
        text = self._text(said, offered, variables, end)
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
        """The prompt for ``messages``, as OpenAI's chat takes them.

        tools: what the model may call
        add_generation_prompt: end with the opening of the assistant's turn
        continue_final_message: end with the last message, which is the assistant's and goes on
        variables: more of what the template may ask for (enable_thinking, ...)
        InputError: a malformed message, or one that the template refuses; tools whose calls
        this model writes in a form that is not supported; a message that cannot go on.
        FormatError: a template that cannot be compiled or fails.
        """
        variables["add_generation_prompt"] = add_generation_prompt
        said, offered = self._prepared(messages, tools, continue_final_message)
        end = self._unused(said, offered) if continue_final_message else ""
        return self._text(said, offered, variables, end)

    def dialect(self, tokenizer: Tokenizer) -> Dialect:
        """How the model writes calls of tools; InputError where that is not supported."""
        form = self._tool_support
        if form.dialect is None:
            raise InputError(*form.refusal)
        end = form.dialect.end.removesuffix(self._tokens["eos_token"])  # which ends the answer
        found = replace(form.dialect, end=end)
        texts = [part for part in found.all_parts if isinstance(part, str)]
        return replace(found, control=tokenizer.control_tokens("".join(texts)))

    def _prepared(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Tool], goes_on: bool
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
        """(messages, tools) as the template takes them. goes_on: the last is to be continued."""
        from cutaway.text.harmony import MARK, for_harmony
        from cutaway.text.messages import check_goes_on, for_template  # no text needs these

        read = for_template(messages)
        if check_bool("continue_final_message", goes_on):
            check_goes_on(read[-1])
        if MARK in self.source:
            read = for_harmony(read)
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
        """As ``written``; up to the end of the last message, if there is a character for it.

        The end is found as ``transformers`` finds it. A template that trims messages trims this
        one, too, so that the space behind the mark is gone.
        """
        if not end:
            return self.written(messages, tools, variables)
        *before, last = messages
        content, cut = last["content"], 2 * end  # which no escaped text has
        marked = [*before, {**last, "content": f"{content}{cut} "}]
        text, found, rest = self.written(
            marked, tools, {**variables, "add_generation_prompt": False}
        ).rpartition(cut)
        said = content.strip()
        if not (found and text.rstrip().endswith(said)):
            raise InputError(
                "continue_final_message",
                ": the model's chat template does not end with the last "
                "message as it is, so that it cannot go on; leave it out",
            )
        return text if not said or rest.startswith(" ") else text.rstrip()

    def written(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any],
    ) -> str:
        """The text of messages and tools that are as the template takes them."""
        known: dict[str, Any] = {
            **self._tokens,
            "messages": messages,
            "add_generation_prompt": True,
        }
        if tools is not None:
            known["tools"] = tools
        try:
            from cutaway.text.sandbox import rendered

            known |= variables
            given = sum(len(text) for value in known.values() for text in _strings(value))
            return rendered(lambda: self._template.generate(**known), given)
        except CutawayError:
            raise  # the template's own raise_exception, a FormatError of compiling, an old Jinja2
        except Exception as error:  # a template is a program and may fail in any way
            raise _broken(error) from error

    def _unused(self, *values: Any) -> str:
        """A character that neither the template nor these values have.

        A rare letter without case, which templates neither trim nor write otherwise, as they would
        one that cannot be printed.
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
        """The names of what the template reads and a request may set."""
        from cutaway.text.sandbox import variables_of

        try:
            return variables_of(self.source) - _GIVEN
        except CutawayError:
            raise  # an old Jinja2
        except Exception as error:  # as in ``_template``
            raise _broken(error) from error

    @cached_property
    def named_roles(self) -> frozenset[str]:
        """The roles of messages whose names the template shows."""
        roles = ("system", "user", "assistant")
        said = [{"role": role, "content": "a", "name": f"cutaway probe {role}"} for role in roles]
        for messages in ([*said, said[1]], [*said[1:], said[1]]):  # some take no system message
            try:
                text = self.written(messages, None, {})
            except (InputError, FormatError):
                continue
            return frozenset(role for role in roles if f"cutaway probe {role}" in text)
        return frozenset()

    def has(self, word: str) -> bool:
        """Whether the template has this string."""
        return f"'{word}'" in self.source or f'"{word}"' in self.source

    @cached_property
    def _tool_support(self) -> ToolSupport:
        from cutaway.text.tools.tool_support import ToolSupport

        def render(messages: Sequence[Mapping[str, Any]], tools: Any) -> str:
            return self.written(messages, tools, {"add_generation_prompt": False})

        return ToolSupport.of(self.source, render)

    @cached_property
    def _template(self) -> Template:
        from cutaway.text.sandbox import environment

        sandbox = environment()
        try:
            return sandbox.from_string(self.source)
        except Exception as error:  # the compiler meets Python's own limits, too
            raise _broken(error) from error


def _map_strings(value: Any, change: Callable[[str], str], depth: int = 0) -> Any:
    """The same JSON value with each string in it changed, an object's keys too.

    InputError for what JSON cannot say: a template would write its text unseen.
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
    """Each string in a JSON value."""
    found: list[str] = []

    def keep(string: str) -> str:
        found.append(string)
        return string

    _map_strings(value, keep)
    return found


def _broken(error: Exception) -> FormatError:
    said = " ".join(str(error).split()) or "no reason given"
    line = getattr(error, "lineno", None)
    place = f" in line {line}" if line else ""
    return FormatError(
        f"{FIELD} fails{place} ({type(error).__name__}: {said}): "
        "check the messages, or give another template"
    )
