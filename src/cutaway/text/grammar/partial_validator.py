"""Judge whether a value, which may still be incomplete, satisfies a JSON schema.

A verdict is True or False, whatever text follows, or None: not known yet. Knows the keywords of
drafts 4 to 2020-12 that concern a value alone.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import EllipsisType
from typing import Any

from cutaway.errors import InputError
from cutaway.text.grammar.json_values import (
    TYPES,
    Verdict,
    alike,
    all_hold,
    any_holds,
    exact,
    is_multiple,
    is_number,
    is_within,
    may_be_multiple,
    may_be_within,
    may_become,
    negate,
    string_fits,
)
from cutaway.text.grammar.partial_json import (
    NOT_BEGUN,
    BegunScalar,
    ChildFacts,
    OpenContainer,
    entries,
    members,
)
from cutaway.text.grammar.schemas import References

Schema = Any
_MOST_KEPT = 4096
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
DEPENDENCIES = ("dependencies", "dependentRequired", "dependentSchemas")


class PartialValidator:
    """Judges values by a schema.

    root     the schema, its numbers as decimals
    plain    whether numbers are written without an exponent
    touched  whether a verdict needed more than the kind of an open string, number or literal: the
             verdict may then change when this value ends
    """

    def __init__(self, root: Schema, *, plain: bool = False) -> None:
        self.root, self._plain, self.touched = exact(root), plain, False
        self._references = References(self.root)
        self._enums: dict[tuple[int, str], frozenset[Any]] = {}
        self._verdicts: dict[tuple[int, int], tuple[Any, Any, Verdict]] = {}  # of whole containers
        self._now: dict[tuple[int, int], Verdict | EllipsisType] = {}  # within one judgement

    def judge(self, value: Any) -> Verdict:
        """Return whether a value satisfies the schema."""
        self._now, self.touched = {}, False
        return self.holds(self.root, value)

    def holds(self, schema: Schema, value: Any) -> Verdict:
        """Return whether the judged value, or a part of it, satisfies a part of the schema."""
        if isinstance(schema, bool):
            return schema
        key = (id(schema), id(value))
        if key in self._verdicts:
            return self._verdicts[key][2]
        if key in self._now:
            if (verdict := self._now[key]) is ...:
                raise InputError("json_schema", ": its $ref lead back to themselves")
            return verdict
        self._now[key] = ...
        truth = self._now[key] = all_hold(self._judge_keywords(schema, value))
        if isinstance(value, (dict, list)):
            if len(self._verdicts) >= _MOST_KEPT:
                self._verdicts.clear()
            self._verdicts[key] = schema, value, truth  # kept alive, so that ids stay unique
        return truth

    def target(self, schema: dict[str, Any]) -> Schema:
        """Return the schema that a ``$ref`` refers to; InputError if it is not within the root."""
        return self._references.target(schema)

    def _judge_keywords(self, schema: dict[str, Any], value: Any) -> Iterable[Verdict]:
        kind = value.kind if isinstance(value, BegunScalar) else None
        for name, rule in _ANY.items():
            if name in schema:
                yield rule(self, schema, value)
        if isinstance(value, OpenContainer):
            of_kind = _OBJECT if isinstance(value.value, dict) else _ARRAY
        elif isinstance(value, dict):
            of_kind = _OBJECT
        elif isinstance(value, list):
            of_kind = _ARRAY
        elif isinstance(value, str) or kind == "string":
            of_kind = _STRING
        else:
            of_kind = _NUMBER if is_number(value) or kind == "number" else {}
        for name, rule in of_kind.items():
            if name not in schema:
                continue
            if kind == "number" and self._plain and name in BOUNDS:
                yield self._open_bounds(schema, value.text)
            elif kind == "number" and self._plain and name == "multipleOf":
                self.touched = True
                yield None if may_be_multiple(value.text, schema[name]) else False
            else:
                yield self._open() if kind else rule(self, schema, value)

    def _open_bounds(self, schema: dict[str, Any], text: str) -> Verdict:
        """Return False if no whole number within the bounds begins with this text."""
        self.touched = True
        low, high, above, below = self._limits(schema)
        above = above + 1 if isinstance(above, int) else above
        below = below - 1 if isinstance(below, int) else below
        least = max((n for n in (low, above) if n is not None), default=None)
        limit = min((n for n in (high, below) if n is not None), default=None)
        return None if may_be_within(text, least, limit) else False

    def _open(self) -> Verdict:
        self.touched = True
        return None

    # -- keywords of any value -------------------------------------------------------------------

    def _type(self, schema: dict[str, Any], value: Any) -> Verdict:
        names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        if isinstance(value, BegunScalar):
            if value.kind == "number" and "integer" in names and "number" not in names:
                return self._open()
            return value.kind in names
        value = value.value if isinstance(value, OpenContainer) else value
        return any(TYPES[name](value) for name in names if name in TYPES)

    def _enum(self, schema: dict[str, Any], value: Any, name: str = "enum") -> Verdict:
        options = schema["enum"] if name == "enum" else [schema["const"]]
        if isinstance(value, BegunScalar):
            options = [option for option in options if TYPES[value.kind](option)]
            if self._plain and value.text:
                options = [option for option in options if may_become(value.text, option)]
            return self._open() if options else False
        if isinstance(value, OpenContainer):
            self.touched = True
            return None if any(type(option) is type(value.value) for option in options) else False
        key = id(schema), name
        if key not in self._enums:
            self._enums[key] = frozenset(map(alike, options))
        return alike(value) in self._enums[key]

    def _one_of(self, schema: dict[str, Any], value: Any) -> Verdict:
        truths = [self.holds(subschema, value) for subschema in schema["oneOf"]]
        return is_within(truths.count(True), len(truths) - truths.count(False), 1, 1)

    def _if(self, schema: dict[str, Any], value: Any) -> Verdict:
        condition = self.holds(schema["if"], value)
        then, other = (self.holds(schema.get(name, True), value) for name in ("then", "else"))
        if condition is None:
            return then if then is other else None
        return then if condition else other

    # -- the children of a container -------------------------------------------------------------

    def _fold(
        self, schema: dict[str, Any], name: str, value: Any,
        add: Callable[[Any, Any, Any], Any], start: Any,
    ) -> Any:  # fmt: skip
        """Return a fact about all children; ``ChildFacts.fold`` keeps it for complete children."""
        if not isinstance(value, OpenContainer):
            return ChildFacts().fold(name, value, add, start)
        fact = value.child_facts.fold((name, id(schema)), value.value, add, start)
        return fact if value.open_child is None else add(fact, *value.open_child)

    def _all(
        self, schema: dict[str, Any], name: str, value: Any, holds: Callable[[Any, Any], Verdict]
    ) -> Verdict:
        """Return whether a condition holds for all children, future ones included."""

        def add(truth: Verdict, place: Any, child: Any) -> Verdict:
            return truth if truth is False else all_hold((truth, holds(place, child)))

        truth: Verdict = self._fold(schema, name, value, add, True)
        return None if truth and isinstance(value, OpenContainer) else truth

    # -- objects ---------------------------------------------------------------------------------

    def _properties(self, schema: dict[str, Any], value: Any) -> Verdict:
        """Judge the three keywords about the values of an object's members."""
        properties, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        rest = schema.get("additionalProperties", True)

        def holds(key: str, child: Any) -> Verdict:
            fitting = [s for p, s in patterns.items() if string_fits("pattern", p, key)]
            if key in properties:
                fitting.append(properties[key])
            return all_hold(self._child(subschema, child) for subschema in fitting or [rest])

        return self._all(schema, "properties", value, holds)

    def _names(self, schema: dict[str, Any], value: Any) -> Verdict:
        rule = schema["propertyNames"]
        return self._all(schema, "propertyNames", value, lambda key, _: self.holds(rule, key))

    def _child(self, schema: Schema, value: Any) -> Verdict:
        """Judge a child, which may be ``NOT_BEGUN``."""
        if isinstance(schema, bool):
            return schema
        return None if value is NOT_BEGUN else self.holds(schema, value)

    def _has(self, names: Any, value: Any) -> Verdict:
        """Return whether these keys are present; draft 3 has true or false instead of a list."""
        if not isinstance(names, list):
            return True
        keys = {key for key, _ in members(value)}
        missing = None if isinstance(value, OpenContainer) else False
        return all_hold(True if name in keys else missing for name in names)

    def _count_properties(self, schema: dict[str, Any], value: Any) -> Verdict:
        sure = len({key for key, _ in members(value)})
        possible = float("inf") if isinstance(value, OpenContainer) else sure
        return is_within(sure, possible, schema.get("minProperties"), schema.get("maxProperties"))

    def _dependencies(self, schema: dict[str, Any], value: Any, *, name: str) -> Verdict:
        def judge_dependencies() -> Iterable[Verdict]:
            for key, dependency in schema[name].items():
                if isinstance(dependency, str):
                    dependency = [dependency]  # noqa: PLW2901 - draft 3 has a single name
                has = self._has([key], value)
                if has is not False:
                    verdict = (
                        self._has(dependency, value)
                        if isinstance(dependency, list)
                        else self.holds(dependency, value)
                    )
                    yield verdict if has or verdict else None

        return _so_far(judge_dependencies(), value)

    # -- arrays ----------------------------------------------------------------------------------

    def _items(self, schema: dict[str, Any], value: Any) -> Verdict:
        """Judge the keywords about items by their index."""
        first, rest = schema.get("prefixItems", []), schema.get("items", True)
        if isinstance(rest, list):
            first, rest = rest, schema.get("additionalItems", True)

        def holds(i: int, item: Any) -> Verdict:
            return self._child(first[i] if i < len(first) else rest, item)

        return self._all(schema, "items", value, holds)

    def _count_items(self, schema: dict[str, Any], value: Any) -> Verdict:
        sure = len(entries(value))
        possible = float("inf") if isinstance(value, OpenContainer) else sure
        return is_within(sure, possible, schema.get("minItems"), schema.get("maxItems"))

    def _unique(self, schema: dict[str, Any], value: Any) -> Verdict:
        if schema["uniqueItems"] is not True:
            return True

        def add(seen: frozenset[Any] | None, _: int, item: Any) -> frozenset[Any] | None:
            """Return the items so far; None once two items are alike."""
            key = alike(item)
            return None if seen is None or key in seen else seen | {key}

        if not isinstance(value, OpenContainer):
            return len({*map(alike, value)}) == len(value)
        self.touched = True
        key = "uniqueItems", id(schema)
        seen = value.child_facts.fold(key, value.value, add, frozenset())
        return False if seen is None else None

    def _contains(self, schema: dict[str, Any], value: Any) -> Verdict:
        def add(counts: tuple[int, int], _: int, item: Any) -> tuple[int, int]:
            truth = self.holds(schema["contains"], item)
            return counts[0] + (truth is True), counts[1] + (truth is not False)

        sure, possible = self._fold(schema, "contains", value, add, (0, 0))
        limit = float("inf") if isinstance(value, OpenContainer) else possible
        return is_within(sure, limit, schema.get("minContains", 1), schema.get("maxContains"))

    # -- strings and numbers ---------------------------------------------------------------------

    def _bounds(self, schema: dict[str, Any], value: Any) -> Verdict:
        low, high, above, below = self._limits(schema)
        return (
            (low is None or value >= low)
            and (high is None or value <= high)
            and (above is None or value > above)
            and (below is None or value < below)
        )

    @staticmethod
    def _limits(schema: dict[str, Any]) -> tuple[Any, Any, Any, Any]:
        """Return (minimum, maximum, excluded minimum, excluded maximum); None: there is none."""
        low, high, above, below = (schema.get(name) for name in BOUNDS)
        above, below = low if above is True else above, high if below is True else below  # draft 4
        return low, high, None if above is False else above, None if below is False else below


