"""The schemas within a schema, and which keywords of JSON Schema hold them."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

_MAPS = (
    "properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies",
)  # fmt: skip
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_ONES = (
    "additionalProperties", "items", "additionalItems", "not", "if", "then", "else", "contains",
    "propertyNames",
)  # fmt: skip

TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
STANDARD_FORMATS = frozenset({
    "date-time", "date", "time", "duration", "email", "idn-email", "hostname", "idn-hostname",
    "ipv4", "ipv6", "uri", "uri-reference", "iri", "iri-reference", "uuid", "uri-template",
    "json-pointer", "relative-json-pointer", "regex",
})  # fmt: skip
"""Those that JSON Schema defines. Others are notes to people: validators pass over them."""


def subschemas(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The schemas directly within a schema, each with its keyword."""
    return ((name, one) for name, _, one in located(schema))


def located(schema: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Keyword, path and schema of each: ("anyOf", "anyOf[0]", {…})."""
    for name, value in schema.items():
        if name in _MAPS and isinstance(value, dict):
            for key, one in value.items():
                if isinstance(one, (dict, bool)):
                    yield name, f"{name}.{key}", one
        elif name in _LISTS and isinstance(value, list):
            yield from ((name, f"{name}[{i}]", one) for i, one in enumerate(value))
        elif name in _ONES:
            yield name, name, value


def mapped(schema: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """A schema in which those directly within it are changed."""

    def under(name: str, value: Any) -> Any:
        if name in _MAPS and isinstance(value, dict):
            return {key: change(one) for key, one in value.items()}
        if name in _LISTS and isinstance(value, list):
            return [change(one) for one in value]
        return change(value) if name in _ONES else value

    return {name: under(name, value) for name, value in schema.items()}


def without_own_formats(schema: Any) -> Any:
    """A schema without the formats that JSON Schema does not define."""
    if not isinstance(schema, dict):
        return schema
    made = mapped(schema, without_own_formats)
    if _own_format(made) is not None:
        del made["format"]
    return made


def own_formats(schema: Any) -> set[str]:
    """The formats in a schema that JSON Schema does not define."""
    if not isinstance(schema, dict):
        return set()
    own = {name} if (name := _own_format(schema)) is not None else set()
    return own.union(*(own_formats(one) for _, one in subschemas(schema)))


def _own_format(schema: Mapping[str, Any]) -> str | None:
    name = schema.get("format")
    return name if isinstance(name, str) and name not in STANDARD_FORMATS else None
