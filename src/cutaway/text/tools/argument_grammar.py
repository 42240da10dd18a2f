"""The grammar of arguments that are a list of parameters.

Knows what JSON Schema says of an object. Each property is a rule of its own, in the schema's order;
what is not required may be left out. A string is text without the mark that ends it, other values
are JSON, and true, false and null may be Python's words. What cannot be said is an InputError.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from cutaway.errors import InputError
from cutaway.text.grammar.json_keys import check_counts
from cutaway.text.grammar.llguidance_source import nested_json
from cutaway.text.grammar.schema_values import check_values
from cutaway.text.tools.argument_form import ParameterList
from cutaway.text.tools.schema_types import (
    ARRAY,
    NUMBER,
    OBJECT,
    STRING,
    narrowed,
    resolved,
    types_of,
)
from cutaway.text.tools.text_terminals import NUMBER_REGEX, alternatives, numbers, text, words

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
