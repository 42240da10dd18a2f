"""Remove the keywords that no grammar can express from a schema, and check them instead.

Knows JSON and schemas. Does not know tokens and masks.
"""

import json
import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, cast

from cutaway.errors import InputError
from cutaway.text.grammar.json_values import (
    TYPES,
    check_string_rule,
    is_exact,
    is_maskable_step,
    is_number,
    parse_exact,
)
from cutaway.text.grammar.partial_json import MAX_DEPTH, BegunScalar, OpenContainer, PartialJson
from cutaway.text.grammar.partial_validator import BOUNDS, DEPENDENCIES, PartialValidator
from cutaway.text.grammar.schemas import (
    check_values,
    map_subschemas,
    subschemas,
    without_custom_formats,
)

# -- the judge of a whole text -----------------------------------------------------------------
# The judge decides whether a complete text satisfies its schemas; only then may the text end. Masks
# and the judge share only the matching of patterns and of most formats.

WHOLE, ANSWER = "", "answer"
"""Names of judged texts: the whole text, or the rule ``answer`` after a thought."""

JUDGED = "// a schema: "
"""Begins the first line of rules that say a schema: a comment, with the schema."""

_RULE = re.compile(rf"^([a-z_]\w*): (?:%json |%lark \{{\n{JUDGED})(\{{.*\}})$", re.MULTILINE)
_LATER = {
    "draft-04": ("const", "contains", "propertyNames", "if", "then", "else", "prefixItems"),
    "draft-06": ("if", "then", "else", "prefixItems"),
    "draft-07": ("prefixItems",),
    "2019-09": ("prefixItems",),
}
"""Draft -> keywords of later drafts, which this draft ignores."""


class Judge:
    """Decides whether texts satisfy their schemas.

    names  the rules that have schemas, or WHOLE
    """

    def __init__(self, schemas: Mapping[str, Any]) -> None:
        self.names = frozenset(schemas)
        self._schemas = {name: _keep_draft_keywords(schema) for name, schema in schemas.items()}

    def takes(self, name: str, text: bytes) -> bool:
        """Return whether a text satisfies the schema of this name; True if the name has none."""
        if name not in self._schemas:
            return True
        try:
            value = parse_exact(text.decode())
        except (ValueError, RecursionError):
            return False
        if _is_deeper(value, MAX_DEPTH):
            return False
        return PartialValidator(self._schemas[name]).judge(value) is True


def judge_of(schema: Any) -> Judge:
    """Return a judge of complete texts by one schema."""
    return Judge({WHOLE: without_custom_formats(schema)})


def judge_of_rules(lark: str) -> tuple[str, Judge | None]:
    """Return (Lark that captures each rule made of one schema, the judge of the captured texts)."""
    schemas = {name: _schema(text) for name, text in _RULE.findall(lark)}
    binding = {name: schema for name, schema in schemas.items() if {*schema} - {"x-guidance"}}
    if not binding:
        return lark, None
    captured = _RULE.sub(
        lambda rule: rule[0].replace(":", "[capture]:", 1) if rule[1] in binding else rule[0], lark
    )
    return captured, Judge(binding)


def _schema(text: str) -> dict[str, Any]:
    """Return the schema of a line; {} where the line has more than a schema."""
    try:
        return cast("dict[str, Any]", json.loads(text))
    except ValueError:
        return {}


def _keep_draft_keywords(schema: Any) -> Any:
    """Return a schema without keywords that its draft does not define."""
    dialect = schema.get("$schema") if isinstance(schema, dict) else None
    later = next((names for draft, names in _LATER.items() if draft in str(dialect)), ())

    def drop_later(subschema: Any) -> Any:
        if not isinstance(subschema, dict):
            return subschema
        return {
            name: value
            for name, value in map_subschemas(subschema, drop_later).items()
            if name not in later
        }

    return drop_later(schema) if later else schema


def _is_deeper(value: Any, levels: int) -> bool:
    level = [value]
    for _ in range(levels + 1):
        level = [child for parent in level for child in _children(parent)]
        if not level:
            return False
    return True


