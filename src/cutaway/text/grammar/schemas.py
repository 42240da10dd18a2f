"""JSON Schema: the schemas within a schema, and whether its keywords have valid values.

Knows which keywords contain schemas, the metaschemas' rules for supported keywords (drafts 4 to
2020-12), and how ``$ref`` is resolved. ``partial_validator`` judges values.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from math import isfinite
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from cutaway.base.checks import shown
from cutaway.errors import InputError, Name
from cutaway.text.grammar.json_values import is_number
from cutaway.text.grammar.patterns.look_around import looks_around
from cutaway.text.grammar.patterns.sets import check_repetition

# -- the schemas within ------------------------------------------------------------------------

_MAPS = (
    "properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies",
)  # fmt: skip
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_SINGLES = (
    "additionalProperties", "items", "additionalItems", "not", "if", "then", "else", "contains",
    "propertyNames",
)  # fmt: skip

TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
STANDARD_FORMATS = frozenset({
    "date-time", "date", "time", "duration", "email", "idn-email", "hostname", "idn-hostname",
    "ipv4", "ipv6", "uri", "uri-reference", "iri", "iri-reference", "uuid", "uri-template",
    "json-pointer", "relative-json-pointer", "regex",
})  # fmt: skip
"""The formats that JSON Schema defines. Validators ignore all other formats."""


def subschemas(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Return the schemas directly within a schema, each with its keyword."""
    return ((name, subschema) for name, _, subschema in locate_subschemas(schema))


