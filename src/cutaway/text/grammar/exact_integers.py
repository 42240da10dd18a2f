"""Write a schema with integers beyond 2^53 as rules of Lark, where digits are read as they are.

llguidance reads the numbers of a schema as float64. Only the objects, lists and alternatives around
such an integer become rules; all other parts stay schemas. Knows which keywords rules can say.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from hashlib import sha256
from typing import Any

from cutaway.text.grammar.json_values import exact, is_exact, is_number
from cutaway.text.grammar.partial_validator import BOUNDS, PartialValidator
from cutaway.text.grammar.rewriting import ALL_TYPES, NO_RULES
from cutaway.text.grammar.schemas import References, subschemas

_LARGE, _LONGEST = 2**53, 10**100
"""Bounds from the first on are read inexactly; those beyond the second stay as they are."""
_REFERENCE = re.compile(r'"\$ref": "([^"]*)"')
_KEY = r"""/"([^"\\\x00-\x1f\x7f]|\\["\\bfnrt])*"/"""
"""A key of which each text has one spelling."""
_DEFINITIONS = ("$defs", "definitions")
_OF_TYPE: Mapping[str, tuple[str, ...]] = {
    "object": ("properties", "required", "additionalProperties"),
    "array": ("items", "minItems", "maxItems"),
    "integer": BOUNDS,
    "number": BOUNDS,
}
"""Type -> the keywords that rules can say of its values, beside const, enum and alternatives."""

NestedJson = Callable[[Any], str]
"""Returns the Lark expression of a schema whose numbers llguidance reads exactly."""


class _UnwritableError(Exception):
    """A keyword around a large integer has no rules."""


def exact_rules(schema: Any, nested_json: NestedJson, space: str) -> str | None:
    """Return a Lark grammar of a schema's texts; None if it needs none, or none can be written.

    space: a pattern of the white space between the parts of JSON; "": none
    """
    if not any(map(_is_large_itself, _all_schemas(schema))):
        return None
    rules = _Rules(schema, nested_json, "GAP?" if space else "")
    try:
        start = rules.value(schema)
    except _UnwritableError:
        return None
    gap = [f"GAP: /{space}/"] * bool(space)
    return "\n".join([f"start: {start}", *gap, *rules.lines])


class _Rules:
    """The rules of one schema's values. gap: the expression of white space between parts"""

    def __init__(self, root: Any, nested_json: NestedJson, gap: str) -> None:
        self._root, self._nested_json, self._gap = root, nested_json, gap
        self._references = References(root)
        self._large = self._find_large()
        self._names: dict[int, tuple[str, Any]] = {}  # id() of a schema -> its rule, and itself
        self.lines: list[str] = []

    # -- which schemas need rules -------------------------------------------------------------

    def _find_large(self) -> set[int]:
        """Return id() of each schema that may hold a value to an integer beyond 2^53."""
        holders: dict[int, list[int]] = {}
        left, large = list[int](), set[int]()
        for schema in _all_schemas(self._root):
            if _is_large_itself(schema):
                left.append(id(schema))
            for part in self._parts(schema):
                holders.setdefault(id(part), []).append(id(schema))
        while left:
            if (place := left.pop()) not in large:
                large.add(place)
                left += holders.get(place, ())
        return large

    def _parts(self, schema: dict[str, Any]) -> Iterator[Any]:
        """Yield the schemas to which a schema holds values or parts of values."""
        yield from (part for name, part in subschemas(schema) if name not in _DEFINITIONS)
        if isinstance(schema.get("$ref"), str):
            yield self._references.target(schema)

    def _has_large(self, schema: Any) -> bool:
        return isinstance(schema, dict) and (
            _is_large_itself(schema) or any(id(part) in self._large for part in self._parts(schema))
        )

    # -- rules --------------------------------------------------------------------------------

    def value(self, schema: Any) -> str:
        """Return the name of the rule of a schema's values."""
        if id(schema) in self._names:
            return self._names[id(schema)][0]
        if not self._has_large(schema):
            name = self._schema(schema)
            self._names[id(schema)] = name, schema
        else:  # named first, since a schema may contain itself
            name = f"value_{len(self._names)}"
            self._names[id(schema)] = name, schema
            self.lines.append(f"{name}: {self._expression(schema)}")
        return name

    def _rule(self, expression: str) -> str:
        name = f"part_{len(self.lines)}"
        self.lines.append(f"{name}: {expression}")
        return name

    def _schema(self, schema: Any) -> str:
        """Return the rule of a schema without large integers, with the definitions it may need."""
        references = _REFERENCE.findall(json.dumps(schema))
        if not all(name.startswith(("#/$defs/", "#/definitions/")) for name in references):
            raise _UnwritableError  # to a place that the schema alone does not have
        if references:
            schema = {**self._definitions(), **schema}
        expression = self._nested_json(schema)
        name = f"json_{sha256(expression.encode()).hexdigest()[:16]}"
        if (line := f"{name}: {expression}") not in self.lines:
            self.lines.append(line)
        return name

    def _definitions(self) -> dict[str, Any]:
        return {
            key: {n: part for n, part in self._root[key].items() if not self._has_large(part)}
            for key in _DEFINITIONS
            if isinstance(self._root.get(key), dict)
        }

    def _expression(self, schema: dict[str, Any]) -> str:
        keywords = {*schema} - NO_RULES - {*_DEFINITIONS}
        if "$ref" in keywords:
            return self._alone(keywords, "$ref", [self._references.target(schema)])
        if "const" in keywords or "enum" in keywords:
            return self._values(schema)
        if "anyOf" in keywords:
            return self._alone(keywords, "anyOf", schema["anyOf"])
        if keywords.difference(["type"], *_OF_TYPE.values()):
            raise _UnwritableError
        types = schema.get("type", ALL_TYPES)
        kinds = [types] if isinstance(types, str) else types
        return " | ".join(self._write_type(kind, schema) for kind in kinds)

    def _alone(self, keywords: set[str], keyword: str, options: list[Any]) -> str:
        options = [option for option in options if option is not False]
        if keywords != {keyword} or not options:
            raise _UnwritableError
        return " | ".join(map(self.value, options))

    def _values(self, schema: dict[str, Any]) -> str:
        """Return the expression of those values of ``const`` or ``enum`` that the schema allows."""
        values = [schema["const"]] if "const" in schema else schema["enum"]
        rules = PartialValidator(schema)
        allowed = [value for value in values if rules.judge(exact(value)) is True]
        if not allowed:
            raise _UnwritableError
        return " | ".join(map(self._write_value, allowed))

    def _write_value(self, value: Any) -> str:
        if is_exact(value):
            return self._schema({"const": value})
        if isinstance(value, dict):
            return self._enclose("{}", self._join(map(self._member, value, value.values())))
        if isinstance(value, list):
            return self._enclose("[]", self._join(map(self._write_value, value)))
        return f'"{value}"'

    def _member(self, key: str, value: Any) -> str:
        return f"{self._key(key)} {self._write_value(value)}"

    def _key(self, name: str) -> str:
        """Return the expression of a key and its colon."""
        return f'{_quote(name)} {self._gap} ":" {self._gap}'

    def _enclose(self, brackets: str, expression: str) -> str:
        return f'"{brackets[0]}" {self._gap} {expression} {self._gap} "{brackets[1]}"'

    @property
    def _comma(self) -> str:
        return f'{self._gap} "," {self._gap}'

    def _join(self, expressions: Iterable[str]) -> str:
        return f" {self._comma} ".join(expressions)

    def _write_type(self, kind: str, schema: dict[str, Any]) -> str:
        """Return the expression of a schema's values of one type."""
        if kind == "integer":
            return f"/{integers(*_bounds(schema))}/"
        keywords = _OF_TYPE.get(kind, ())
        narrow = {name: part for name, part in schema.items() if name in keywords}
        narrow["type"] = kind
        if not self._has_large(narrow):
            return self.value(narrow)
        return self._object(narrow) if kind == "object" else self._list(narrow)

    def _object(self, schema: dict[str, Any]) -> str:
        """Return the expression of an object: its own keys in the schema's order, then others."""
        rest, required = schema.get("additionalProperties", True), schema.get("required", [])
        properties = {**schema.get("properties", {})}
        properties = {**properties, **{n: rest for n in required if n not in properties}}
        if rest not in (True, False, {}) or any(properties[n] is False for n in required):
            raise _UnwritableError
        first, behind = self._write_others([*properties]) if rest is not False else ('""', '""')
        for name, part in reversed(properties.items()):
            if part is False:
                continue
            member = f"{self._key(name)} {self.value(part)} {behind}"
            is_required = name in required
            first = self._rule(member if is_required else f"{member} | {first}")
            more = f"{self._comma} {member}"
            behind = self._rule(more if is_required else f"{more} | {behind}")
        return self._enclose("{}", first)

    def _write_others(self, names: list[str]) -> tuple[str, str]:
        """Return the expressions of other keys with any values: before and behind a member."""
        excluded = " | ".join(map(_quote, names))
        key = f"OTHER_{len(self.lines)}"
        self.lines.append(f"{key}: {_KEY} & ~({excluded})" if names else f"{key}: {_KEY}")
        member = f'{key} {self._gap} ":" {self._gap} {self._schema(True)}'
        behind = self._rule(f"({self._comma} {member})*")
        return self._rule(f'{member} {behind} | ""'), behind

    def _list(self, schema: dict[str, Any]) -> str:
        items, least, limit = schema["items"], schema.get("minItems", 0), schema.get("maxItems")
        if not isinstance(items, dict) or (limit is not None and limit < least):
            raise _UnwritableError
        if limit == 0:
            return self._enclose("[]", "")
        item = items_in_order = self.value(items)
        if limit != 1:
            until = "" if limit is None else int(limit) - 1
            items_in_order += f" ({self._comma} {item}){{{max(int(least) - 1, 0)},{until}}}"
        return self._enclose("[]", items_in_order if least else f"({items_in_order})?")


def _quote(name: str) -> str:
    """Return the expression of a key in JSON's quotes."""
    return json.dumps(json.dumps(name, ensure_ascii=False), ensure_ascii=False)


def _all_schemas(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield a schema and all schemas within it."""
    if isinstance(schema, dict):
        yield schema
        for _, part in subschemas(schema):
            yield from _all_schemas(part)


def _is_large_itself(schema: dict[str, Any]) -> bool:
    if not is_exact(schema.get("const")) or not is_exact(schema.get("enum")):
        return True
    types = schema.get("type", [])
    kinds = [types] if isinstance(types, str) else types
    if "integer" not in kinds or "number" in kinds:
        return False
    bounds = [abs(schema[name]) for name in BOUNDS if is_number(schema.get(name))]
    return max(bounds, default=0) >= _LARGE and max(bounds) < _LONGEST


# -- integers within bounds --------------------------------------------------------------------


def _bounds(schema: dict[str, Any]) -> tuple[int | None, int | None]:
    """Return the least and the greatest integer that a schema's bounds allow; None: any."""
    sides = []
    for included, excluded, sign in (
        ("minimum", "exclusiveMinimum", 1), ("maximum", "exclusiveMaximum", -1),
    ):  # fmt: skip
        bounds = []
        if is_number(bound := schema.get(included)):
            bounds.append(_inner(bound, sign, excluded=schema.get(excluded) is True))
        if is_number(bound := schema.get(excluded)):
            bounds.append(_inner(bound, sign, excluded=True))
        sides.append(max(bounds, key=lambda bound: bound * sign) if bounds else None)
    return sides[0], sides[1]


def _inner(bound: Any, sign: int, *, excluded: bool) -> int:
    """Return the first integer from a bound on. sign: 1 where larger ones are allowed, else -1"""
    number = exact(bound) if isinstance(bound, float) else Decimal(bound)
    whole = int(number.to_integral_value(ROUND_CEILING if sign > 0 else ROUND_FLOOR))
    return whole + sign if excluded and whole == number else whole


def integers(least: int | None, greatest: int | None) -> str:
    """Return a pattern of the integers between two, both included; None: no bound."""
    if least is not None and greatest is not None and least > greatest:
        raise _UnwritableError
    ways: list[str] = []
    if least is None or least < 0:
        low = 1 if greatest is None or greatest >= 0 else -greatest
        ways += [f"-{way}" for way in _write_range(low, None if least is None else -least)]
    if greatest is None or greatest >= 0:
        ways += _write_range(max(least or 0, 0), greatest)
    return f"({'|'.join(ways)})"


def _write_range(low: int, high: int | None) -> Iterator[str]:
    """Yield patterns of the digits of the numbers between two that are not negative."""
    length = len(str(low))
    if high is None:
        yield from _write_range_of_length(str(low), "9" * length)
        yield f"[1-9][0-9]{{{length},}}"
        return
    longest = len(str(high))
    if length < longest:
        yield from _write_range_of_length(str(low), "9" * length)
        if length < longest - 1:
            yield f"[1-9][0-9]{{{length},{longest - 2}}}"
        low = 10 ** (longest - 1)
    yield from _write_range_of_length(str(low), str(high))


def _write_range_of_length(low: str, high: str) -> Iterator[str]:
    """Yield patterns of the numbers between two of as many digits."""
    at = next((i for i in range(len(low)) if low[i] != high[i]), len(low))
    if at == len(low):
        yield low
        return
    prefix, rest = low[:at], len(low) - at - 1
    first, last = int(low[at]), int(high[at])
    if low[at + 1 :].strip("0"):
        yield from (
            f"{low[: at + 1]}{end}" for end in _write_range_of_length(low[at + 1 :], "9" * rest)
        )
        first += 1
    if is_cut := bool(high[at + 1 :].strip("9")):
        last -= 1
    if first <= last:
        yield f"{prefix}[{first}-{last}]" + (f"[0-9]{{{rest}}}" if rest else "")
    if is_cut:
        yield from (
            f"{high[: at + 1]}{end}" for end in _write_range_of_length("0" * rest, high[at + 1 :])
        )
