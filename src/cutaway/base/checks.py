"""Checks of arguments, for several parts of the package: numbers, choices, token ids, names."""

from collections.abc import Iterable, Mapping
from math import isfinite
from numbers import Integral, Real
from operator import index
from pathlib import Path
from typing import Any

from cutaway.errors import InputError


def shown(value: Any) -> str:
    """Return a value as an error quotes it: on one line, and cut if it is long."""
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # Python prints no integer of that many digits
        return "a number of thousands of digits"
    return text if len(text) <= 80 else f"{text[:79]}…"


def check_int(name: str, value: Any, low: int, high: int | None = None) -> int:
    """Return a Python or NumPy integer as an int; InputError unless it is in [low, high]."""
    span = f"{low} or more" if high is None else f"between {low} and {high}"
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InputError(name, f" must be a whole number, {span}, not {shown(value)}")
    plain = index(value)
    if plain < low or (high is not None and plain > high):
        raise InputError(name, f" must be {span}, not {shown(plain)}")
    return plain


def check_finite(name: str, value: Any) -> float:
    """Return a Python or NumPy number as a float; InputError unless it is finite."""
    try:
        if isinstance(value, Real) and not isinstance(value, bool) and isfinite(value):
            return float(value)
    except OverflowError:  # an integer beyond float
        pass
    raise InputError(name, f" must be a finite number, not {shown(value)}")


def check_number(name: str, value: Any, low: float, high: float) -> float:
    """Return a number as a float; InputError unless it is in [low, high]."""
    number = check_finite(name, value)
    if not low <= number <= high:
        raise InputError(name, f" must be between {low:g} and {high:g}, not {number:g}")
    return number


def check_bool(name: str, value: Any) -> bool:
    """Return value; InputError unless it is True or False."""
    if not isinstance(value, bool):
        raise InputError(name, f" must be true or false, not {shown(value)}")
    return value


def check_choice(name: str, value: Any, choices: Iterable[str]) -> str:
    """Return value; InputError unless it is one of the choices."""
    if isinstance(value, str) and value in choices:
        return value
    raise InputError(name, f" must be one of {', '.join(choices)}, not {shown(value)}")


def check_ids(name: str, ids: Iterable[Any]) -> tuple[int, ...]:
    """Return Python or NumPy token ids as ints; InputError unless all are whole numbers."""
    try:
        if isinstance(ids, (str, bytes, bytearray, memoryview)):  # the last three are of numbers
            raise TypeError
        token_ids = tuple(ids)
        if any(isinstance(token_id, bool) for token_id in token_ids):
            raise TypeError
        return tuple(map(index, token_ids))
    except TypeError:
        raise InputError(name, " must be token ids, and those are whole numbers") from None


def existing(text: str) -> Path | None:
    """Return the file or folder with this name; None if it does not exist or cannot exist."""
    try:
        path = Path(text).expanduser()
        return path if path.exists() else None
    except (OSError, RuntimeError, ValueError):  # too long, unknown user, with a null byte
        return None


# -- earlier names, which still work: docs/interventions.md lists them -----------------------------

KEYWORDS = {"changes": "interventions", "allow_changes": "allow_interventions"}
RULE = {"luck": "noise"}
"""Settings of a canvas's rule: earlier name -> name."""


def current_names(
    keywords: Mapping[str, Any], earlier_names: Mapping[str, str] = KEYWORDS
) -> dict[str, Any]:
    """Return keywords with their current names; InputError if one is given by both names."""
    for earlier, name in earlier_names.items():
        if earlier in keywords and name in keywords:
            raise InputError(earlier, f" is the earlier name of {name}: give {name} alone")
    return {earlier_names.get(name, name): value for name, value in keywords.items()}