def locate_subschemas(schema: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yield (keyword, path, subschema) of each direct subschema: ("anyOf", "anyOf[0]", {…})."""
    for name, value in schema.items():
        if name in _MAPS and isinstance(value, dict):
            for key, subschema in value.items():
                if isinstance(subschema, (dict, bool)):
                    yield name, f"{name}.{key}", subschema
        elif name in _LISTS and isinstance(value, list):
            yield from ((name, f"{name}[{i}]", subschema) for i, subschema in enumerate(value))
        elif name in _SINGLES:
            yield name, name, value


def map_subschemas(schema: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Return a copy of a schema, with ``change`` applied to each direct subschema."""

    def change_value(name: str, value: Any) -> Any:
        if name in _MAPS and isinstance(value, dict):
            return {key: change(subschema) for key, subschema in value.items()}
        if name in _LISTS and isinstance(value, list):
            return [change(subschema) for subschema in value]
        return change(value) if name in _SINGLES else value

    return {name: change_value(name, value) for name, value in schema.items()}


def without_custom_formats(schema: Any) -> Any:
    """Return a schema without the formats that JSON Schema does not define."""
    if not isinstance(schema, dict):
        return schema
    copy = map_subschemas(schema, without_custom_formats)
    if _custom_format(copy) is not None:
        del copy["format"]
    return copy


def custom_formats(schema: Any) -> set[str]:
    """Return the formats in a schema that JSON Schema does not define."""
    if not isinstance(schema, dict):
        return set()
    formats = {name} if (name := _custom_format(schema)) is not None else set()
    return formats.union(*(custom_formats(subschema) for _, subschema in subschemas(schema)))


def _custom_format(schema: Mapping[str, Any]) -> str | None:
    name = schema.get("format")
    return name if isinstance(name, str) and name not in STANDARD_FORMATS else None


# -- the values of keywords --------------------------------------------------------------------

_Rule = tuple[Callable[[Any], bool], str]


_MOST_LOOKING = 32
"""Different patterns of a schema that look around: each takes some tenth of a second."""


def check_values(schema: Any, path: str = "") -> None:
    """Raise InputError, with the place in the schema, for an invalid value of a keyword.

    The patterns must be such as masks can be made of.
    """
    check_keywords(schema, path)
    for name, place, pattern in _all_patterns(schema, path):
        check_repetition(Name("json_schema", prose=f": {place}{name}"), pattern)
    looking = {pattern for _, _, pattern in _all_patterns(schema, path) if looks_around(pattern)}
    if len(looking) > _MOST_LOOKING:
        raise InputError(
            "json_schema",
            f": {len(looking)} different patterns look around; at most {_MOST_LOOKING} may",
        )


def check_keywords(schema: Any, path: str = "") -> None:
    """Raise InputError, with the place in the schema, where JSON Schema allows no such value."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        place = path.removesuffix(".") if path.endswith(".") else f"{path}it"
        raise InputError(
            "json_schema", f": {place} must be a schema, an object, not {shown(schema)}"
        )
    for name, value in schema.items():
        if name in _RULES:
            fits, description = _RULES[name]
            if not fits(value):
                raise InputError(
                    "json_schema", f": {path}{name} must be {description}, not {shown(value)}"
                )
        if name == "type":
            _check_types(value, path)
    for _, inner, below in locate_subschemas(schema):
        check_keywords(below, f"{path}{inner}.")


def _all_patterns(schema: Any, path: str) -> Iterator[tuple[str, str, str]]:
    """Yield (keyword, place of its schema, pattern) of each pattern in a schema."""
    if isinstance(schema, dict):
        for name in ("pattern", "patternProperties"):
            patterns = schema.get(name, ())
            for pattern in [patterns] if isinstance(patterns, str) else patterns:
                yield name, path, pattern
        for _, inner, below in locate_subschemas(schema):
            yield from _all_patterns(below, f"{path}{inner}.")


def _check_types(value: Any, path: str) -> None:
    for name in value if isinstance(value, list) else [value]:
        if name not in TYPES:
            raise InputError(
                "json_schema",
                f": {path}type is {shown(name)}, which JSON does not have; choose one "
                f"of {', '.join(TYPES)}",
            )


def _is_number(value: Any) -> bool:
    return is_number(value) and isfinite(value)


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _is_schema(value: Any) -> bool:
    return isinstance(value, (dict, bool))


def _is_schemas(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_schema, value))


def _maps_to(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(fits, value.values()))


_SCHEMA: _Rule = _is_schema, "a schema, an object"
_SCHEMAS: _Rule = _is_schemas, "a list of schemas"
_BY_NAME: _Rule = _maps_to(_is_schema), "an object whose values are schemas"
_COUNT: _Rule = _is_count, "a whole number, 0 or more"
_NUMBER: _Rule = _is_number, "a number"
_BOOL: _Rule = lambda value: isinstance(value, bool), "true or false"
_TEXT: _Rule = lambda value: isinstance(value, str), "a text"

_RULES: Mapping[str, _Rule] = {
    "type": (
        lambda value: isinstance(value, str) or _is_texts(value),
        "the name of a type or a list of names",
    ),
    "enum": (lambda value: isinstance(value, list), "a list of values"),
    **dict.fromkeys(("minimum", "maximum"), _NUMBER),
    **dict.fromkeys(  # draft 4 has true next to minimum
        ("exclusiveMinimum", "exclusiveMaximum"),
        (lambda value: isinstance(value, bool) or _is_number(value), "a number"),
    ),
    "multipleOf": (lambda value: _is_number(value) and value > 0, "a number above 0"),
    **dict.fromkeys(
        (
            "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties",
            "minContains", "maxContains",
        ),
        _COUNT,
    ),
    **dict.fromkeys(("pattern", "format", "$ref"), _TEXT),
    "uniqueItems": _BOOL,
    "required": (  # draft 3 has true
        lambda value: isinstance(value, bool) or _is_texts(value), "a list of names"
    ),
    **dict.fromkeys(
        (
            "additionalProperties", "additionalItems", "not", "if", "then", "else", "contains",
            "propertyNames",
        ),
        _SCHEMA,
    ),
    "items": (  # drafts before 2020-12 have a list
        lambda value: isinstance(value, list) or _is_schema(value), "a schema, an object"
    ),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), _SCHEMAS),
    **dict.fromkeys(("properties", "patternProperties", "dependentSchemas"), _BY_NAME),
    "dependentRequired": (_maps_to(_is_texts), "an object whose values are lists of names"),
    "dependencies": (  # draft 3 has a name
        _maps_to(lambda value: _is_schema(value) or _is_texts(value) or isinstance(value, str)),
        "an object whose values are schemas or lists of names",
    ),
}  # fmt: skip


# -- references --------------------------------------------------------------------------------
# A ``$ref`` may only refer to a place within the schema: by JSON pointer, anchor or ``$id``.


class References:
    """The places in a schema to which references may refer."""

    def __init__(self, root: Any) -> None:
        self._home: dict[int, str] = {}  # id() of a schema -> the URI of its resource
        self._resources: dict[str, Any] = {"": root}
        self._anchors: dict[tuple[str, str], Any] = {}
        self._targets: dict[int, Any] = {}
        self._walk(root, "")
        self._root_uri = self._home.get(id(root), "")

    def target(self, schema: dict[str, Any]) -> Any:
        """Return the schema that a ``$ref`` refers to; InputError if it is not within the root."""
        if id(schema) in self._targets:
            return self._targets[id(schema)]
        reference = schema["$ref"]
        home = self._home.get(id(schema), self._root_uri)
        whole = home + reference if reference.startswith("#") else urljoin(home, reference)
        uri, fragment = urldefrag(whole)
        try:
            target = self._resolve(uri, unquote(fragment))
        except (KeyError, IndexError, ValueError, TypeError):
            raise InputError(
                "json_schema", f": $ref {reference!r} names nothing within the schema"
            ) from None
        check_values(target, f"{reference}: ")
        self._targets[id(schema)] = target
        return target

    def _resolve(self, uri: str, fragment: str) -> Any:
        if fragment and not fragment.startswith("/"):
            return self._anchors[uri, fragment]
        place = self._resources[uri]
        for part in fragment.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            place = place[int(name)] if isinstance(place, list) else place[name]
        return place

    def _walk(self, schema: Any, uri: str) -> None:
        if not isinstance(schema, dict):
            return
        if isinstance(identifier := schema.get("$id"), str):
            uri, fragment = urldefrag(urljoin(uri, identifier))
            if fragment:  # as drafts before 2019-09 name an anchor
                self._anchors[uri, fragment] = schema
            else:
                self._resources[uri] = schema
        if isinstance(anchor := schema.get("$anchor"), str):
            self._anchors[uri, anchor] = schema
        self._home[id(schema)] = uri
        for _, subschema in subschemas(schema):
            self._walk(subschema, uri)


# -- keys in one spelling ----------------------------------------------------------------------
# llguidance excludes the keys that a schema names from "any other key" by their spelling, not by
# their parsed text: if ``role`` has a type, ``"\u0072ole"`` would still take any value. So each key
# gets one spelling.

WITHOUT_U = r"\"nrbtf"
"""The allowed escapes, without ``\\u``: other control characters cannot be written."""

_SEVERAL = re.compile(r"[\x00-\x1f\x7f]")  # characters with more than one JSON spelling


def one_spelling(schema: Any) -> Any:
    """Allow all other keys by a pattern, since llguidance matches a pattern with the parsed key."""
    if not isinstance(schema, dict):
        return schema
    copy = map_subschemas(schema, one_spelling)
    if _names(schema) and _rest(schema) is True and "patternProperties" not in schema:
        return {**copy, "patternProperties": {"": True}, "additionalProperties": False}
    return copy


def has_several(schema: Any) -> bool:
    """Return whether llguidance allows another spelling of a key even after ``one_spelling``."""
    if not isinstance(schema, dict):
        return False
    among = bool(_names(schema) or schema.get("patternProperties"))
    if (among and _rest(schema) is not False) or any(map(_SEVERAL.search, _names(schema))):
        return True
    return any(has_several(subschema) for _, subschema in subschemas(schema))


def check_counts(schema: Any) -> None:
    """Raise InputError if a repeated key could satisfy ``minProperties`` in llguidance."""
    if not isinstance(schema, dict):
        return
    least = schema.get("minProperties", 0)
    if isinstance(least, int) and least > 1 and is_open(schema):
        raise InputError(
            "json_schema",
            ": minProperties above 1 must be checked token by token, which is only "
            "possible without tools and thinking",
        )
    for _, subschema in subschemas(schema):
        check_counts(subschema)


def is_open(schema: Mapping[str, Any]) -> bool:
    """Return whether an object may have keys that the schema does not name."""
    return _rest(schema) is not False or bool(schema.get("patternProperties"))


def _names(schema: Mapping[str, Any]) -> set[str]:
    properties, required = schema.get("properties", {}), schema.get("required", [])
    names = {*properties} if isinstance(properties, dict) else set()
    if isinstance(required, list):
        names |= {name for name in required if isinstance(name, str)}
    return names


def _rest(schema: Mapping[str, Any]) -> Any:
    rest = schema.get("additionalProperties", True)
    return True if rest == {} else rest
