"""Facts about JSON values: their types, their equality, whether a string fits a rule.

A Verdict has three values: True and False are final, whatever text follows; None is not known yet.
Numbers are exact decimals. llguidance judges patterns and most formats, in time linear in the
string; this module has its own rules for dates and times.
"""

import json
import re
from calendar import monthrange
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from cutaway.errors import InputError
from cutaway.text.grammar.patterns.look_around import patterns_of
from cutaway.text.grammar.patterns.sets import CONTROL, byte_tokenizer, make_quotable

if TYPE_CHECKING:
    from llguidance import LLMatcher


Verdict = bool | None


_LONGEST_EXPONENT = 17
"""Digits of the largest exponent that Decimal takes on all machines."""
_DIGITS_AT_ONCE = 1000


def number(text: str) -> Decimal:
    """Parse a JSON number as an exact decimal; a large exponent is not expanded into digits."""
    digits, _, exponent = text.lower().partition("e")
    if len(exponent.lstrip("+-0")) > _LONGEST_EXPONENT:
        exponent = exponent[0].replace("+", "") * (exponent[0] in "+-") + "9" * _LONGEST_EXPONENT
    return Decimal(f"{digits}e{exponent or 0}")


def exact(value: Any) -> Any:
    """Return a JSON value with each float as the decimal of its ``repr``."""
    if isinstance(value, dict):
        return {key: exact(child) for key, child in value.items()}
    if isinstance(value, list):
        return [exact(child) for child in value]
    return Decimal(repr(value)) if isinstance(value, float) else value


def parse_exact(text: str) -> Any:
    """Parse a JSON text, with numbers as exact decimals.

    ValueError if it is not JSON, or an object has a key twice.
    """
    return json.loads(text, parse_float=number, parse_int=number, object_pairs_hook=_object)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a key is there twice")
    return members


def is_exact(value: Any) -> bool:
    """Return whether llguidance reads all numbers in a value exactly.

    llguidance reads numbers as float64, and crashes on integers below -2^63.
    """
    if isinstance(value, (list, dict)):
        return all(map(is_exact, value.values() if isinstance(value, dict) else value))
    if not is_number(value):
        return True
    return value >= -(2**63) and (
        not isinstance(value, int) or Decimal(repr(float(value))) == value
    )


def is_maskable_step(value: Any) -> bool:
    """Return whether llguidance reads a ``multipleOf`` exactly, by whole numbers of 32 bits."""
    number = value if isinstance(value, Decimal) else Decimal(repr(value))
    digits, exponent = _split_scale(number)
    return int(digits) * 10 ** max(exponent, 0) < 1 << 32 and _as_read(float(value)) == number


def _as_read(value: float) -> Decimal:
    """Return a ``multipleOf`` as llguidance reads it: times 10 until it is a whole number."""
    places = 0
    while value != int(value):
        value, places = value * 10, places + 1
    return Decimal(int(value)).scaleb(-places)


def is_number(value: Any) -> bool:
    """Return whether a value is a number in JSON."""
    return isinstance(value, (int, float, Decimal)) and not isinstance(value, bool)


def may_become(text: str, value: Any) -> bool:
    """Return whether a text can be continued to a spelling of this number without an exponent."""
    whole = format(Decimal(value), "f")
    behind = "0*" if "." in whole else r"(\.0*)?"
    return (
        whole.startswith(text)
        or re.fullmatch(rf"{re.escape(whole)}{behind}", text) is not None
        or (not value and "-0".startswith(text))
    )


def may_be_within(text: str, least: Any, limit: Any) -> bool:
    """Return whether digits can be continued to a whole number that is within bounds.

    least, limit: the smallest and the largest number; None: any
    """
    digits = text.removeprefix("-")
    if not digits.isdigit():  # nothing but a sign, or a fraction
        return digits == "" or "." in digits
    if digits != text:
        least, limit = (None if n is None else -n for n in (limit, least))
    if limit is None:
        return least is None or least <= 0 or digits != "0"
    if len(digits) > max(Decimal(limit).adjusted(), 0) + 1:
        return False  # int() would refuse thousands of digits
    start, more = int(digits), 0
    while start * 10**more <= limit:
        end = (start + 1) * 10**more - 1
        if least is None or end >= least:
            return True
        if start == 0:
            return False
        more += 1
    return False


def is_whole(value: Any) -> bool:
    """Return whether a number is whole, as 1.0 is."""
    return isinstance(value, int) or _split_scale(value)[1] >= 0


def is_multiple(value: Any, of: Any) -> bool:
    """Return whether a number is an integer multiple of ``of``, which is not 0."""
    digits, exponent = _split_scale(value)
    of_digits, of_exponent = _split_scale(of)
    if digits == "0":
        return True
    if exponent < of_exponent:
        return False
    step = int(of_digits)
    shift: int = pow(10, exponent - of_exponent, step)
    return _remainder(digits, step) * shift % step == 0


def _remainder(digits: str, step: int) -> int:
    """Return the remainder of a number of any length, which int() would refuse."""
    rest = 0
    for i in range(0, len(digits), _DIGITS_AT_ONCE):
        part = digits[i : i + _DIGITS_AT_ONCE]
        rest = (rest * 10 ** len(part) + int(part)) % step
    return rest


