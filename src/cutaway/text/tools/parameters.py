"""The parameters of a call whose arguments are no JSON object: their form, types and texts.

Knows the texts around keys and values, the keywords that combine schemas, and terminals of
llguidance's Lark for strings and plain values without quotes. A schema that cannot be expressed is
an InputError. Does not know calls.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from cutaway.errors import InputError
from cutaway.text.grammar.json_values import CALENDAR_PATTERNS
from cutaway.text.grammar.patterns.look_around import lark_of_pattern
from cutaway.text.grammar.patterns.sets import check_repetition
from cutaway.text.grammar.schemas import STANDARD_FORMATS

# -- the form of a list of parameters ----------------------------------------------------------


@dataclass(frozen=True)
class ParameterList:
    """The form: before KEY opening VALUE closing  (between  before KEY opening VALUE closing)…

    before:  precedes each key
    text:    (opening, closing) of a string, which is not escaped
    other:   (opening, closing) of any other value, which is JSON
    between: the text between two parameters
    nested:  whether nested objects and lists have this form, in { } and [ ], instead of JSON
    """

    before: str
    text: tuple[str, str]
    other: tuple[str, str]
    between: str = ""
    nested: bool = False

    @property
    def tells_strings(self) -> bool:
        """Whether the texts around a value tell strings from other values."""
        return self.text != self.other

    @property
    def escapes(self) -> bool:
        """Whether strings have Python's escapes, and may also be JSON."""
        return self.text[1] == "'"

    @property
    def quotes(self) -> tuple[str, str]:
        """The quotes: the texts that are around strings, but not around other values."""
        return self.text[0].removeprefix(self.other[0]), self.text[1].removesuffix(self.other[1])

    @property
    def texts(self) -> tuple[str, ...]:
        """All literal texts of the form."""
        return (self.before, *self.text, *self.other, self.between)

    def write(self, arguments: Mapping[str, Any]) -> str:
        """Return the text of ``arguments``."""
        return self.between.join(
            self.before + key + self._value(value) for key, value in arguments.items()
        )

    def _value(self, value: Any) -> str:
        if self.nested:
            return self.nested_text(value).join(self.other)
        if not isinstance(value, str):
            return json.dumps(value, ensure_ascii=False).join(self.other)
        if self.escapes:
            value = json.dumps(value, ensure_ascii=False)[1:-1].replace(r"\"", '"')
            value = value.replace("'", r"\'")
        return str(value).join(self.text)

    def nested_text(self, value: Any) -> str:
        """Return a value as the form writes it within an object or list."""
        if isinstance(value, str):
            return value.join(self.quotes)
        if isinstance(value, Mapping):
            return f"{{{self.write(value)}}}"
        if isinstance(value, list):
            return f"[{self.between.join(map(self.nested_text, value))}]"
        return json.dumps(value)


# -- which types a schema allows ---------------------------------------------------------------
# Types are JSON Schema's, but "true" and "false" replace "boolean", and "number" also "integer".

STRING, NUMBER, OBJECT, ARRAY = "string", "number", "object", "array"
ANY = frozenset({STRING, NUMBER, OBJECT, ARRAY, "true", "false", "null"})
_TYPES_OF_NAME = {"boolean": {"true", "false"}, "integer": {NUMBER}}
_DEPTH = 100


