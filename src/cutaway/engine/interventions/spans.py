"""Positions as people write them: "3-7, 9", a number, or several numbers; stored as spans."""

import re
from collections.abc import Iterable
from typing import Any

from cutaway.base.checks import check_int, shown
from cutaway.errors import InputError

Spans = tuple[tuple[int, int], ...]
"""(first, last) of each run of neighbours, in order; between two runs there is a gap."""
LAST = 2**31 - 1
"""The largest position."""

_PART = re.compile(r"\s*([0-9]{1,10})\s*(?:-\s*([0-9]{1,10})\s*)?", re.ASCII)


def check_spans(name: str, given: Any) -> Spans:
    """Spans of "3-7, 9", of a number or of several; InputError where there is no position."""
    if isinstance(given, str):
        return _joined(_part(name, given, part) for part in given.split(","))
    numbers = given if isinstance(given, Iterable) else [given]
    found = _joined(_pair(name, each) for each in numbers)
    if not found:
        raise InputError(f"{name}: name at least one, such as 3-7")
    return found


def spans_text(spans: Spans) -> str:
    """As ``check_spans`` reads it."""
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def from_position(spans: Spans, start: int) -> Spans:
    """The part of them at a position and after it."""
    return tuple((max(first, start), last) for first, last in spans if last >= start)


def _pair(name: str, given: Any) -> tuple[int, int]:
    """A number, or a span as it is kept."""
    ends = given if isinstance(given, tuple) and len(given) == 2 else (given, given)
    first, last = (check_int(name, end, 0, LAST) for end in ends)
    if last < first:
        raise InputError(f"{name}: {first}-{last} ends before it begins")
    return first, last


def _part(name: str, whole: str, part: str) -> tuple[int, int]:
    found = _PART.fullmatch(part)
    if found is None:
        raise InputError(f"{name} are numbers and spans such as 3-7,9, not {shown(whole)}")
    first = int(found[1])
    return _pair(name, (first, int(found[2] or first)))


def _joined(spans: Iterable[tuple[int, int]]) -> Spans:
    found: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return tuple(found)
