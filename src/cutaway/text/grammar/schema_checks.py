"""JSON Schema's keywords that no grammar can express: removed from the schema, and checked instead.

``relaxed`` gives the schema without them, which allows more; ``SchemaCheck`` refuses the token with
which a text of it can no longer become one of the whole schema. Knows JSON and schemas.
"""

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from cutaway.errors import InputError
from cutaway.text.grammar.json_values import TYPES, check_string_rule, is_exact
from cutaway.text.grammar.partial_json import BegunScalar, OpenContainer, PartialJson
from cutaway.text.grammar.partial_validator import DEPENDENCIES, PartialValidator
from cutaway.text.grammar.schema_values import check_values
from cutaway.text.grammar.subschemas import mapped, subschemas

CHECKED = (
    "not", "oneOf", "if", "then", "else", "uniqueItems", "contains", "minContains", "maxContains",
    "propertyNames", "minProperties", "maxProperties", *DEPENDENCIES,
)  # fmt: skip
"""The keywords that are removed where llguidance cannot compile a schema."""

_UNKNOWN = ("unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef")
_WHOLE = ("not", "oneOf", "if", "then", "else", "contains", "propertyNames", *DEPENDENCIES)
"""Keywords of those whose schemas the grammar knows nothing of."""

_AT_ONCE = 32
_CLOSING = re.compile(rb'"')
_CLOSING_MORE = re.compile(rb'(?s)[}\]]|".*".*"')


def relaxed(schema: Any, *, guided: bool) -> Any:
    """A schema without CHECKED that allows whatever the schema itself allows.

    guided: as little more as a grammar can say, which not every schema is small enough for
    """
    if not isinstance(schema, dict):
        return schema
    all_of = mapped(schema, partial(relaxed, guided=guided))
    left_out = {*CHECKED, *_inexact(schema)}
    made = {name: value for name, value in all_of.items() if name not in left_out}
    if guides := [*_guides(all_of, guided)]:
        made["allOf"] = [*made.get("allOf", ()), *guides]
    return made


def _guides(made: Mapping[str, Any], guided: bool) -> Iterator[Any]:
    """What a grammar can say of keywords that are left out, whose schemas are relaxed already."""
    for name in _inexact(made):
        among = made["enum"] if name == "enum" else [made["const"]]
        yield {"anyOf": [_roughly(value) for value in among]}
    if "oneOf" in made:
        keys = [_required_key(one) for one in made["oneOf"]]
        alone = guided and None not in keys and len({*keys}) == len(keys)
        yield {"anyOf": [_only(k, keys) for k in keys] if alone else made["oneOf"]}
    if not guided:
        return
    items = made.get("items")
    if made.get("uniqueItems") is True and isinstance(items, dict) and "enum" in items:
        yield {"maxItems": len(items["enum"])}
    if "if" in made and "else" in made:
        yield {"anyOf": [{"allOf": [made["if"], made.get("then", True)]}, made["else"]]}
    for name in ("dependentRequired", "dependencies"):
        for key, needed in (made.get(name) or {}).items():
            if isinstance(needed, list):
                yield {"anyOf": [{"required": [key, *needed]}, {"properties": {key: False}}]}


def _inexact(schema: Mapping[str, Any]) -> list[str]:
    """The keywords whose values have integers that masks do not know."""
    return [name for name in ("const", "enum") if not is_exact(schema.get(name))]


def _roughly(value: Any) -> Any:
    if is_exact(value):
        return {"const": value}
    return {"type": next(name for name in ("object", "array", "integer") if TYPES[name](value))}


def _only(key: str | None, keys: list[str | None]) -> Any:
    """An object with one of these keys and none of the others."""
    return {"required": [key], "properties": {k: False for k in keys if k != key}}


def _required_key(schema: Any) -> str | None:
    """The key that a schema wants, where it says nothing else."""
    if not isinstance(schema, dict) or {*schema} != {"required"} or len(schema["required"]) != 1:
        return None
    return str(schema["required"][0])


class SchemaCheck:
    """Whether a JSON text can still become one that a schema describes, judged token by token.

    keywords  those that are checked, and not masked
    """

    name, reads_prompt = "json_schema", False
    limit_s: float | None = 1.0

    def __init__(self, schema: Any) -> None:
        self.schema = schema
        found, inexact = _check_supported(schema)
        self.keywords = (*(name for name in CHECKED if name in found), *sorted(inexact))
        self._plain = bool(inexact)
        self._rules = PartialValidator(schema, plain=self._plain)
        self._readers: dict[bytes, PartialJson] = {}
        kinds = [BegunScalar(kind) for kind in ("string", "number", "boolean", "null")]
        # This also meets a $ref that leads in a circle.
        possible = [self._rules.judge(v) for v in (*kinds, OpenContainer({}), OpenContainer([]))]
        if self.keywords and not any(truth is not False for truth in possible):
            raise InputError("json_schema: the schema allows no text")

    def allows(self, text: bytes, token: bytes) -> bool:
        """Whether the token may follow; the end of the text where it is empty."""
        reader = self._at(text).fork()
        for _ in reader.read(token) if token else reader.finish():
            if reader.repeated or (self._plain and reader.exponent):
                return False
            if self._rules.judge(reader.value) is False:
                return False
        return bool(token) or reader.is_whole

    def suspects(self, text: bytes) -> re.Pattern[bytes] | None:
        """What a token holds that can be refused here; None: any may be."""
        reader = self._at(text)
        if not reader.in_string:
            return None
        if reader.in_key:
            return _CLOSING
        self._rules.judge(reader.value)
        return _CLOSING if self._rules.touched else _CLOSING_MORE

    def _at(self, text: bytes) -> PartialJson:
        if text in self._readers:
            return self._readers[text]
        known = (b for b in self._readers if text.startswith(b))
        before = max(known, key=len, default=b"")
        reader = self._readers[before].fork() if before else PartialJson()
        for _ in reader.read(text[len(before) :]):
            pass
        while len(self._readers) >= _AT_ONCE:
            del self._readers[next(iter(self._readers))]
        self._readers[text] = reader
        return reader


def _check_supported(schema: Any) -> tuple[set[str], set[str]]:
    """All keywords of it, and those that are not exact.

    InputError for one that can be neither masked nor checked.
    """
    check_values(schema)
    found: set[str] = set()
    inexact: set[str] = set()
    seen: set[tuple[int, bool]] = set()
    rules = PartialValidator(schema)

    def visit(one: Any, whole: bool) -> None:
        if not isinstance(one, dict) or (id(one), whole) in seen:
            return
        seen.add((id(one), whole))
        found.update(one)
        inexact.update(_inexact(one))
        for name in _UNKNOWN:
            if name in one:
                raise InputError(f"json_schema: {name} is not supported")
        if whole:
            _check_strings(one)
        if isinstance(one.get("$ref"), str):
            visit(rules.target(one), whole)
        for name, below in subschemas(one):
            visit(below, whole or name in _WHOLE)

    visit(rules.root, False)
    return found, inexact


def _check_strings(schema: Mapping[str, Any]) -> None:
    for name in ("pattern", "format"):
        if name in schema:
            check_string_rule(name, schema[name])
    for pattern in schema.get("patternProperties", {}):
        check_string_rule("pattern", pattern)
