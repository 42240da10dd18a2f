"""Whether the keywords of a JSON schema have values that they may have.

Knows what the metaschemas of drafts 4 to 2020-12 say, without the keywords that are not supported.
"""

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

from cutaway.base.checks import shown
from cutaway.errors import InputError
from cutaway.text.grammar.json_values import is_number
from cutaway.text.grammar.patterns import check_repetition
from cutaway.text.grammar.subschemas import TYPES, located

_Rule = tuple[Callable[[Any], bool], str]


def check_values(schema: Any, path: str = "") -> None:
    """InputError, with the place in the schema, for a keyword's value that means nothing."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        place = path.removesuffix(".") if path.endswith(".") else f"{path}it"
        raise InputError(f"json_schema: {place} must be a schema, an object, not {shown(schema)}")
    for name, value in schema.items():
        if name in _RULES:
            fits, said = _RULES[name]
            if not fits(value):
                raise InputError(f"json_schema: {path}{name} must be {said}, not {shown(value)}")
        if name == "type":
            _check_types(value, path)
        for pattern in _patterns(name, value):
            check_repetition(f"json_schema: {path}{name}", pattern)
    for _, inner, below in located(schema):
        check_values(below, f"{path}{inner}.")


def _patterns(name: str, value: Any) -> list[str]:
    if name == "patternProperties":
        return [*value]
    return [value] if name == "pattern" else []


def _check_types(value: Any, path: str) -> None:
    for name in value if isinstance(value, list) else [value]:
        if name not in TYPES:
            raise InputError(
                f"json_schema: {path}type is {shown(name)}, which JSON does not have; choose one "
                f"of {', '.join(TYPES)}"
            )


def _is_number(value: Any) -> bool:
    return is_number(value) and isfinite(value)


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


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
    **dict.fromkeys(  # draft 4 has true beside minimum
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