def _children(value: Any) -> Iterator[Any]:
    children = (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    )
    return (child for child in children if isinstance(child, (dict, list)))


# -- checks in addition to a mask --------------------------------------------------------------
# ``relax`` removes the keywords that masks cannot enforce, so its schema allows more texts.
# ``SchemaCheck`` refuses a token after which a text can no longer satisfy the original schema.

CHECKED = (
    "not", "oneOf", "if", "then", "else", "uniqueItems", "contains", "minContains", "maxContains",
    "propertyNames", "minProperties", "maxProperties", *DEPENDENCIES,
)  # fmt: skip
"""The keywords that are removed where llguidance cannot compile a schema."""

_UNKNOWN = ("unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef")
_WHOLE = ("not", "oneOf", "if", "then", "else", "contains", "propertyNames", *DEPENDENCIES)
"""Keywords whose subschemas the grammar ignores."""

_WHOLE_FLOATS = 2**53
"""Float64, as which masks read bounds, has every smaller integer, and those next to it."""
_AT_ONCE = 32
_CLOSING = re.compile(rb'"')
_CLOSING_MORE = re.compile(rb'(?s)[}\]]|".*".*"')


def relax(schema: Any, *, guided: bool) -> Any:
    """Return a schema without CHECKED keywords, which allows all texts of the given one.

    guided: add rules for the removed keywords, which can make the grammar too large
    """
    if not isinstance(schema, dict):
        return schema
    all_of = map_subschemas(schema, partial(relax, guided=guided))
    left_out = {*CHECKED, *_inexact(schema)}
    relaxed = {name: value for name, value in all_of.items() if name not in left_out}
    if guides := [*_guides(all_of, guided)]:
        relaxed["allOf"] = [*relaxed.get("allOf", ()), *guides]
    return relaxed


def _guides(schema: Mapping[str, Any], guided: bool) -> Iterator[Any]:
    """Yield schemas that express a part of the removed keywords; subschemas are already relaxed."""
    for name in _inexact(schema):
        if name in (*BOUNDS, "multipleOf"):
            continue
        values = schema["enum"] if name == "enum" else [schema["const"]]
        yield {"anyOf": [_roughly(value) for value in values]}
    if "oneOf" in schema:
        keys = [_required_key(option) for option in schema["oneOf"]]
        alone = guided and None not in keys and len({*keys}) == len(keys)
        yield {"anyOf": [_only(k, keys) for k in keys] if alone else schema["oneOf"]}
    if not guided:
        return
    items = schema.get("items")
    if schema.get("uniqueItems") is True and isinstance(items, dict) and "enum" in items:
        yield {"maxItems": len(items["enum"])}
    if "if" in schema and "else" in schema:
        yield {"anyOf": [{"allOf": [schema["if"], schema.get("then", True)]}, schema["else"]]}
    for name in ("dependentRequired", "dependencies"):
        for key, dependency in (schema.get(name) or {}).items():
            if isinstance(dependency, list):
                yield {"anyOf": [{"required": [key, *dependency]}, {"properties": {key: False}}]}


def _inexact(schema: Mapping[str, Any]) -> list[str]:
    """Return the keywords whose values have numbers that masks cannot read."""
    values = [name for name in ("const", "enum") if not is_exact(schema.get(name))]
    if "multipleOf" in schema and not is_maskable_step(schema["multipleOf"]):
        values.append("multipleOf")
    if schema.get("type") != "integer":  # of other numbers no beginning can be refused
        return values
    return values + [name for name in BOUNDS if _is_large(schema.get(name))]


def _is_large(bound: Any) -> bool:
    return is_number(bound) and abs(bound) >= _WHOLE_FLOATS


def _roughly(value: Any) -> Any:
    if is_exact(value):
        return {"const": value}
    return {"type": next(name for name in ("object", "array", "integer") if TYPES[name](value))}