def _so_far(truths: Iterable[Verdict], value: Any) -> Verdict:
    """Return whether all verdicts are true; None if an open value may still change that."""
    truth = all_hold(truths)
    return None if truth and isinstance(value, OpenContainer) else truth


_Keyword = Callable[[PartialValidator, dict[str, Any], Any], Verdict]
_V = PartialValidator
_ANY: Mapping[str, _Keyword] = {
    "type": _V._type,
    "enum": _V._enum,
    "const": lambda v, schema, value: v._enum(schema, value, "const"),
    "$ref": lambda v, schema, value: v.holds(v.target(schema), value),
    "if": _V._if,
    "not": lambda v, schema, value: negate(v.holds(schema["not"], value)),
    "allOf": lambda v, schema, value: all_hold(v.holds(s, value) for s in schema["allOf"]),
    "anyOf": lambda v, schema, value: any_holds(v.holds(s, value) for s in schema["anyOf"]),
    "oneOf": _V._one_of,
}
_OBJECT: Mapping[str, _Keyword] = {
    **dict.fromkeys(("properties", "patternProperties", "additionalProperties"), _V._properties),
    "required": lambda v, schema, value: v._has(schema["required"], value),
    **dict.fromkeys(("minProperties", "maxProperties"), _V._count_properties),
    "propertyNames": _V._names,
    **{n: partial(_V._dependencies, name=n) for n in DEPENDENCIES},
}
_ARRAY: Mapping[str, _Keyword] = {
    **dict.fromkeys(("items", "prefixItems"), _V._items),
    **dict.fromkeys(("minItems", "maxItems"), _V._count_items),
    "uniqueItems": _V._unique,
    "contains": _V._contains,
}
_STRING: Mapping[str, _Keyword] = {
    **dict.fromkeys(
        ("minLength", "maxLength"),
        lambda _, schema, value: is_within(
            len(value), len(value), schema.get("minLength"), schema.get("maxLength")
        ),
    ),
    "pattern": lambda _, schema, value: string_fits("pattern", schema["pattern"], value),
    "format": lambda _, schema, value: string_fits("format", schema["format"], value),
}
_NUMBER: Mapping[str, _Keyword] = {
    **dict.fromkeys(BOUNDS, _V._bounds),
    "multipleOf": lambda _, schema, value: is_multiple(value, schema["multipleOf"]),
}
