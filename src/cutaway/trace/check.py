"""The fields of records: checks of their values, and their names in earlier versions.

A check returns the value for the record, or raises a ValueError whose text names the valid values.
Does not know records.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from math import isfinite
from struct import pack, unpack
from typing import Any, get_type_hints

# -- checks ------------------------------------------------------------------------------------

Check = Callable[[Any], Any]

LARGEST = 2**64 - 1
"""The largest integer in a trace, which is a seed's limit."""


def fields(line: Any, checks: Mapping[str, Check]) -> dict[str, Any]:
    """Return the values of an object that must have exactly these fields."""
    if not isinstance(line, dict):
        raise ValueError("must be an object")
    for name in checks.keys() ^ line.keys():
        raise ValueError(f"{name} is missing" if name in checks else f"there is no field {name!r}")
    values = {}
    for name, check in checks.items():
        try:
            values[name] = check(line[name])
        except ValueError as error:
            raise ValueError(f"{name} {error}") from None
    return values


def integer(value: Any) -> int:
    """Check an integer from 0 to ``LARGEST``; a bool is refused."""
    if type(value) is not int or not 0 <= value <= LARGEST:
        raise ValueError("must be a whole number, 0 or more")
    return value


def number(value: Any) -> float:
    """Check a finite float64."""
    if type(value) in (int, float):
        with suppress(OverflowError):  # an integer beyond float64
            if isfinite(value):
                return float(value)
    raise ValueError("must be a finite number")


def single(value: Any) -> float:
    """Return the nearest float32; ValueError if the number is beyond float32."""
    try:
        (nearest,) = unpack("<f", pack("<f", number(value)))
    except OverflowError:
        raise ValueError("must be within float32") from None
    return float(nearest)


def boolean(value: Any) -> bool:
    """Check for true or false."""
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def text(value: Any) -> str:
    """Check a string without lone surrogates."""
    if not isinstance(value, str):
        raise ValueError("must be a text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("must not hold a lone surrogate") from None
    return value


def hexadecimal(digits: int) -> Check:
    """Return a check of a string of exactly ``digits`` hexadecimal digits."""

    def check(value: Any) -> str:
        if not isinstance(value, str) or len(value) != digits or not set(value) <= _DIGITS:
            raise ValueError(f"must be {digits} hexadecimal digits")
        return value

    return check


def one_of(*choices: str) -> Check:
    """Return a check that a value is one of these words."""

    def check(value: Any) -> str:
        if value not in choices or not isinstance(value, str):
            raise ValueError(f"must be one of {', '.join(choices)}")
        return value

    return check


def optional(check: Check) -> Check:
    """Return a check that accepts null, and values that pass ``check``."""
    return lambda value: None if value is None else check(value)


def items(check: Check) -> Check:
    """Return a check of a list whose items pass ``check``; it returns a tuple."""

    def check_items(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, (list, tuple)):
            raise ValueError("must be a list")
        return tuple(map(check, value))

    return check_items


def table(check: Check) -> Check:
    """Return a check of an object with any names, whose values pass ``check``."""

    def check_table(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ValueError("must be an object")
        return {text(name): check(part) for name, part in value.items()}

    return check_table


def anything(value: Any) -> Any:
    """Accept any JSON value."""
    return value


def checks_of(kind: type, /, **special: Check) -> Mapping[str, Check]:
    """Return a check for each field of a class: from ``special``, or else by the field's type."""
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
# Only this module knows the old names. Reading renames a record's fields. A cut trace that is
# continued gets new lines with the names of its version. The page has the same table in its
# catalogue.

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
"""The path of a kind's fields, in old names -> {an old name or value: the current one}."""


def to_current(record: Json, version: int) -> Json:
    """Rename a record of a file of this version to the current names."""
    return record if version == VERSION else _rename(record, str(record.get("kind")), RENAMES)


def to_version(record: Json, version: int) -> Json:
    """Rename a current record to the names of this version."""
    if version == VERSION:
        return record
    renamed: Json = _rename(record, str(record["kind"]), _BACK)
    return renamed | ({"version": version} if "version" in renamed else {})


def _rename(value: Any, path: str, table: Table) -> Any:
    if path not in table:
        return value
    if isinstance(value, (list, tuple)):
        return [_rename(part, path, table) for part in value]
    if not isinstance(value, Mapping):
        return table[path].get(value, value) if isinstance(value, str) else value
    return {
        table[path].get(name, name): _rename(part, f"{path}.{name}", table)
        for name, part in value.items()
    }


def _place_now(path: str) -> str:
    parent, _, name = path.rpartition(".")
    return f"{parent}.{RENAMES[parent].get(name, name)}" if parent else path


_BACK: Table = {
    _place_now(path): {new: old for old, new in names.items()} for path, names in RENAMES.items()
}