def may_be_multiple(text: str, of: Any) -> bool:
    """Return whether a number without an exponent can be continued to a multiple of ``of``."""
    whole, point, decimals = text.removeprefix("-").partition(".")
    if not point:  # more digits may follow
        return True
    step, exponent = _split_scale(of)
    places = max(-exponent, 0)
    if decimals[places:].strip("0"):
        return False
    missing = max(places - len(decimals), 0)
    size = int(step) * 10 ** max(exponent, 0)
    below_multiple = -_remainder(whole + decimals[:places], size) * 10**missing % size
    return bool(below_multiple < 10**missing)


def _split_scale(value: Any) -> tuple[str, int]:
    """Return a number's digits without zeros at either end, and their exponent of ten."""
    _, digits, exponent = (value if isinstance(value, Decimal) else Decimal(repr(value))).as_tuple()
    text = "".join(map(str, digits)).lstrip("0")
    short = text.rstrip("0")
    assert isinstance(exponent, int)
    return (short, exponent + len(text) - len(short)) if short else ("0", 0)


TYPES: Mapping[str, Callable[[Any], bool]] = {
    "object": lambda v: isinstance(v, dict),
    "array": lambda v: isinstance(v, list),
    "string": lambda v: isinstance(v, str),
    "boolean": lambda v: isinstance(v, bool),
    "null": lambda v: v is None,
    "number": is_number,
    "integer": lambda v: is_number(v) and is_whole(v),
}


def alike(value: Any) -> Any:
    """Return a key that is the same for values equal as JSON: 1 equals 1.0, but not true."""
    if isinstance(value, list):
        return ("array", *map(alike, value))
    if isinstance(value, dict):
        return ("object", frozenset((key, alike(child)) for key, child in value.items()))
    return (isinstance(value, bool), value)


def as_written(text: str) -> str:
    """Escape a string as a grammar mask makes a model write it in JSON, without the quotes."""
    return json.dumps(text, ensure_ascii=False)[1:-1].replace("\x7f", r"\u007f")


def all_hold(truths: Iterable[Verdict]) -> Verdict:
    """Return True if all are True, False if any is False, else None."""
    result: Verdict = True
    for truth in truths:
        if truth is False:
            return False
        if truth is None:
            result = None
    return result


def negate(truth: Verdict) -> Verdict:
    """Return the opposite verdict."""
    return None if truth is None else not truth


def any_holds(truths: Iterable[Verdict]) -> Verdict:
    """Return whether any verdict is true."""
    return negate(all_hold(negate(truth) for truth in truths))


def is_within(sure: int, possible: float, minimum: Any, maximum: Any) -> Verdict:
    """Return whether a count that is from ``sure`` to ``possible`` is within bounds."""
    minimum, maximum = (
        minimum if minimum is not None else 0,
        maximum if maximum is not None else float("inf"),
    )
    if sure > maximum or possible < minimum:
        return False
    return True if sure >= minimum and possible <= maximum else None


@lru_cache(4096)
def string_fits(keyword: str, rule: str, text: str) -> bool:
    """Return whether a string has a format, or matches a pattern as llguidance reads it."""
    if keyword == "format" and rule in CALENDAR_FITS:
        return CALENDAR_FITS[rule](text)
    if keyword == "pattern":
        return any(all(_matches(part, text) for part in parts) for parts in patterns_of(rule))
    return _is_whole(_string_matcher(keyword, rule), text)


def _matches(pattern: str, text: str) -> bool:
    omitted = next((c for c in CONTROL if c not in text), "\0")
    return _is_whole(_string_matcher("pattern", make_quotable(pattern, omitted)), text)


def _is_whole(matcher: "LLMatcher", text: str) -> bool:
    matcher = matcher.deep_copy()
    data = f'"{as_written(text)}"'.encode("utf-8", "replace")
    return bool(matcher.try_consume_tokens([*data]) == len(data) and matcher.is_accepting())


@lru_cache(1024)
def _string_matcher(keyword: str, rule: str) -> "LLMatcher":
    """Return a matcher of the JSON of all strings that fit; InputError if llguidance has none."""
    from llguidance import LLMatcher

    source = LLMatcher.grammar_from_json_schema(
        json.dumps({"type": "string", keyword: rule}), overrides={"lenient": False}
    )
    matcher = LLMatcher(byte_tokenizer(), source, log_level=0)
    if matcher.is_error():
        raise InputError(
            "json_schema", f": {keyword} {rule!r}: {matcher.get_error().splitlines()[-1]}"
        )
    return matcher


def check_string_rule(keyword: str, rule: str) -> None:
    """Raise InputError for a pattern or a format that cannot be checked."""
    string_fits(keyword, rule, "")


# -- dates and times of RFC 3339 ---------------------------------------------------------------
# The patterns know the days of each month and the leap years. A leap second is at 23:59:60 in UTC;
# the patterns match it only in UTC.

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
CALENDAR_PATTERNS: Mapping[str, str] = {
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


CALENDAR_FITS: Mapping[str, Callable[[str], bool]] = {
    "date": _is_date,
    "time": _is_time,
    "date-time": _is_date_time,
}
"""Format -> a function that returns whether a text has it."""
