"""The fields of records: what each may hold, and what earlier versions called it.

A check returns the value as the record holds it, or raises ValueError, saying what it must be.
Refuses to know records.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from math import isfinite
from struct import pack, unpack
from typing import Any, get_type_hints

# -- checks ------------------------------------------------------------------------------------

Check = Callable[[Any], Any]

MOST = 2**64 - 1
"""The largest whole number in a trace: a seed."""


def fields(line: Any, checks: Mapping[str, Check]) -> dict[str, Any]:
    """The values of an object that must have exactly these fields."""
    if not isinstance(line, dict):
        raise ValueError("must be an object")
    for name in checks.keys() ^ line.keys():
        raise ValueError(f"{name} is missing" if name in checks else f"there is no field {name!r}")
    found = {}
    for name, check in checks.items():
        try:
            found[name] = check(line[name])
        except ValueError as error:
            raise ValueError(f"{name} {error}") from None
    return found


def integer(value: Any) -> int:
    """A whole number, 0 to ``MOST``; no bool."""
    if type(value) is not int or not 0 <= value <= MOST:
        raise ValueError("must be a whole number, 0 or more")
    return value


def number(value: Any) -> float:
    """A float64, finite."""
    if type(value) in (int, float):
        with suppress(OverflowError):  # an integer beyond float64
            if isfinite(value):
                return float(value)
    raise ValueError("must be a finite number")


def single(value: Any) -> float:
    """The nearest float32 to the number, finite."""
    try:
        (nearest,) = unpack("<f", pack("<f", number(value)))
    except OverflowError:
        raise ValueError("must be within float32") from None
    return float(nearest)


def boolean(value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def text(value: Any) -> str:
    """A string without lone surrogates."""
    if not isinstance(value, str):
        raise ValueError("must be a text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("must not hold a lone surrogate") from None
    return value


def hexadecimal(digits: int) -> Check:
    """A string of this many hexadecimal digits."""

    def check(value: Any) -> str:
        if not isinstance(value, str) or len(value) != digits or not set(value) <= _DIGITS:
            raise ValueError(f"must be {digits} hexadecimal digits")
        return value

    return check


def one_of(*choices: str) -> Check:
    """One of these words."""

    def check(value: Any) -> str:
        if value not in choices or not isinstance(value, str):
            raise ValueError(f"must be one of {', '.join(choices)}")
        return value

    return check


def optional(check: Check) -> Check:
    """null, or a value that passes the check."""
    return lambda value: None if value is None else check(value)


def items(check: Check) -> Check:
    """A list whose items pass the check, as a tuple."""

    def checked(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, (list, tuple)):
            raise ValueError("must be a list")
        return tuple(map(check, value))

    return checked


def table(check: Check) -> Check:
    """An object with any names, whose values pass the check."""

    def checked(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ValueError("must be an object")
        return {text(name): check(part) for name, part in value.items()}

    return checked


def anything(value: Any) -> Any:
    """Any JSON value."""
    return value


def of(kind: type, /, **special: Check) -> Mapping[str, Check]:
    """The checks of a class's fields: those given, and for other fields by their types."""
    types = get_type_hints(kind)
    return {name: special.get(name) or _BY_TYPE[types[name]] for name in types}


_DIGITS = frozenset("0123456789abcdef")


_BY_TYPE: Mapping[Any, Check] = {
    int: integer,
    float: number,
    str: text,
    bool: boolean,
    int | None: optional(integer),
    float | None: optional(number),
    str | None: optional(text),
    str | int | None: optional(
        lambda value: text(value) if isinstance(value, str) else integer(value)
    ),
    tuple[int, ...]: items(integer),
    Mapping[str, int]: table(integer),
    Mapping[str, float]: table(number),
}


# -- names in versions 1 to 3 of the format ----------------------------------------------------
# No other module knows the old names: a record is renamed when it is read, and when a cut trace is
# continued, its new lines have the names of its version. The page gets the same table as data, in
# its catalogue.

VERSION = 4
READABLE = (1, 2, 3, VERSION)

Json = dict[str, Any]
Table = Mapping[str, Mapping[str, str]]

RENAMES: Table = {
    "head": {"watch": "tracked_ids", "kv_bytes": "kv_bytes_per_token", "changes": "interventions"},
    "head.params": {"watch": "track"},
    "head.decoder": {"sight": "attention", "behind": "suffix_ids"},
    "head.decoder.rule": {"luck": "noise"},
    "head.decoder.rule.luck": {"held": "reuse"},
    "head.decoder.sight": {"past": "causal", "all": "bidirectional"},
    "step": {
        "own": "sampled_id", "wanted": "unconstrained_id", "passed": "pass_index",
        "sketch": "logit_histogram", "row": "logits_hash", "checks": "refused_by",
    },
    "step.stages": {"victims": "top_removed", "cut": "min_kept_logit"},
    "pass": {"visit": "redraw"},
    "pass.cells": {"row": "logits_hash"},
}  # fmt: skip
"""Path of kind and fields, by old names -> {old name or value: name or value now}."""


def to_current(record: Json, version: int) -> Json:
    """A record from a file of this version, with the current names."""
    return record if version == VERSION else _renamed(record, str(record.get("kind")), RENAMES)


def to_version(record: Json, version: int) -> Json:
    """The inverse, for a file of this version."""
    if version == VERSION:
        return record
    renamed: Json = _renamed(record, str(record["kind"]), _BACK)
    return renamed | ({"version": version} if "version" in renamed else {})


def _renamed(value: Any, where: str, table: Table) -> Any:
    if where not in table:
        return value
    if isinstance(value, (list, tuple)):
        return [_renamed(one, where, table) for one in value]
    if not isinstance(value, Mapping):
        return table[where].get(value, value) if isinstance(value, str) else value
    return {
        table[where].get(name, name): _renamed(one, f"{where}.{name}", table)
        for name, one in value.items()
    }


def _place_now(where: str) -> str:
    parent, _, name = where.rpartition(".")
    return f"{parent}.{RENAMES[parent].get(name, name)}" if parent else where


_BACK: Table = {
    _place_now(where): {new: old for old, new in names.items()} for where, names in RENAMES.items()
}
