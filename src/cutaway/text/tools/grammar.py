"""The grammar of well-formed tool calls in a model's own dialect.

Knows llguidance's Lark: literals, control tokens by id, and ``%json`` for arguments;
``argument_rules.py`` has arguments that are a list of parameters. The call parser of the same
dialect reads every call that a grammar allows.
"""

import json
import re
from collections.abc import Sequence

from cutaway.errors import InputError
from cutaway.text.grammar.llguidance_source import nested_json
from cutaway.text.grammar.matcher import marked_call
from cutaway.text.tools.argument_rules import ArgumentRules, Rules
from cutaway.text.tools.dialect import Dialect, Parts, Slot, join_parts
from cutaway.text.tools.parameters import ParameterList
from cutaway.text.tools.tool import INPUT, Tool, ToolChoice

RAW = "lark"  # text of this format is not escaped, and its call ends the answer


def grammar(
    dialect: Dialect, tools: Sequence[Tool], choice: ToolChoice, parallel: bool = True
) -> str:
    """Return a Lark grammar, for llguidance, of the answers that ``choice`` allows.

    parallel: whether one answer may have several calls; a named tool is called once. If a call is
    required, a repeated call is the last
    InputError: no tool may be called; a custom tool's grammar that cannot be nested.
    """
    allowed = choice.require_tools(tools)
    required = choice.mode == "required"
    rules = _Calls(
        dialect, allowed, parallel and dialect.allows_several and not choice.is_named, required
    )
    return "\n".join(["%llguidance {}", *rules.start(), *rules.lines, ""])


def call_rules(
    dialect: Dialect, tools: Sequence[Tool], *, several: bool, required: bool
) -> tuple[str, list[str]]:
    """Return the expression of an answer's calls, and the rules that it refers to."""
    rules = _Calls(dialect, tools, several, required)
    return rules.calls(), rules.lines