def _only(key: str | None, keys: list[str | None]) -> Any:
    """Return a schema of objects with one of these keys and none of the others."""
    return {"required": [key], "properties": {k: False for k in keys if k != key}}


def _required_key(schema: Any) -> str | None:
    """Return the one key that a schema requires; None if it has any other rule."""
    if not isinstance(schema, dict) or {*schema} != {"required"} or len(schema["required"]) != 1:
        return None
    return str(schema["required"][0])


class SchemaCheck:
    """Checks token by token whether a JSON text can still satisfy a schema.

    keywords  the keywords that the check enforces instead of masks
    """

    name, reads_prompt = "json_schema", False
    limit_s: float | None = 1.0

    def __init__(self, schema: Any) -> None:
        self.schema = schema
        keywords, inexact = _check_supported(schema)
        self.keywords = (*(name for name in CHECKED if name in keywords), *sorted(inexact))
        self._plain = bool(inexact)
        self._rules = PartialValidator(schema, plain=self._plain)
        self._readers: dict[bytes, PartialJson] = {}
        kinds = [BegunScalar(kind) for kind in ("string", "number", "boolean", "null")]
        # This also finds a circular $ref.
        possible = [self._rules.judge(v) for v in (*kinds, OpenContainer({}), OpenContainer([]))]
        if self.keywords and not any(truth is not False for truth in possible):
            raise InputError("json_schema", ": the schema allows no text")

    def allows(self, text: bytes, token: bytes) -> bool:
        """Return whether the token may follow the text; an empty token is the end of the text."""
        reader = self._reader_of(text).fork()
        for _ in reader.read(token) if token else reader.finish():
            if reader.repeated or (self._plain and reader.exponent):
                return False
            if self._rules.judge(reader.value) is False:
                return False
        return bool(token) or reader.is_whole

    def suspects(self, text: bytes) -> re.Pattern[bytes] | None:
        """Return a pattern of the tokens that may be refused here; None: any token may be."""
        reader = self._reader_of(text)
        if not reader.in_string:
            return None
        if reader.in_key:
            return _CLOSING
        self._rules.judge(reader.value)
        return _CLOSING if self._rules.touched else _CLOSING_MORE

    def _reader_of(self, text: bytes) -> PartialJson:
        if text in self._readers:
            return self._readers[text]
        beginnings = (b for b in self._readers if text.startswith(b))
        before = max(beginnings, key=len, default=b"")
        reader = self._readers[before].fork() if before else PartialJson()
        for _ in reader.read(text[len(before) :]):
            pass
        while len(self._readers) >= _AT_ONCE:
            del self._readers[next(iter(self._readers))]
        self._readers[text] = reader
        return reader


def _check_supported(schema: Any) -> tuple[set[str], set[str]]:
    """Return (all keywords of a schema, those that masks cannot enforce exactly).

    InputError for a keyword that can be neither masked nor checked.
    """
    check_values(schema)
    keywords: set[str] = set()
    inexact: set[str] = set()
    seen: set[tuple[int, bool]] = set()
    rules = PartialValidator(schema)

    def visit(subschema: Any, whole: bool) -> None:
        if not isinstance(subschema, dict) or (id(subschema), whole) in seen:
            return
        seen.add((id(subschema), whole))
        keywords.update(subschema)
        inexact.update(_inexact(subschema))
        for name in _UNKNOWN:
            if name in subschema:
                raise InputError("json_schema", f": {name} is not supported")
        if whole:
            _check_strings(subschema)
        if isinstance(subschema.get("$ref"), str):
            visit(rules.target(subschema), whole)
        for name, below in subschemas(subschema):
            visit(below, whole or name in _WHOLE)

    visit(rules.root, False)
    return keywords, inexact


def _check_strings(schema: Mapping[str, Any]) -> None:
    for name in ("pattern", "format"):
        if name in schema:
            check_string_rule(name, schema[name])
    for pattern in schema.get("patternProperties", {}):
        check_string_rule("pattern", pattern)
