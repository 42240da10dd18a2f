"""Write keywords that llguidance lacks by those that it has, where these say exactly the same.

Knows the equivalences of JSON Schema: the opposite of a schema, an object's possible names, the
orders of a few different items. What has no equivalent, or too large a one, stays as it is.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import combinations, islice, permutations
from math import inf
from typing import Any, TypeVar

from cutaway.text.grammar.json_values import TYPES, alike, string_fits
from cutaway.text.grammar.schemas import map_subschemas

_ALTERNATIVES = 64
"""The most alternatives that one keyword becomes."""
_LISTS = 400
"""The most lists that may be written for a list of different values."""
_MOST_WRITTEN = 100_000
"""The most characters that the rewriting of one schema adds: nested conditions, written twice each,
would double it with each level."""
ALL_TYPES = ("object", "array", "string", "number", "boolean", "null")
NO_RULES = frozenset({
    "title", "description", "default", "examples", "$comment", "$schema", "$id", "deprecated",
    "readOnly", "writeOnly",
})  # fmt: skip


_OLD_DRAFT = re.compile(r"draft-0[467]|2019-09")
_LISTS_OF_NOW, _OLD_LISTS = ("prefixItems", "items"), ("items", "additionalItems")
_Member = TypeVar("_Member")


class _NoEquivalentError(Exception):
    """A schema has no opposite in the keywords that llguidance has."""


def rewrite(schema: Any) -> Any:
    """Return a schema that allows the same values, with fewer keywords that llguidance lacks."""
    draft = str(schema.get("$schema", "")) if isinstance(schema, dict) else ""
    return _Rewriting(_OLD_LISTS if _OLD_DRAFT.search(draft) else _LISTS_OF_NOW).rewrite(schema)


class _Rewriting:
    """The rewriting of one schema, with the number of characters that it may still add."""

    def __init__(self, lists: tuple[str, str]) -> None:
        """lists: the keywords of a list's first items and of the others, in the schema's draft"""
        self._left = _MOST_WRITTEN
        contains: Callable[[dict[str, Any]], dict[str, Any]] = partial(_contains, lists)
        self._writers = {**_WRITERS, "contains": contains}

    def rewrite(self, schema: Any) -> Any:
        if not isinstance(schema, dict):
            return schema
        copy = map_subschemas(schema, self.rewrite)
        for name, write in self._writers.items():
            if name in copy:
                with suppress(_NoEquivalentError):
                    copy = self._accept(write(copy), copy)
        return copy

    def _accept(self, schema: dict[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
        """Return a schema; _NoEquivalentError if it is too much longer than the one before."""
        length = _length(before)
        growth = _length(schema, length + self._left) - length
        if growth > self._left:
            raise _NoEquivalentError
        self._left -= max(growth, 0)
        return schema


def _length(value: Any, limit: float = inf) -> int:
    """Return the characters of a JSON value without its signs; count no further than ``limit``."""
    length, rest = 0, [value]
    while rest and length <= limit:
        value = rest.pop()
        length += 1
        if isinstance(value, str):
            length += len(value)
        elif isinstance(value, dict):
            length += sum(map(len, value))
            rest += value.values()
        elif isinstance(value, list):
            rest += value
    return length


def _drop(schema: Mapping[str, Any], *names: str, also: Sequence[Any] = ()) -> dict[str, Any]:
    """Return a schema without keywords, and with more schemas that its values must match."""
    rest = {name: value for name, value in schema.items() if name not in names}
    return {**rest, "allOf": [*rest.get("allOf", ()), *also]} if also else rest


# -- the opposite of a schema ------------------------------------------------------------------


def opposite(schema: Any) -> Any:
    """Return a schema of the values that another does not allow; _NoEquivalentError if none is."""
    if isinstance(schema, bool):
        return not schema
    rules = {name: value for name, value in schema.items() if name not in NO_RULES}
    return _any_of(_opposite_of(name, value) for name, value in rules.items())


def _opposite_of(name: str, value: Any) -> Any:
    if name not in _OPPOSITES:
        raise _NoEquivalentError
    return _OPPOSITES[name](value)


def _any_of(options: Iterable[Any]) -> Any:
    """Return a schema of what any of several allows."""
    ways = [option for option in options if option is not False]
    if True in ways:
        return True
    return ways[0] if len(ways) == 1 else {"anyOf": ways} if ways else False


def _no_type(value: Any) -> Any:
    names = {value} if isinstance(value, str) else {*value}
    if "integer" in names and "number" not in names:
        raise _NoEquivalentError
    rest = [name for name in ALL_TYPES if name not in names]
    return {"type": rest} if rest else False


def _no_value(values: Sequence[Any]) -> Any:
    """Return a schema of all values but these texts, booleans and nulls."""
    by_type: dict[str, list[Any]] = {name: [] for name in ALL_TYPES}
    for value in values:
        by_type[next(name for name in ALL_TYPES if TYPES[name](value))].append(value)
    if by_type["object"] or by_type["array"] or by_type["number"]:
        raise _NoEquivalentError  # bounds allow fewer spellings of numbers than a check does
    free = [name for name in ALL_TYPES if not by_type[name]]
    ways: list[Any] = [{"type": free}] if free else []
    if texts := by_type["string"]:
        escaped = "|".join(re.sub(r"[^a-zA-Z0-9]", _escape, text) for text in texts)
        ways.append({"type": "string", "pattern": f"^(?!(?:{escaped})$)"})
    if by_type["boolean"]:
        ways += [{"const": option} for option in (True, False) if option not in by_type["boolean"]]
    return _any_of(ways)


def _escape(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}" if ord(match[0]) < 1 << 16 else match[0]


def _allow_type(name: str, **rules: Any) -> Any:
    return {"type": name, **rules}


def _lacks(names: Sequence[str]) -> Any:
    """Return a schema of the objects that lack one of these names."""
    return _any_of(_allow_type("object", properties={name: False}) for name in names)


def _has_other(properties: Mapping[str, Any]) -> Any:
    """Return a schema of the objects with one of these properties that its schema refuses."""
    ways = ((name, opposite(schema)) for name, schema in properties.items())
    return _any_of(
        _allow_type("object", required=[name], properties={name: other})
        if other is not False
        else other
        for name, other in ways
    )


def _no_pattern(pattern: str) -> Any:
    return _allow_type("string", pattern=rf"^(?![\s\S]*(?:{pattern}))")


_OPPOSITES: Mapping[str, Callable[[Any], Any]] = {
    "type": _no_type,
    "enum": _no_value,
    "const": lambda value: _no_value([value]),
    "not": lambda schema: schema,
    "anyOf": lambda schemas: {"allOf": [opposite(schema) for schema in schemas]},
    "allOf": lambda schemas: _any_of(map(opposite, schemas)),
    "required": _lacks,
    "properties": _has_other,
    "pattern": _no_pattern,
    "minLength": lambda n: _allow_type("string", maxLength=n - 1) if n else False,
    "maxLength": lambda n: _allow_type("string", minLength=n + 1),
    "minItems": lambda n: _allow_type("array", maxItems=n - 1) if n else False,
    "maxItems": lambda n: _allow_type("array", minItems=n + 1),
}


# -- each keyword ------------------------------------------------------------------------------


def _not(schema: dict[str, Any]) -> dict[str, Any]:
    return _drop(schema, "not", also=[opposite(schema["not"])])


def _if(schema: dict[str, Any]) -> dict[str, Any]:
    condition, names = schema["if"], ("if", "then", "else")
    then, other = (schema.get(name, True) for name in names[1:])
    if then is other is True:
        return _drop(schema, *names)
    ways = [{"allOf": [condition, then]}, {"allOf": [opposite(condition), other]}]
    return _drop(schema, *names, also=[{"anyOf": ways}])


def _one_of(schema: dict[str, Any]) -> dict[str, Any]:
    """Write alternatives that differ by required names, which are not disjoint by themselves."""
    options = schema["oneOf"]
    if len(options) > 6 or not all(
        isinstance(option, dict) and {*option} - NO_RULES == {"required"} for option in options
    ):
        raise _NoEquivalentError
    ways = [
        {"allOf": [option, *(opposite(other) for other in options if other is not option)]}
        for option in options
    ]
    return _drop(schema, "oneOf", also=[{"anyOf": ways}])


def _unique_items(schema: dict[str, Any]) -> dict[str, Any]:
    """Write the lists of a few values without repetitions."""
    if schema["uniqueItems"] is not True or schema.get("maxItems", 2) < 2:
        return _drop(schema, "uniqueItems")
    values = _values(schema.get("items"))
    if values is None or schema.get("type") != "array" or "prefixItems" in schema:
        raise _NoEquivalentError
    sizes = range(
        schema.get("minItems", 0), min(schema.get("maxItems", len(values)), len(values)) + 1
    )
    lists = (list(order) for size in sizes for order in permutations(values, size))
    few = [*islice(lists, _LISTS + 1)]
    if len(few) > _LISTS or "enum" in schema or "const" in schema:
        raise _NoEquivalentError
    return {**_drop(schema, "uniqueItems", "minItems", "maxItems", "items"), "enum": few}


def _contains(lists: tuple[str, str], schema: dict[str, Any]) -> dict[str, Any]:
    """Write at which places of a short list the items are that must be there."""
    item, least = schema["contains"], int(schema.get("minContains", 1))
    limit = schema.get("maxContains", inf)
    other = True if limit == inf else opposite(item)
    is_any_long = least == 0 and limit in (0, inf)
    places = 0 if is_any_long else schema.get("maxItems", inf)
    if places > _ALTERNATIVES:
        raise _NoEquivalentError
    sizes = range(least, int(min(least if limit == inf else limit, places)) + 1)
    groups = [group for size in sizes for group in _groups(range(int(places)), size)]
    ways = [_list_with(lists, item, group, other) for group in groups]
    if schema.get("type") != "array":
        ways.append({"type": [name for name in ALL_TYPES if name != "array"]})
    return _drop(schema, "contains", "minContains", "maxContains", also=[_any_of(ways)])


def _list_with(lists: tuple[str, str], item: Any, places: Sequence[int], other: Any) -> Any:
    """Return a schema of the lists with items at these places, and others elsewhere."""
    size = max(places, default=-1) + 1
    first = [item if place in places else other for place in range(size)]
    rules = {lists[0]: first, lists[1]: other} if first else {"items": other}
    return {"type": "array", "minItems": size, **rules}


def _values(schema: Any) -> list[Any] | None:
    """Return the values that a schema lists; None if it has another rule."""
    rules = {*schema} - NO_RULES if isinstance(schema, dict) else set()
    if not ({"enum", "const"} & rules) or not rules <= {"enum", "const", "type"}:
        return {"boolean": [True, False]}.get(schema.get("type")) if rules == {"type"} else None
    values = schema.get("enum", [schema.get("const")])
    types = schema.get("type", ALL_TYPES)
    names = [types] if isinstance(types, str) else types
    if "const" in rules and "enum" in rules:
        return None
    fitting = [value for value in values if any(TYPES[name](value) for name in names)]
    return [*{alike(value): value for value in fitting}.values()]


def _property_names(schema: dict[str, Any]) -> dict[str, Any]:
    """Write the names that an object may have as patterns of names."""
    names, rest = schema["propertyNames"], schema.get("additionalProperties", True)
    if names is False:
        raise _NoEquivalentError
    rules = {} if names is True else {n: v for n, v in names.items() if n not in NO_RULES}
    if rules.pop("type", "string") != "string":
        raise _NoEquivalentError
    if not rules:
        return _drop(schema, "propertyNames")
    properties = schema.get("properties", {})
    if "patternProperties" in schema or (properties and rest not in (True, False, {})):
        raise _NoEquivalentError
    closed = {**_drop(schema, "propertyNames"), "additionalProperties": False}
    if (texts := _values(names)) is not None:
        texts = [text for text in texts if isinstance(text, str)]
        return {**closed, "properties": {text: properties.get(text, rest) for text in texts}}
    pattern = _pattern_of(rules)
    fitting = {
        name: value for name, value in properties.items() if string_fits("pattern", pattern, name)
    }
    more = {"properties": fitting} if "properties" in schema else {}
    return {**closed, **more, **({} if rest is False else {"patternProperties": {pattern: rest}})}


def _pattern_of(rules: Mapping[str, Any]) -> str:
    if {*rules} == {"pattern"}:
        return str(rules["pattern"])
    if {*rules} <= {"minLength", "maxLength"}:
        return rf"^[\s\S]{{{rules.get('minLength', 0)},{rules.get('maxLength', '')}}}$"
    raise _NoEquivalentError


def _count_properties(schema: dict[str, Any]) -> dict[str, Any]:
    """Write how many of an object's named properties there are as those that must be."""
    if schema.get("additionalProperties") is not False or "patternProperties" in schema:
        raise _NoEquivalentError
    names = [name for name, value in schema.get("properties", {}).items() if value is not False]
    required = [name for name in names if name in schema.get("required", ())]
    optional = [name for name in names if name not in required]
    missing = schema.get("minProperties", 0) - len(required)
    surplus = len(names) - schema.get("maxProperties", len(names))
    also = []
    if missing > 0:
        also.append(_choose([{"required": [*group]} for group in _groups(optional, missing)]))
    if surplus > 0:
        groups = _groups(optional, surplus)
        also.append(_choose([{"properties": dict.fromkeys(group, False)} for group in groups]))
    return _drop(schema, "minProperties", "maxProperties", also=also)


