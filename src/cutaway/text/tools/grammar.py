"""The grammar that lets a model write calls of tools in its own dialect, and no broken ones.

Knows llguidance's Lark: literals, control tokens by id, ``%json`` for arguments, and rules for
arguments that are a list of parameters. What a grammar lets through, the call parser of the same
dialect reads.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cutaway.errors import InputError
from cutaway.text.grammar.llguidance_source import nested_json
from cutaway.text.grammar.matcher import marked_call
from cutaway.text.grammar.schemas import check_counts, check_values
from cutaway.text.tools.dialect import Dialect, Parts, Slot, joined
from cutaway.text.tools.parameters import (
    ARRAY,
    NUMBER,
    NUMBER_REGEX,
    OBJECT,
    STRING,
    ParameterList,
    alternatives,
    narrowed,
    numbers,
    resolved,
    text,
    types_of,
    words,
)
from cutaway.text.tools.tool import INPUT, Tool, ToolChoice

# -- arguments that are a list of parameters ---------------------------------------------------
# What JSON Schema says of an object: each property is a rule of its own, in the schema's order;
# what is not required may be left out. A string is text without the mark that ends it, other values
# are JSON, and true, false and null may be Python's words. What cannot be said is an InputError.

_UNSUPPORTED = (
    "patternProperties", "propertyNames", "minProperties", "maxProperties", "dependentRequired",
    "dependentSchemas", "dependencies", "allOf", "anyOf", "oneOf", "not", "if", "$ref",
)  # fmt: skip

_OF_LISTS = ("prefixItems", "uniqueItems", "contains", "minContains", "maxContains")

Literal = Callable[[str], str]  # a text as an expression: strings, and control tokens by id


class ArgumentRules:
    """The rules of one tool's arguments.

    prefix:  of the rules' names, in small letters
    literal: writes a text as an expression
    plain:   the part of a text up to its first control token, and the rest
    """

    def __init__(
        self,
        form: ParameterList,
        prefix: str,
        literal: Literal,
        plain: Callable[[str], tuple[str, str]],
    ) -> None:
        self._form, self._prefix, self._literal, self._plain = form, prefix, literal, plain
        self.lines: list[str] = []
        self._root: Mapping[str, Any] = {}
        self._known: dict[str, str] = {}  # a schema of nested values -> its rule

    def arguments(self, schema: Mapping[str, Any]) -> None:
        """Adds the rule ``prefix`` for a tool's parameters, and those that it needs."""
        check_counts(schema)
        check_values(schema)
        self._root = schema
        self.lines.append(f"{self._prefix}: {self._object(schema)}")

    def _object(self, schema: Mapping[str, Any]) -> str:
        """The parameters of an object."""
        for name in _UNSUPPORTED:
            if name in schema:
                raise InputError(f'"{name}" of all parameters is not supported for this model')
        known: dict[str, Any] = dict(schema.get("properties") or {})
        required, rest = schema.get("required") or [], schema.get("additionalProperties", True)
        known |= {name: rest for name in required if name not in known}
        written = []
        for name, value in known.items():
            self._check_key(name)
            if rule := self._parameter(json.dumps(name, ensure_ascii=False), value, name):
                written.append((rule, name in required))
        return self._sequence(written, self._extra([*known], rest))

    def _check_key(self, name: str) -> None:
        opening = self._form.other[0]
        if not name or opening[0] in name or not name.isprintable():
            raise InputError(
                f'the name "{name}" cannot be written in this model\'s form; rename it'
            )

    def _sequence(self, written: list[tuple[str, bool]], extra: str) -> str:
        """Parameters in order; those that are not required may be left out."""
        between = self._literal(self._form.between)
        if not between:
            ways = [rule if needed else f"{rule}?" for rule, needed in written]
            return " ".join([*ways, f"{extra}*" if extra else ""]) or '""'
        behind = self._rule(f"({between} {extra})*" if extra else '""')
        first = f"({extra} {behind} | )" if extra else ""
        for rule, needed in reversed(written):
            first = f"({rule} {behind}" + (")" if needed else f" | {first})")
            ahead = f"{between} {rule}"
            behind = self._rule(f"{ahead if needed else f'({ahead})?'} {behind}")
        return first or '""'

    def _parameter(self, key: str, schema: Any, name: str) -> str:
        """The rule of a parameter; "" where it can have no value. key: an expression of its key."""
        try:
            if not types_of(schema, self._root):
                return ""
            ways = [
                f"{self._terminal_with(key, opening)} {value}"
                for opening, value in self._values(schema)
            ]
        except InputError as error:
            raise InputError(f"{name}: {error}") from None
        return self._rule(f"{self._literal(self._form.before)} ({' | '.join(ways)})")

    def _extra(self, known: list[str], schema: Any) -> str:
        """The rule of a parameter that the schema does not name; "" where there may be none."""
        key = self._terminal("/[a-zA-Z0-9_.-]+/")
        if known:
            key = self._terminal(f"{key} & ~({alternatives(known)})")
        return self._parameter(key, schema, "additionalProperties")

    def _values(self, schema: Any) -> list[tuple[str, str]]:
        """Each way to write a value: (opening, expression up to the closing and with it)."""
        form, types = self._form, types_of(schema, self._root)
        found = []
        if form.escapes:
            return [(form.other[0], self._json(schema, form.other[1])), *self._quoted(schema)]
        if STRING in types and not form.tells_strings and types != {STRING}:
            return [(form.text[0], self._mixed(schema, types))]
        if STRING in types:
            terminal = text(schema, self._root, self._terminal)
            found.append((form.text[0], self._ended(terminal, form.text[1])))
        if types - {STRING}:
            rest = narrowed(schema, types - {STRING}, self._root)
            found.append((form.other[0], self._json(rest, form.other[1])))
        return found

    def _nested(self, schema: Any) -> str:
        """The rule of objects and lists in the model's own quotes, and of plain values."""
        key = json.dumps(schema, sort_keys=True)
        if key not in self._known:  # it may be within itself
            self._known[key] = name = f"{self._prefix}_n{len(self._known)}"
            here = resolved(schema, self._root)
            ways = [one for way in ("anyOf", "oneOf") for one in here.get(way, ())]
            listed = here.get("enum", [here["const"]] if "const" in here else [])
            rules = [self._nested(one) for one in ways]
            rules += [self._literal(self._form.nested_text(value)) for value in listed]
            self.lines.append(f"{name}: {' | '.join(rules or self._of_types(here))}")
        return self._known[key]

    def _of_types(self, schema: Mapping[str, Any]) -> list[str]:
        types, found = types_of(schema, self._root), []
        if OBJECT in types:
            found.append(f'"{{" {self._object(schema)} "}}"')
        if ARRAY in types:
            if name := next((name for name in _OF_LISTS if name in schema), ""):
                raise InputError(f'"{name}" is not supported for this model')
            found.append(f'"[" {self._list(schema)} "]"')
        if rest := types - {OBJECT, ARRAY}:
            found.append(self._json(narrowed(schema, rest, self._root), ""))
        return found

    def _list(self, schema: Mapping[str, Any]) -> str:
        ways = self._values(schema.get("items", True))
        ahead = self._form.other[0]
        item = self._rule(
            " | ".join(f"{self._literal(way.removeprefix(ahead))} {value}" for way, value in ways)
        )
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        if most == 0:
            return '""'
        until = "" if most is None else most - 1
        more = f"({self._literal(self._form.between)} {item}){{{max(least - 1, 0)},{until}}}"
        return f"{item} {more}" if least else f"({item} {more})?"

    def _json(self, schema: Any, closing: str) -> str:
        """JSON, or Python's word for a plain value."""
        types = types_of(schema, self._root)
        if self._form.nested and types & {OBJECT, ARRAY}:
            return f"{self._nested(schema)} {self._literal(closing)}"
        parts = {key: self._root[key] for key in ("$defs", "definitions") if key in self._root}
        ways = [self._rule(nested_json({**resolved(schema, self._root), **parts}))]
        ways += [json.dumps(word) for word in words(types) if word[0].isupper()]
        return f"({' | '.join(ways)}) {self._literal(closing)}"

    def _quoted(self, schema: Any) -> list[tuple[str, str]]:
        """A string in Python's quotes; with escapes, if the schema says no more of it."""
        if STRING not in types_of(schema, self._root):
            return []
        try:
            strings = text(schema, self._root, self._terminal)
        except InputError:
            return []  # JSON's quotes are left
        escapes = r"|\\[\\'\"nrt]" if strings == "ANY" else ""
        plain = self._terminal(rf"/([^'\\\x00-\x1f]{escapes})*/")
        value = self._terminal(f"{strings} & {plain}")
        return [(self._form.text[0], f"{value} {self._literal(self._form.text[1])}")]

    def _mixed(self, schema: Any, types: frozenset[str]) -> str:
        """A string or something else, where only the characters tell them apart."""
        closing, terminals = self._form.text[1], []
        other = [f'"{word}"' for word in words(types)]
        other += [f"/{NUMBER_REGEX}/"] if NUMBER in types else []
        opening = "".join(sign for name, sign in ((OBJECT, "{"), (ARRAY, r"\[")) if name in types)
        other += [f"/[{opening}](?s:.*)/"] if opening else []
        excluded = self._terminal(" | ".join(other))
        strings = text(schema, self._root, self._terminal)
        terminals = [self._terminal(f"{strings} & ~{excluded}")]
        terminals += [json.dumps(word) for word in words(types)]
        terminals += numbers(schema, self._root) if NUMBER in types else []
        ways = [self._ended(self._terminal(" | ".join(terminals)), closing)]
        if nested := types & {OBJECT, ARRAY}:
            ways.append(self._json(narrowed(schema, nested, self._root), closing))
        return f"({' | '.join(ways)})"

    def _ended(self, terminal: str, closing: str) -> str:
        """A terminal's text, which does not hold the closing, and the closing.

        The closing is whole, with its line breaks: without them its tag is text.
        """
        tag = self._terminal(f"ANY {json.dumps(closing, ensure_ascii=False)} ANY")
        whole = self._terminal(f"{terminal} & ~{tag}")
        plain, rest = self._plain(closing)
        if rest:  # a text ends where a control token begins
            return f"{self._terminal_with(whole, plain)} {self._literal(rest)}"
        return self._rule(self._terminal_with(whole, plain), "[lazy]")

    def _terminal_with(self, expression: str, ending: str) -> str:
        """One lexeme of both, since where one ends is not seen from its characters alone."""
        plain, rest = self._plain(ending)
        both = f"{expression} {json.dumps(plain, ensure_ascii=False)}" if plain else expression
        return f"{self._terminal(both)} {self._literal(rest)}".rstrip()

    def _terminal(self, expression: str) -> str:
        name = f"{self._prefix.upper()}_{len(self.lines)}"
        self.lines.append(f"{name}: {expression}")
        return name

    def _rule(self, expression: str, attributes: str = "") -> str:
        name = f"{self._prefix}_{len(self.lines)}"
        self.lines.append(f"{name}{attributes}: {expression}")
        return name


# -- calls -------------------------------------------------------------------------------------

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
        raise InputError("tool_choice", " allows no tool; give tools, or generate without")
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
            raise InputError("tools", f": parameters of {tool.name}", error.reason) from None
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
