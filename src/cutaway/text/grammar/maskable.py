"""A schema in words that llguidance 1.9.1 masks as JSON Schema says: formats, patterns, numbers.

It reads numbers as float64, takes an excluded whole bound where the other bound is less than 1
away, and knows no calendar. What is put in place of such words allows at most as much.
"""

from collections.abc import Iterator, Mapping
from decimal import Decimal
from math import inf, nextafter, ulp
from typing import Any

from cutaway.base.checks import shown
from cutaway.errors import InputError
from cutaway.text.grammar import calendar_formats, patterns
from cutaway.text.grammar.json_values import is_exact, is_number
from cutaway.text.grammar.subschemas import mapped

_LEAST = 1e-20
"""In place of a bound that excludes 0."""
_ULPS = 8
"""By how many steps of float64 an excluded bound moves: llguidance reads fractions to within 1."""
_WHOLE = 2**53
"""From here on float64 does not hold all integers."""
_INT64 = 2**63
_BELOW_INT64 = int(nextafter(_INT64, 0))
_MOST_MULTIPLE = 2**32 - 1
_BOUNDS = (("minimum", "exclusiveMinimum", inf), ("maximum", "exclusiveMaximum", -inf))
"""Of each side the included and the excluded bound, and where the numbers within it lie."""


def maskable(schema: Any) -> Any:
    """The schema as llguidance masks it rightly; InputError for a number that it cannot read."""
    return _changed(schema, _near_bounds(schema))


def _changed(schema: Any, near: frozenset[float]) -> Any:
    if not isinstance(schema, dict):
        return schema
    for name in ("const", "enum", "multipleOf"):
        _check_number(name, schema)
    made = mapped(schema, lambda one: _changed(one, near))
    if "pattern" in made:
        made["pattern"] = patterns.masked(made["pattern"])
    if "patternProperties" in made:
        made["patternProperties"] = _by_pattern(made["patternProperties"])
    if pattern := calendar_formats.PATTERNS.get(made.get("format", "")):
        del made["format"]
        made["allOf"] = [*made.get("allOf", ()), {"pattern": f"^(?:{pattern})$"}]
    for included, excluded, inside in _BOUNDS:
        _change_bounds(made, included, excluded, inside, near)
    return made


def _check_number(name: str, schema: Mapping[str, Any]) -> None:
    value = schema.get(name)
    if name == "multipleOf":
        if value is not None and not _has_few_digits(value):
            raise InputError(
                f"json_schema: multipleOf is {shown(value)}; of its digits, without the point, "
                f"only a number up to {_MOST_MULTIPLE} can be masked"
            )
        if value is not None and _as_read(float(value)) != Decimal(repr(value)):
            raise InputError(
                f"json_schema: multipleOf is {shown(value)}, which cannot be masked, since float64 "
                "does not come to its digits by tens: ask for integers of a smaller unit"
            )
    elif not is_exact(value):
        raise InputError(
            f"json_schema: {name} is {shown(value)}, a number that masks do not know, which must "
            "be checked token by token; that is only possible without tools and thinking"
        )


def _has_few_digits(value: Any) -> bool:
    _, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)
    most: int = 10 ** max(exponent, 0) * int("".join(map(str, digits)))
    return most <= _MOST_MULTIPLE


def _as_read(value: float) -> Decimal:
    """What llguidance makes of a multiple: it multiplies by 10 up to a whole number."""
    places = 0
    while value != int(value):
        value, places = value * 10, places + 1
    return Decimal(int(value)).scaleb(-places)


def _by_pattern(schemas: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for pattern, one in schemas.items():
        name = patterns.masked(pattern)
        made[name] = {"allOf": [made[name], one]} if name in made else one
    return made


def _change_bounds(
    schema: dict[str, Any], included: str, excluded: str, inside: float, near: frozenset[float]
) -> None:
    """Bounds on one side, as float64 that lie no further out."""
    if schema.get(excluded) is True and is_number(schema.get(included)):  # as draft 4 has it
        schema[excluded] = schema.pop(included)
    bound: Any = schema.get(excluded)
    sign = 1 if inside > 0 else -1
    if is_number(bound) and (abs(bound) >= _WHOLE or (bound in near and bound * sign >= 0)):
        step: Any = _ULPS * ulp(bound) if bound else _LEAST
        moved = int(bound) + sign if abs(bound) >= _WHOLE else bound + sign * step
        others = [schema[included]] if is_number(schema.get(included)) else []
        del schema[excluded]
        schema[included] = sign * max(sign * one for one in (moved, *others))
    if is_number(schema.get(included)):
        if schema[included] * sign >= _INT64:
            raise InputError(
                f"json_schema: {included} is {shown(schema[included])}; numbers beyond 2^63 cannot "
                "be masked, which it asks for"
            )
        schema[included] = _inward(schema[included], inside, _is_of_integers(schema))


def _is_of_integers(schema: Mapping[str, Any]) -> bool:
    named = schema.get("type")
    return named == "integer" or (isinstance(named, list) and "number" not in named)


def _inward(bound: Any, inside: float, of_integers: bool) -> Any:
    """A bound as float64: the nearest on the inner side, where it is between two."""
    rounded = float(bound)
    is_outer = Decimal(repr(rounded)) < bound if inside > 0 else Decimal(repr(rounded)) > bound
    if inside > 0 and rounded <= -_INT64:
        return -_BELOW_INT64
    if inside < 0 and rounded >= _INT64:  # a bound of integers is read as 2^63 - 1
        return bound if of_integers and bound >= _INT64 - 1 else _BELOW_INT64
    return int(nextafter(rounded, inside)) if isinstance(bound, int) and is_outer else bound


def _near_bounds(schema: Any) -> frozenset[float]:
    """Excluded whole bounds with a bound of the other side less than 1 away, towards or from 0."""
    low = {*_bounds_in(schema, "minimum", "exclusiveMinimum")}
    high = {*_bounds_in(schema, "maximum", "exclusiveMaximum")}
    near = [b for b in low if b >= 0 and any(b < other < b + 1 for other in high)]
    near += [b for b in high if b <= 0 and any(b - 1 < other < b for other in low)]
    return frozenset(b for b in near if b == int(b))


def _bounds_in(value: Any, *names: str) -> Iterator[Any]:
    """Bounds of these names, wherever a ``$ref`` may lead."""
    if isinstance(value, dict):
        yield from (value[name] for name in names if is_number(value.get(name)))
    if isinstance(value, (dict, list)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _bounds_in(one, *names)
