"""The grammar of a call's arguments that are a list of parameters, not JSON.

Each property of an object is a rule of its own, in the schema's order; optional ones may be left
out. A string is text without the mark that ends it. Other values are JSON, but true, false and
null may be Python's words. A schema that cannot be expressed is an InputError.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from cutaway.errors import InputError
from cutaway.text.grammar.llguidance_source import nested_json
from cutaway.text.grammar.schemas import check_counts, check_values
from cutaway.text.tools.parameters import (
    ARRAY,
    NUMBER,
    NUMBER_REGEX,
    OBJECT,
    STRING,
    ParameterList,
    alternatives,
    narrow,
    numbers,
    resolve,
    text,
    types_of,
    words,
)

_UNSUPPORTED = (
    "patternProperties", "propertyNames", "minProperties", "maxProperties", "dependentRequired",
    "dependentSchemas", "dependencies", "allOf", "anyOf", "oneOf", "not", "if", "$ref",
)  # fmt: skip

_OF_LISTS = ("prefixItems", "uniqueItems", "contains", "minContains", "maxContains")

Literal = Callable[[str], str]  # text -> an expression of strings, and control tokens by id

_LONGEST = 8_000_000


class Rules(list[str]):
    """The rules of a request's or a tool's calls, of limited length.

    The tools are at most a megabyte, but rules may be longer than the schemas that they keep to.
    """

    _length = 0

    def append(self, rule: str) -> None:
        """Add a rule; InputError if all are too long."""
        self._length += len(rule)
        if self._length > _LONGEST:
            raise InputError(
                f"the grammar of the calls takes more than {_LONGEST:,} characters; offer fewer "
                "tools, or smaller schemas"
            )
        super().append(rule)


class ArgumentRules:
    """Makes the rules of one tool's arguments.

    prefix:  the beginning of the rules' names, in small letters
    literal: writes a text as an expression
    plain:   splits a text into the part up to its first control token, and the rest
    """

    def __init__(
        self,
        form: ParameterList,
        prefix: str,
        literal: Literal,
        plain: Callable[[str], tuple[str, str]],
    ) -> None:
        self._form, self._prefix, self._literal, self._plain = form, prefix, literal, plain
        self.lines = Rules()
        self._root: Mapping[str, Any] = {}
        self._nested_rules: dict[str, str] = {}  # a schema of nested values -> its rule

    def arguments(self, schema: Mapping[str, Any]) -> None:
        """Add the rule ``prefix`` for a tool's parameters, and the rules that it refers to."""
        check_counts(schema)
        check_values(schema)
        self._root = schema
        self.lines.append(f"{self._prefix}: {self._object(schema)}")

    def _object(self, schema: Mapping[str, Any]) -> str:
        """Return the expression of an object's parameters."""
        for name in _UNSUPPORTED:
            if name in schema:
                raise InputError(f'"{name}" of all parameters is not supported for this model')
        properties: dict[str, Any] = dict(schema.get("properties") or {})
        required, rest = schema.get("required") or [], schema.get("additionalProperties", True)
        properties |= {name: rest for name in required if name not in properties}
        parameters = []
        for name, value in properties.items():
            self._check_key(name)
            if rule := self._parameter(json.dumps(name, ensure_ascii=False), value, name):
                parameters.append((rule, name in required))
        return self._sequence(parameters, self._extra([*properties], rest))

    def _check_key(self, name: str) -> None:
        opening = self._form.other[0]
        if not name or opening[0] in name or not name.isprintable():
            raise InputError(
                f'the name "{name}" cannot be written in this model\'s form; rename it'
            )

    def _sequence(self, parameters: list[tuple[str, bool]], extra: str) -> str:
        """Return the expression of parameters in order; optional ones may be left out."""
        between = self._literal(self._form.between)
        if not between:
            ways = [rule if is_required else f"{rule}?" for rule, is_required in parameters]
            return " ".join([*ways, f"{extra}*" if extra else ""]) or '""'
        behind = self._rule(f"({between} {extra})*" if extra else '""')
        first = f"({extra} {behind} | )" if extra else ""
        for rule, is_required in reversed(parameters):
            first = f"({rule} {behind}" + (")" if is_required else f" | {first})")
            ahead = f"{between} {rule}"
            behind = self._rule(f"{ahead if is_required else f'({ahead})?'} {behind}")
        return first or '""'

    def _parameter(self, key: str, schema: Any, name: str) -> str:
        """Return the rule of a parameter; "" if no value is valid. key: an expression."""
        try:
            if not types_of(schema, self._root):
                return ""
            ways = [
                f"{self._terminal_with(key, opening)} {value}"
                for opening, value in self._values(schema)
            ]
        except InputError as error:
            raise InputError(f"{name}{error.reason}") from None
        return self._rule(f"{self._literal(self._form.before)} ({' | '.join(ways)})")

    def _extra(self, names: list[str], schema: Any) -> str:
        """Return the rule of a parameter that the schema does not name; "" if it allows none."""
        key = self._terminal("/[a-zA-Z0-9_.-]+/")
        if names:
            key = self._terminal(f"{key} & ~({alternatives(names)})")
        return self._parameter(key, schema, "additionalProperties")

    def _values(self, schema: Any) -> list[tuple[str, str]]:
        """Return each way to write a value: (opening, expression of value and closing)."""
        form, types = self._form, types_of(schema, self._root)
        ways = []
        if form.escapes:
            return [
                (form.other[0], self._json(schema, form.other[1])),
                *self._quoted_string(schema),
            ]
        if STRING in types and not form.tells_strings and types != {STRING}:
            return [(form.text[0], self._mixed_value(schema, types))]
        if STRING in types:
            terminal = text(schema, self._root, self._terminal)
            ways.append((form.text[0], self._with_closing(terminal, form.text[1])))
        if types - {STRING}:
            rest = narrow(schema, types - {STRING}, self._root)
            ways.append((form.other[0], self._json(rest, form.other[1])))
        return ways

    def _nested_rule(self, schema: Any) -> str:
        """Return the rule of objects and lists in the model's own quotes, and of plain values."""
        key = json.dumps(schema, sort_keys=True)
        if key not in self._nested_rules:  # named first, since a schema may contain itself
            self._nested_rules[key] = name = f"{self._prefix}_n{len(self._nested_rules)}"
            here = resolve(schema, self._root)
            ways = [alternative for way in ("anyOf", "oneOf") for alternative in here.get(way, ())]
            values = here.get("enum", [here["const"]] if "const" in here else [])
            rules = [self._nested_rule(alternative) for alternative in ways]
            rules += [self._literal(self._form.nested_text(value)) for value in values]
            self.lines.append(f"{name}: {' | '.join(rules or self._rules_of_types(here))}")
        return self._nested_rules[key]

    def _rules_of_types(self, schema: Mapping[str, Any]) -> list[str]:
        types, rules = types_of(schema, self._root), []
        if OBJECT in types:
            rules.append(f'"{{" {self._object(schema)} "}}"')
        if ARRAY in types:
            if name := next((name for name in _OF_LISTS if name in schema), ""):
                raise InputError(f'"{name}" is not supported for this model')
            rules.append(f'"[" {self._list(schema)} "]"')
        if rest := types - {OBJECT, ARRAY}:
            rules.append(self._json(narrow(schema, rest, self._root), ""))
        return rules

    def _list(self, schema: Mapping[str, Any]) -> str:
        ways = self._values(schema.get("items", True))
        ahead = self._form.other[0]
        item = self._rule(
            " | ".join(f"{self._literal(way.removeprefix(ahead))} {value}" for way, value in ways)
        )
        min_items, max_items = schema.get("minItems", 0), schema.get("maxItems")
        if max_items == 0:
            return '""'
        until = "" if max_items is None else max_items - 1
        more = f"({self._literal(self._form.between)} {item}){{{max(min_items - 1, 0)},{until}}}"
        return f"{item} {more}" if min_items else f"({item} {more})?"

    def _json(self, schema: Any, closing: str) -> str:
        """Return the expression of a value as JSON, or as Python's word, and then the closing."""
        types = types_of(schema, self._root)
        if self._form.nested and types & {OBJECT, ARRAY}:
            return f"{self._nested_rule(schema)} {self._literal(closing)}"
        parts = {key: self._root[key] for key in ("$defs", "definitions") if key in self._root}
        ways = [self._rule(nested_json({**resolve(schema, self._root), **parts}))]
        ways += [json.dumps(word) for word in words(types) if word[0].isupper()]
        return f"({' | '.join(ways)}) {self._literal(closing)}"

    def _quoted_string(self, schema: Any) -> list[tuple[str, str]]:
        """Return the ways to write a string in Python's quotes; limited strings have no escapes."""
        if STRING not in types_of(schema, self._root):
            return []
        try:
            strings = text(schema, self._root, self._terminal)
        except InputError:
            return []  # JSON's quotes remain possible
        escapes = r"|\\[\\'\"nrt]" if strings == "ANY" else ""
        plain = self._terminal(rf"/([^'\\\x00-\x1f]{escapes})*/")
        value = self._terminal(f"{strings} & {plain}")
        return [(self._form.text[0], f"{value} {self._literal(self._form.text[1])}")]

    def _mixed_value(self, schema: Any, types: frozenset[str]) -> str:
        """Return the expression of a string or another value, which only characters tell apart."""
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
        ways = [self._with_closing(self._terminal(" | ".join(terminals)), closing)]
        if nested := types & {OBJECT, ARRAY}:
            ways.append(self._json(narrow(schema, nested, self._root), closing))
        return f"({' | '.join(ways)})"

    def _with_closing(self, terminal: str, closing: str) -> str:
        """Return the expression of a terminal's text, followed by the closing.

        The text never contains the whole closing. If the closing has line breaks, its tag without
        them is text.
        """
        tag = self._terminal(f"ANY {json.dumps(closing, ensure_ascii=False)} ANY")
        whole = self._terminal(f"{terminal} & ~{tag}")
        plain, rest = self._plain(closing)
        if rest:  # a text ends where a control token begins
            return f"{self._terminal_with(whole, plain)} {self._literal(rest)}"
        return self._rule(self._terminal_with(whole, plain), "[lazy]")

    def _terminal_with(self, expression: str, ending: str) -> str:
        """Join the expression and its ending in one lexeme.

        The end of the expression alone would be ambiguous.
        """
        plain, rest = self._plain(ending)
        whole = f"{expression} {json.dumps(plain, ensure_ascii=False)}" if plain else expression
        return f"{self._terminal(whole)} {self._literal(rest)}".rstrip()

    def _terminal(self, expression: str) -> str:
        name = f"{self._prefix.upper()}_{len(self.lines)}"
        self.lines.append(f"{name}: {expression}")
        return name

    def _rule(self, expression: str, attributes: str = "") -> str:
        name = f"{self._prefix}_{len(self.lines)}"
        self.lines.append(f"{name}{attributes}: {expression}")
        return name