class _Calls:
    """Collects the rules of calls; methods return expressions that refer to the rules."""

    def __init__(
        self, dialect: Dialect, tools: Sequence[Tool], several: bool, required: bool
    ) -> None:
        self._dialect, self._several, self._required = dialect, several, required
        self._marked = set[int]()  # indices of tools whose calls are captured
        self.lines = Rules(["ANY: /(?s:.*)/", "ID: /[a-zA-Z0-9]{9}/", "NUMBER: /[0-9]{1,4}/"])
        self._tools = list(enumerate(tools))
        for index, tool in self._tools:
            if dialect.form is None or tool.format == RAW:
                self.lines.append(arguments(index, tool))
            else:
                for rule in self._parameters(dialect.form, index, tool):
                    self.lines.append(rule)

    def start(self) -> list[str]:
        """Return the rules that tell where calls may begin."""
        trigger = self._dialect.trigger
        if self._required:
            return [f"start: {self.calls()}"]
        if not trigger:
            first = self._literal([self._dialect.opening[0]])
            return [
                f"start: TEXT | {self.calls()}",
                f"CALL_BEGINS: {first} ANY",
                "TEXT: ANY & ~CALL_BEGINS",
            ]
        if trigger in self._dialect.control:
            return [
                f"start: TEXT | TEXT {self.calls()}",
                f"SPELLED: ANY {json.dumps(trigger, ensure_ascii=False)} ANY",
                "TEXT: ANY & ~SPELLED",
            ]
        return [
            f"start: ANY | opened {self.calls(skip=len(trigger))}",
            f"opened[lazy]: ANY {json.dumps(trigger, ensure_ascii=False)}",
        ]

    def calls(self, skip: int = 0) -> str:
        """Return the expression of the calls, without the first ``skip`` characters."""
        dialect = self._dialect
        heads = join_parts([dialect.begin, *dialect.head])
        first = (heads[0][skip:], *heads[1:]) if isinstance(heads[0], str) else heads
        ways = []
        plain = [pair for pair in self._tools if pair[1].format != RAW]
        raw = [pair for pair in self._tools if pair[1].format == RAW]
        again = ""
        if plain:
            end = self._literal([dialect.end])
            if self._several:
                again = f"({self._any_of((dialect.between, *dialect.head), plain)})*"
                blank = dialect.between if not dialect.between.strip() else ""
                end = end or (f"{self._literal([blank])}?" if blank else "")
            ways.append(f"{self._any_of(first, plain)} {again} {end}")
        if raw:
            ways.append(self._any_of(first, raw))
            if again:
                last = self._any_of((dialect.between, *dialect.head), raw)
                ways.append(f"{self._any_of(first, plain)} {again} {last}")
        return f"({' | '.join(ways)})"

    def _parameters(self, form: ParameterList, index: int, tool: Tool) -> list[str]:
        rules = ArgumentRules(form, f"arguments_{index}", self._text, self._plain)
        try:
            rules.arguments(tool.parameters_schema())
        except InputError as error:
            raise InputError("tools", f": parameters of {tool.name}", error.reason) from None
        return rules.lines

    def _text(self, text: str) -> str:
        return self._literal([text])

    def _plain(self, text: str) -> tuple[str, str]:
        """Split a text into the part up to its first control token, and the rest."""
        at = min((text.find(name) for name in self._dialect.control if name in text), default=None)
        return (text, "") if at is None else (text[:at], text[at:])

    def _any_of(self, head: Parts, tools: Sequence[tuple[int, Tool]]) -> str:
        """Return the expression of a call of one of the tools; all calls share the head."""
        parts = join_parts(head)
        at = parts.index(Slot.NAME)
        calls = []
        for index, tool in tools:
            before, after = arguments_frame(self._dialect, tool)
            texts = [tool.name if part is Slot.NAME else part for part in parts[at:]]
            middle = self._literal([*texts, before])
            calls.append(self._call(index, tool, middle, self._literal(after)))
        return f"{self._literal(parts[:at])} ({' | '.join(calls)})"

    def _call(self, index: int, tool: Tool, before: str, behind: str) -> str:
        """Return the expression from a tool's name to the call's end.

        If calls may repeat, the expression captures the call.
        """
        if not (self._required and self._several) or tool.format == RAW:
            return f"{before} arguments_{index} {behind}"
        if index not in self._marked:
            self._marked.add(index)
            self.lines += marked_call(index, before, behind)
        return f"called_{index}"

    def _literal(self, parts: Sequence[str | Slot]) -> str:
        """Write texts as strings, control tokens by id, call ids as a terminal."""
        control = self._dialect.control
        names = "|".join(map(re.escape, sorted(control, key=len, reverse=True)))
        literals = []
        for part in join_parts(parts):
            if isinstance(part, Slot):
                literals.append(part.name)
                continue
            for piece in re.split(f"({names})", part) if names else [part]:
                if piece in control:
                    literals.append(f"<[{control[piece]}]>")
                elif piece:
                    literals.append(json.dumps(piece, ensure_ascii=False))
        return " ".join(literals)


def arguments(index: int, tool: Tool) -> str:
    """Return the rule of a call's arguments, or of a custom tool's text."""
    if tool.format == RAW:
        return f"arguments_{index}: %lark {{\n{tool.definition.strip()}\n}}"
    schema = tool.schema()
    if tool.format is not None:
        schema = {"type": "string"}
        if tool.format == "regex":
            schema["pattern"] = f"^(?:{tool.definition})$"
    return f"arguments_{index}: {nested_json(schema)}"


def arguments_frame(dialect: Dialect, tool: Tool) -> tuple[str, Parts]:
    """Return the text directly before and after a call's arguments or its custom text.

    A custom tool's text is the only member of an object: a JSON string or, with `RAW`, unescaped
    text between the quotes. In a list of parameters, the text is the only parameter.
    """
    form = dialect.form
    if form and tool.format == RAW:
        opening, closing = form.text
        return f"{form.before}{INPUT}{opening}", join_parts([closing, *dialect.tail, dialect.end])
    if tool.format is None or form:
        return "", dialect.tail
    if tool.format == RAW:
        return f'{{"{INPUT}": "', join_parts(['"}', *dialect.tail, dialect.end])
    return f'{{"{INPUT}": ', join_parts(["}", *dialect.tail])
