"""The grammar that lets a model write calls of tools in its own dialect, and no broken ones.

Knows llguidance's Lark: literals, control tokens by id, ``%json`` for arguments. What a grammar
lets through, the call parser of the same dialect reads.
"""

import json
import re
from collections.abc import Sequence

from cutaway.errors import InputError
from cutaway.text.grammar.llguidance_source import nested_json
from cutaway.text.grammar.repeated_calls import marked_call
from cutaway.text.tools.argument_form import ParameterList
from cutaway.text.tools.argument_grammar import ArgumentRules
from cutaway.text.tools.dialect import Dialect, Parts, Slot, joined
from cutaway.text.tools.tool import INPUT, Tool, ToolChoice

RAW = "lark"  # the format whose text is written unescaped, and whose call ends the answer


def grammar(
    dialect: Dialect, tools: Sequence[Tool], choice: ToolChoice, parallel: bool = True
) -> str:
    """Lark for llguidance: the answers that ``choice`` allows.

    parallel: whether one answer may have several calls; of a tool that is named it has one. Where
    a call is required, one that is there already is the last
    InputError: no tool may be called; a custom tool's grammar that does not fit in.
    """
    allowed = choice.allowed(tools)
    if not allowed:
        raise InputError("tool_choice allows no tool; give tools, or generate without")
    required = choice.mode == "required"
    rules = _Rules(dialect, allowed, parallel and dialect.many and not choice.named, required)
    return "\n".join(["%llguidance {}", *rules.start(), *rules.lines, ""])


class _Rules:
    """Collects rules; each method returns an expression that refers to them."""

    def __init__(
        self, dialect: Dialect, tools: Sequence[Tool], several: bool, required: bool
    ) -> None:
        self._dialect, self._several, self._required = dialect, several, required
        self._marked = set[int]()  # tools whose calls have rules of their own
        self.lines = ["ANY: /(?s:.*)/", "ID: /[a-zA-Z0-9]{9}/", "NUMBER: /[0-9]{1,4}/"]
        self._tools = list(enumerate(tools))
        for index, tool in self._tools:
            if dialect.form is None or tool.format == RAW:
                self.lines.append(arguments(index, tool))
            else:
                self.lines += self._parameters(dialect.form, index, tool)

    def start(self) -> list[str]:
        """The rules that say where calls may begin."""
        trigger = self._dialect.trigger
        if self._required:
            return [f"start: {self._calls()}"]
        if not trigger:
            first = self._literal([self._dialect.opening[0]])
            return [
                f"start: TEXT | {self._calls()}",
                f"CALL_BEGINS: {first} ANY",
                "TEXT: ANY & ~CALL_BEGINS",
            ]
        if trigger in self._dialect.control:
            return [
                f"start: TEXT | TEXT {self._calls()}",
                f"SPELLED: ANY {json.dumps(trigger, ensure_ascii=False)} ANY",
                "TEXT: ANY & ~SPELLED",
            ]
        return [
            f"start: ANY | opened {self._calls(skip=len(trigger))}",
            f"opened[lazy]: ANY {json.dumps(trigger, ensure_ascii=False)}",
        ]

    def _calls(self, skip: int = 0) -> str:
        """One call or several, without the first ``skip`` characters."""
        dialect = self._dialect
        heads = joined([dialect.begin, *dialect.head])
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
            said = str(error).removeprefix("json_schema: ")
            raise InputError(f"tools: parameters of {tool.name}: {said}") from None
        return rules.lines

    def _text(self, text: str) -> str:
        return self._literal([text])

    def _plain(self, text: str) -> tuple[str, str]:
        """A text up to its first control token, and the rest."""
        at = min((text.find(name) for name in self._dialect.control if name in text), default=None)
        return (text, "") if at is None else (text[:at], text[at:])

    def _any_of(self, head: Parts, tools: Sequence[tuple[int, Tool]]) -> str:
        """A call of one of the tools; what precedes the name is written once."""
        parts = joined(head)
        at = parts.index(Slot.NAME)
        calls = []
        for index, tool in tools:
            before, after = around(self._dialect, tool)
            middle = self._literal([tool.name, *parts[at + 1 :], before])
            calls.append(self._call(index, tool, middle, self._literal(after)))
        return f"{self._literal(parts[:at])} ({' | '.join(calls)})"

    def _call(self, index: int, tool: Tool, before: str, behind: str) -> str:
        """From a tool's name to the call's end, which is marked where it may be the last."""
        if not (self._required and self._several) or tool.format == RAW:
            return f"{before} arguments_{index} {behind}"
        if index not in self._marked:
            self._marked.add(index)
            self.lines += marked_call(index, before, behind)
        return f"called_{index}"

    def _literal(self, parts: Sequence[str | Slot]) -> str:
        """Texts as strings, control tokens by id, ids as a pattern."""
        control = self._dialect.control
        names = "|".join(map(re.escape, sorted(control, key=len, reverse=True)))
        found = []
        for part in joined(parts):
            if isinstance(part, Slot):
                found.append(part.name)
                continue
            for piece in re.split(f"({names})", part) if names else [part]:
                if piece in control:
                    found.append(f"<[{control[piece]}]>")
                elif piece:
                    found.append(json.dumps(piece, ensure_ascii=False))
        return " ".join(found)


def arguments(index: int, tool: Tool) -> str:
    """The rule of a call's arguments, or of a custom tool's text."""
    if tool.format == RAW:
        return f"arguments_{index}: %lark {{\n{tool.definition.strip()}\n}}"
    schema = tool.schema()
    if tool.format is not None:
        schema = {"type": "string"}
        if tool.format == "regex":
            schema["pattern"] = f"^(?:{tool.definition})$"
    return f"arguments_{index}: {nested_json(schema)}"


def around(dialect: Dialect, tool: Tool) -> tuple[str, Parts]:
    """The text directly before and after a call's arguments or its custom text.

    A custom tool's text is the only member of an object: a JSON string, or with `RAW` the text
    unescaped between the quotes. In a list of parameters it is the only one.
    """
    form = dialect.form
    if form and tool.format == RAW:
        opening, closing = form.text
        return f"{form.before}{INPUT}{opening}", joined([closing, *dialect.tail, dialect.end])
    if tool.format is None or form:
        return "", dialect.tail
    if tool.format == RAW:
        return f'{{"{INPUT}": "', joined(['"}', *dialect.tail, dialect.end])
    return f'{{"{INPUT}": ', joined(["}", *dialect.tail])
