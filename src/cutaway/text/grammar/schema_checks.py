"""What a schema asks and no grammar can express: removed from it, and checked instead.

Knows JSON and schemas. Refuses to know tokens and masks.
"""

import json
import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, cast

from cutaway.errors import InputError
from cutaway.text.grammar.json_values import TYPES, check_string_rule, is_exact, parsed
from cutaway.text.grammar.partial_json import MAX_DEPTH, BegunScalar, OpenContainer, PartialJson
from cutaway.text.grammar.partial_validator import DEPENDENCIES, PartialValidator
from cutaway.text.grammar.schemas import check_values, mapped, subschemas, without_own_formats

# -- the judge of a whole text -----------------------------------------------------------------
# Whether a text keeps to its schemas, once it is whole; one that does not must not end. It shares
# nothing with masks but how patterns and most formats are read.

WHOLE, ANSWER = "", "answer"
"""The whole text, and the rule of what follows a thought."""

_RULE = re.compile(r"^([a-z_]\w*): %json (\{.*\})$", re.MULTILINE)
_LATER = {
    "draft-04": ("const", "contains", "propertyNames", "if", "then", "else", "prefixItems"),
    "draft-06": ("if", "then", "else", "prefixItems"),
    "draft-07": ("prefixItems",),
    "2019-09": ("prefixItems",),
}
"""Draft -> keywords of later ones, which mean nothing in it."""


class Judge:
    """Whether what was written under schemas keeps to them.

    names  of the rules that have schemas, or WHOLE
    """

    def __init__(self, schemas: Mapping[str, Any]) -> None:
        self.names = frozenset(schemas)
        self._schemas = {name: _of_its_draft(schema) for name, schema in schemas.items()}

    def takes(self, name: str, text: bytes) -> bool:
        """Whether a text keeps to the schema of this name, where there is one."""
        if name not in self._schemas:
            return True
        try:
            value = parsed(text.decode())
        except (ValueError, RecursionError):
            return False
        if _is_deeper(value, MAX_DEPTH):
            return False
        return PartialValidator(self._schemas[name]).judge(value) is True


def judge_of(schema: Any) -> Judge:
    """The judge of whole texts of a schema."""
    return Judge({WHOLE: without_own_formats(schema)})


def judge_of_rules(lark: str) -> tuple[str, Judge | None]:
    """Lark whose rules of nothing but a schema are captured, and the judge of what is captured."""
    schemas = {name: _schema(text) for name, text in _RULE.findall(lark)}
    known = {name: schema for name, schema in schemas.items() if {*schema} - {"x-guidance"}}
    if not known:
        return lark, None
    captured = _RULE.sub(
        lambda rule: rule[0].replace(":", "[capture]:", 1) if rule[1] in known else rule[0], lark
    )
    return captured, Judge(known)


def _schema(text: str) -> dict[str, Any]:
    """Empty where the line says more than a schema."""
    try:
        return cast("dict[str, Any]", json.loads(text))
    except ValueError:
        return {}


def _of_its_draft(schema: Any) -> Any:
    """A schema without keywords that its draft does not have."""
    named = schema.get("$schema") if isinstance(schema, dict) else None
    later = next((names for draft, names in _LATER.items() if draft in str(named)), ())

    def without(one: Any) -> Any:
        if not isinstance(one, dict):
            return one
        return {name: value for name, value in mapped(one, without).items() if name not in later}

    return without(schema) if later else schema


def _is_deeper(value: Any, levels: int) -> bool:
    level = [value]
    for _ in range(levels + 1):
        level = [one for parent in level for one in _children(parent)]
        if not level:
            return False
    return True


def _children(value: Any) -> Iterator[Any]:
    among = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return (one for one in among if isinstance(one, (dict, list)))


# -- checks beside a mask ----------------------------------------------------------------------
# ``relaxed`` gives the schema without such keywords, which allows more; ``SchemaCheck`` refuses the
# token with which a text of it can no longer become one of the whole schema.

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
            raise InputError("json_schema", ": the schema allows no text")

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
                raise InputError("json_schema", f": {name} is not supported")
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