def resolve(schema: Any, root: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema as an object, with its local ``$ref`` resolved.

    root: the whole schema, whose parts the references name
    InputError for a reference that is not within the root.
    """
    if isinstance(schema, bool):
        return {} if schema else {"not": {}}
    copy = dict(schema)
    for _ in range(_DEPTH):
        if "$ref" not in copy:
            return copy
        copy = {**_follow_reference(copy.pop("$ref"), root), **copy}
    raise InputError(f"the reference {schema['$ref']} names itself; describe the value there")


def _follow_reference(reference: Any, root: Mapping[str, Any]) -> dict[str, Any]:
    place: Any = root
    for step in str(reference).removeprefix("#").removeprefix("/").split("/"):
        name = step.replace("~1", "/").replace("~0", "~")
        if name:
            place = place.get(name) if isinstance(place, dict) else None
    if not str(reference).startswith("#") or not isinstance(place, (dict, bool)):
        raise InputError(f'the reference "{reference}" names nothing; put it under $defs')
    return resolve(place, {}) if isinstance(place, bool) else dict(place)


def types_of(schema: Any, root: Mapping[str, Any], depth: int = 0) -> frozenset[str]:
    """Return the types of the values that a schema may allow."""
    if depth > _DEPTH:
        return ANY
    here = resolve(schema, root)
    if here.get("not") == {}:
        return frozenset()
    types = set(ANY)
    if "type" in here:
        names = here["type"] if isinstance(here["type"], list) else [here["type"]]
        types &= set().union(*(_TYPES_OF_NAME.get(name, {name}) for name in names))
    for values in _listed_values(here):
        types &= {type_of(value) for value in values}
    for subschema in here.get("allOf", ()):
        types &= types_of(subschema, root, depth + 1)
    for name in ("anyOf", "oneOf"):
        if name in here:
            types &= set().union(
                *(types_of(subschema, root, depth + 1) for subschema in here[name])
            )
    return frozenset(types)


def _listed_values(schema: Mapping[str, Any]) -> list[list[Any]]:
    """Return the values that a schema lists, by ``enum`` and by ``const``."""
    lists = [schema["enum"]] if isinstance(schema.get("enum"), list) else []
    return [*lists, [schema["const"]]] if "const" in schema else lists


def type_of(value: Any) -> str:
    """Return the type of a JSON value."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    kinds = ((str, STRING), ((int, float), NUMBER), (Mapping, OBJECT))
    return next((name for kind, name in kinds if isinstance(value, kind)), ARRAY)


def narrow(schema: Any, keep: Set[str], root: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema that only allows values of the types ``keep``.

    root: the whole schema, whose parts the references name
    """
    types = types_of(schema, root)
    if types <= keep:
        return {**resolve(schema, root)}
    here = resolve(schema, root)
    for name in ("anyOf", "oneOf"):
        if name in here:
            ways = [alternative for alternative in here[name] if types_of(alternative, root) & keep]
            here[name] = [narrow(alternative, keep, root) for alternative in ways]
    for name in ("enum", "const"):
        if name in here:
            values = here.pop(name) if name == "enum" else [here.pop(name)]
            here["enum"] = [value for value in values if type_of(value) in keep]
            return here
    if "anyOf" in here or "oneOf" in here:
        return here
    type_names = here.get("type", ["object", "array", "string", "number", "boolean", "null"])
    type_names = type_names if isinstance(type_names, list) else [type_names]
    here["type"] = [name for name in type_names if _TYPES_OF_NAME.get(name, {name}) & keep]
    return here


# -- values without quotes ---------------------------------------------------------------------

SPELLINGS = {"true": ("true", "True"), "false": ("false", "False"), "null": ("null", "None")}
"""A plain value -> its spellings in JSON and in Python: templates write either."""

NUMBER_REGEX = r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?"
_INTEGER_REGEX = r"-?(0|[1-9][0-9]*)"
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")

_BYTE = r"(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_LABEL = r"[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_HOST = rf"{_LABEL}(\.{_LABEL})*"
_FORMATS = {
    **CALENDAR_PATTERNS,
    "ipv4": rf"{_BYTE}(\.{_BYTE}){{3}}",
    "uuid": "[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}",
    "hostname": _HOST,
    "email": rf"[a-zA-Z0-9_+-]+(\.[a-zA-Z0-9_+-]+)*@{_HOST}",
    "uri": r"[a-zA-Z][a-zA-Z0-9+.-]*:[a-zA-Z0-9._~:/?#@!$&'()*+,;=%\[\]-]+",
}

Define = Callable[[str], str]  # an expression -> the name of the terminal that it becomes


def text(schema: Any, root: Mapping[str, Any], define: Define) -> str:
    """Return the terminal of a schema's strings."""
    here = resolve(schema, root)
    keywords = (_keyword(name, value, define) for name, value in here.items())
    parts = [*filter(None, keywords)]
    parts += [text(subschema, root, define) for subschema in here.get("allOf", ())]
    for name in ("anyOf", "oneOf"):
        if name in here:
            ways = [way for way in here[name] if STRING in types_of(way, root)]
            parts.append(define(" | ".join(text(way, root, define) for way in ways)))
    shortest, longest = here.get("minLength", 0), here.get("maxLength")
    if shortest or longest is not None:
        until = "" if longest is None else longest
        parts.append(define(f"/(?s:.){{{shortest},{until}}}/"))
    return define(" & ".join(parts)) if parts else "ANY"


def _keyword(name: str, value: Any, define: Define) -> str:
    """Return the terminal of one keyword; "" if the keyword alone does not limit strings."""
    if name == "enum":
        return define(alternatives([choice for choice in value if isinstance(choice, str)]))
    if name == "const":
        return define(alternatives([value]))
    if name == "pattern":
        check_repetition("pattern", value)
        return define(lark_of_pattern(value))
    if name == "format" and value in STANDARD_FORMATS:
        if value not in _FORMATS:
            formats = ", ".join(_FORMATS)
            raise InputError(f'the format "{value}" is none of {formats}; give a pattern')
        return define(f"/{slashes(_FORMATS[value])}/")
    if name in ("not", "if"):
        raise InputError(f'"{name}" of a string is not supported; give a pattern')
    return ""


def alternatives(texts: Sequence[str]) -> str:
    """Return an expression that matches one of the texts."""
    return " | ".join(json.dumps(choice, ensure_ascii=False) for choice in texts)


def slashes(regex: str) -> str:
    """Escape the slashes of a regex, so that it can stand between slashes."""
    return re.sub(r"\\.|/", lambda m: r"\/" if m[0] == "/" else m[0], regex, flags=re.S)


def words(types: Set[str]) -> list[str]:
    """Return all spellings of each word (true, false or null) whose type is among ``types``."""
    return [word for name, spelled in SPELLINGS.items() if name in types for word in spelled]


def numbers(schema: Any, root: Mapping[str, Any]) -> list[str]:
    """Return expressions of a schema's numbers.

    InputError for bounds: without quotes, only its characters tell a number from a string.
    """
    here = resolve(narrow(schema, {NUMBER}, root), root)
    expressions: list[str] = []
    for name in ("anyOf", "oneOf", "allOf"):
        for subschema in here.get(name, ()):
            expressions += numbers(subschema, root)
    if expressions:
        return expressions
    if "enum" in here:
        return [json.dumps(json.dumps(value)) for value in here["enum"]]
    if bound := next((name for name in _BOUNDS if name in here), ""):
        raise InputError(f'"{bound}" beside a string is not supported; leave it out')
    is_integer = here.get("type") in ("integer", ["integer"])
    return [f"/{_INTEGER_REGEX if is_integer else NUMBER_REGEX}/"]
