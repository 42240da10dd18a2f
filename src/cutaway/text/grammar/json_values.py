"""Facts about JSON values: their types, which are equal, whether a string fits a rule.

Verdict has three values: True and False hold whatever follows, None is not known yet. Numbers are
the decimals that are written. Patterns and most formats are decided by llguidance, in time linear
in the string.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any

from cutaway.errors import InputError
from cutaway.text.grammar import calendar_formats
from cutaway.text.grammar.patterns import CONTROL, byte_tokenizer, masked

Verdict = bool | None


_LONGEST_EXPONENT = 17
"""Digits of the largest exponent that Decimal takes on all machines."""
_DIGITS_AT_ONCE = 1000


def number(text: str) -> Decimal:
    """A number of JSON by its digits, of which no exponent makes more."""
    digits, _, exponent = text.lower().partition("e")
    if len(exponent.lstrip("+-0")) > _LONGEST_EXPONENT:
        exponent = exponent[0].replace("+", "") * (exponent[0] in "+-") + "9" * _LONGEST_EXPONENT
    return Decimal(f"{digits}e{exponent or 0}")


def exact(value: Any) -> Any:
    """JSON in which each number is the decimal that Python writes it as."""
    if isinstance(value, dict):
        return {key: exact(one) for key, one in value.items()}
    if isinstance(value, list):
        return [exact(one) for one in value]
    return Decimal(repr(value)) if isinstance(value, float) else value


def parsed(text: str) -> Any:
    """The value of a JSON text, its numbers by their digits.

    ValueError where it is none, or has a key twice in one object.
    """
    return json.loads(text, parse_float=number, parse_int=number, object_pairs_hook=_object)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a key is there twice")
    return made


def is_exact(value: Any) -> bool:
    """Whether llguidance reads all numbers of a value as what they are.

    It reads float64, and dies of integers below those of 64 bits.
    """
    if isinstance(value, (list, dict)):
        return all(map(is_exact, value.values() if isinstance(value, dict) else value))
    if not is_number(value):
        return True
    return value >= -(2**63) and (
        not isinstance(value, int) or Decimal(repr(float(value))) == value
    )


def is_number(value: Any) -> bool:
    """As JSON has it."""
    return isinstance(value, (int, float, Decimal)) and not isinstance(value, bool)


def may_become(text: str, value: Any) -> bool:
    """Whether what begins like this can be a number's digits, which are followed by no exponent."""
    whole = format(Decimal(value), "f")
    behind = "0*" if "." in whole else r"(\.0*)?"
    return (
        whole.startswith(text)
        or re.fullmatch(rf"{re.escape(whole)}{behind}", text) is not None
        or (not value and "-0".startswith(text))
    )


def is_whole(value: Any) -> bool:
    """Whether a number has nothing behind its point, as 1.0 has not."""
    return isinstance(value, int) or _scaled(value)[1] >= 0


def is_multiple(value: Any, of: Any) -> bool:
    """Whether a number is a whole multiple of another, which is not 0."""
    digits, exponent = _scaled(value)
    of_digits, of_exponent = _scaled(of)
    if digits == "0":
        return True
    if exponent < of_exponent:
        return False
    rest, step = 0, int(of_digits)
    for i in range(0, len(digits), _DIGITS_AT_ONCE):
        part = digits[i : i + _DIGITS_AT_ONCE]
        rest = (rest * 10 ** len(part) + int(part)) % step
    shift: int = pow(10, exponent - of_exponent, step)
    return rest * shift % step == 0


def _scaled(value: Any) -> tuple[str, int]:
    """The digits of a number, without zeros at their ends, and the power of ten behind them."""
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
    """What two values share if and only if they are equal as JSON: 1 is 1.0, and not true."""
    if isinstance(value, list):
        return ("array", *map(alike, value))
    if isinstance(value, dict):
        return ("object", frozenset((key, alike(child)) for key, child in value.items()))
    return (isinstance(value, bool), value)


def as_written(text: str) -> str:
    """A string as masks have it written, without its quotes."""
    return json.dumps(text, ensure_ascii=False)[1:-1].replace("\x7f", r"\u007f")


def every(truths: Iterable[Verdict]) -> Verdict:
    """Whether all hold."""
    result: Verdict = True
    for truth in truths:
        if truth is False:
            return False
        if truth is None:
            result = None
    return result


def negated(truth: Verdict) -> Verdict:
    """Whether it does not hold."""
    return None if truth is None else not truth


def some(truths: Iterable[Verdict]) -> Verdict:
    """Whether any holds."""
    return negated(every(negated(truth) for truth in truths))


def between(sure: int, possible: float, least: Any, most: Any) -> Verdict:
    """Whether a count is within its bounds, where it is at least ``sure`` and may grow."""
    least, most = least if least is not None else 0, most if most is not None else float("inf")
    if sure > most or possible < least:
        return False
    return True if sure >= least and possible <= most else None


@lru_cache(4096)
def string_fits(keyword: str, rule: str, text: str) -> bool:
    """Whether a string matches a pattern, as llguidance reads it, or has a format."""
    if keyword == "format" and rule in calendar_formats.FITS:
        return calendar_formats.FITS[rule](text)
    if keyword == "pattern":  # with all characters but one, which is not in the text
        rule = masked(rule, next((c for c in CONTROL if c not in text), "\0"))
    matcher = _string_matcher(keyword, rule).deep_copy()
    data = f'"{as_written(text)}"'.encode("utf-8", "replace")
    return bool(matcher.try_consume_tokens([*data]) == len(data) and matcher.is_accepting())


@lru_cache(1024)
def _string_matcher(keyword: str, rule: str) -> Any:
    """Of the JSON texts of all strings that fit; InputError where llguidance cannot say."""
    import llguidance

    source = llguidance.LLMatcher.grammar_from_json_schema(
        json.dumps({"type": "string", keyword: rule}), overrides={"lenient": False}
    )
    made = llguidance.LLMatcher(byte_tokenizer(), source, log_level=0)
    if made.is_error():
        raise InputError(f"json_schema: {keyword} {rule!r}: {made.get_error().splitlines()[-1]}")
    return made


def check_string_rule(keyword: str, rule: str) -> None:
    """InputError where a pattern or a format cannot be checked."""
    string_fits(keyword, rule, "")
