"""Dates and times of RFC 3339: patterns of them, and which texts they are.

A pattern knows the days of each month and which years are leap years. Of the leap seconds, which
are at 23:59:60 in UTC, it has those that are written in UTC.
"""

import re
from calendar import monthrange
from collections.abc import Callable, Mapping

_LEAP_YEAR = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_YEAR = r"(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_MONTH_AND_DAY = (
    r"(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_DATE = rf"(?:{_YEAR}-{_MONTH_AND_DAY}|{_LEAP_YEAR}-02-29)"
_TIME = (
    r"(?:(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?"
    r"(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
    r"|23:59:60(?:\.[0-9]+)?(?:[zZ]|[+-]00:00))"
)
PATTERNS: Mapping[str, str] = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}[tT]{_TIME}",
}
"""Format -> a regular expression of the whole text."""

_DATE_PARTS = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_TIME_PARTS = re.compile(
    r"([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.[0-9]+)?(?:[zZ]|([+-])([0-9]{2}):([0-9]{2}))"
)


def _is_date(text: str) -> bool:
    if not (parts := _DATE_PARTS.fullmatch(text)):
        return False
    year, month, day = map(int, parts.groups())
    return year > 0 and 1 <= month <= 12 and 1 <= day <= monthrange(year, month)[1]


def _is_time(text: str) -> bool:
    if not (parts := _TIME_PARTS.fullmatch(text)):
        return False
    hour, minute, second, off_hour, off_minute = (int(parts[i] or 0) for i in (1, 2, 3, 5, 6))
    if max(hour, off_hour) > 23 or max(minute, off_minute) > 59 or second > 60:
        return False
    offset = (60 * off_hour + off_minute) * (-1 if parts[4] == "-" else 1)
    return second < 60 or (60 * hour + minute - offset) % 1440 == 1439


def _is_date_time(text: str) -> bool:
    return text[10:11] in ("t", "T") and _is_date(text[:10]) and _is_time(text[11:])


FITS: Mapping[str, Callable[[str], bool]] = {
    "date": _is_date,
    "time": _is_time,
    "date-time": _is_date_time,
}
"""Format -> whether a text has it."""
