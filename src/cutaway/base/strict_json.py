"""Read JSON as RFC 8259 defines it, without what only Python's reader accepts."""

import json
import re
from collections import Counter
from itertools import chain
from math import isinf
from typing import Any, NoReturn

from cutaway.errors import InputError

MAX_DEPTH = 64
MAX_VALUES, MAX_NESTS = 1 << 18, 1 << 15
"""The most values, and the most lists and objects: validating one takes microseconds."""

# Matches up to an escape that is half of a surrogate pair. Never backtracks, so that it is linear.
_WHOLE_PAIRS = re.compile(
    r"(?:[^\\]++|\\(?:[^u]|u(?![dD][89a-fA-F])|u[dD][89abAB]..\\u[dD][c-fC-F]..))*+", re.DOTALL
)

_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"', re.DOTALL)


def parse(data: bytes, name: str = "the body", max_values: int | None = MAX_VALUES) -> Any:
    """Parse ``data``; ``name`` is its name in errors.

    max_values: how many values it may have; None: any number, also of lists and objects

    InputError if it is empty, not UTF-8 or begins with a byte order mark, is not JSON, names a key
    twice, has a number beyond float64 or half a surrogate pair, is nested deeper than 64 levels,
    or has more than ``max_values`` values or 32,768 lists and objects.
    """
    text = _text(data, name)
    if max_values is not None:
        _check_nests(text, name)
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        reason = f"{error.msg[0].lower()}{error.msg[1:]}".removesuffix(" at")
        place = _place(text, error.pos)
        raise InputError(name, f" is not JSON: {reason} at {place}") from None
    except RecursionError:
        raise _too_deep(name) from None
    _check_size(value, name, max_values)
    _check_pairs(text)
    return value


def _text(data: bytes, name: str) -> str:
    if not data.strip():
        raise InputError(name, " is empty; give a JSON value")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        place = _place(data[: error.start].decode(), error.start)
        raise InputError(name, f" is not UTF-8 at {place}") from None
    if text.startswith("\ufeff"):
        raise InputError(name, " begins with a byte order mark; leave it out")
    return text


def _place(text: str, position: int) -> str:
    before = text[:position]
    line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
    return f"line {line}, column {column}" if line > 1 else f"column {column}"


def _check_nests(text: str, name: str) -> None:
    """Count lists and objects before any is made: a million would block other threads for long."""
    if text.count("[") + text.count("{") <= MAX_NESTS:
        return
    count, end = 0, 0
    for start, after in chain(map(re.Match.span, _STRING.finditer(text)), [(len(text), 0)]):
        count += text.count("[", end, start) + text.count("{", end, start)
        end = after
        if count > MAX_NESTS:
            raise InputError(name, f" holds more than {MAX_NESTS} lists and objects; give fewer")


def _check_size(value: Any, name: str, max_values: int | None) -> None:
    level, count = [value], 1
    for _ in range(MAX_DEPTH):
        count += sum(len(parent) for parent in level if isinstance(parent, dict | list))
        if max_values is not None and count > max_values:
            raise InputError(name, f" holds more than {max_values} values; give fewer")
        if not (level := [v for parent in level for v in _children(parent)]):
            return
    raise _too_deep(name)


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [v for v in value.values() if isinstance(v, dict | list)]
    return [v for v in value if isinstance(v, dict | list)] if isinstance(value, list) else []


def _check_pairs(text: str) -> None:
    match = _WHOLE_PAIRS.match(text)
    if match and match.end() < len(text):
        escape = text[match.end() : match.end() + 6]
        place = _place(text, match.end())
        raise InputError(f"{escape} at {place} is half of a surrogate pair; give whole characters")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) == len(pairs):
        return members
    twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
    raise InputError(f"the key {twice[:80]!r} is given twice in one object; give it once")


def _float(text: str) -> float:
    number = float(text)
    if isinf(number):
        raise InputError(f"the number {_clip(text)} is too large; its size must be below 1.8e308")
    return number


def _int(text: str) -> int:
    if len(text) > 300:
        _float(text)  # so it has at most 309 digits, which Python accepts
    return int(text)


def _constant(text: str) -> NoReturn:
    raise InputError(f"{text} is not JSON; give a finite number")


def _clip(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:20]}… ({len(text)} characters)"


def _too_deep(name: str) -> InputError:
    return InputError(name, f" is nested deeper than {MAX_DEPTH} levels; make it flatter")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_float=_float, parse_int=_int, parse_constant=_constant
)