def _groups(members: Iterable[_Member], size: int) -> list[tuple[_Member, ...]]:
    groups = [*islice(combinations(members, size), _ALTERNATIVES + 1)]
    if len(groups) > _ALTERNATIVES:
        raise _NoEquivalentError
    return groups


def _choose(ways: list[Any]) -> Any:
    """Return a schema of what any of several allows; of no object where there are none."""
    return {"anyOf": ways} if ways else {"type": [name for name in ALL_TYPES if name != "object"]}


def _dependencies(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def write(schema: dict[str, Any]) -> dict[str, Any]:
        also = [_dependency(key, dependency) for key, dependency in schema[name].items()]
        if len(also) > 5:
            raise _NoEquivalentError
        return _drop(schema, name, also=also)

    return write


def _dependency(key: str, dependency: Any) -> Any:
    """Return a schema of the objects that lack a key, or have what the key needs."""
    names = [dependency] if isinstance(dependency, str) else dependency
    then = (
        {"required": [key, *names]}
        if isinstance(names, list)
        else {"allOf": [{"required": [key]}, dependency]}
    )
    return {"anyOf": [then, {"properties": {key: False}}]}


_WRITERS: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "not": _not,
    "if": _if,
    "oneOf": _one_of,
    "uniqueItems": _unique_items,
    "propertyNames": _property_names,
    "minProperties": _count_properties,
    "maxProperties": _count_properties,
    **{
        name: _dependencies(name)
        for name in ("dependentRequired", "dependentSchemas", "dependencies")
    },
}
