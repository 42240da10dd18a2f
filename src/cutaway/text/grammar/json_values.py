"""Facts about JSON values: their types, which are equal, whether a string fits a rule.

Verdict has three values: True and False hold whatever follows, None is not known yet. Patterns and
formats are decided by llguidance, in time linear in the string.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

from cutaway.errors import InputError

Verdict = bool | None


def is_number(value: Any) -> bool:
    """As JSON has it."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


TYPES: Mapping[str, Callable[[Any], bool]] = {
    "object": lambda v: isinstance(v, dict),
    "array": lambda v: isinstance(v, list),
    "string": lambda v: isinstance(v, str),
    "boolean": lambda v: isinstance(v, bool),
    "null": lambda v: v is None,
    "number": is_number,
    "integer": lambda v: is_number(v) and (isinstance(v, int) or v.is_integer()),
}


def alike(value: Any) -> Any:
    """What two values share if and only if they are equal as JSON: 1 is 1.0, and not true."""
    if isinstance(value, list):
        return ("array", *map(alike, value))
    if isinstance(value, dict):
        return ("object", frozenset((key, alike(child)) for key, child in value.items()))
    return (isinstance(value, bool), value)


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
    """Whether a string matches a pattern or a format, as llguidance reads them."""
    matcher = _string_matcher(keyword, rule).deep_copy()
    said = json.dumps(text, ensure_ascii=False).encode("utf-8", "replace")
    return bool(matcher.try_consume_tokens([*said]) == len(said) and matcher.is_accepting())


@lru_cache(256)
def _string_matcher(keyword: str, rule: str) -> Any:
    """Of the JSON texts of all strings that fit; InputError where llguidance cannot say."""
    import llguidance

    tokenizer = llguidance.LLTokenizer("byte")
    source = llguidance.LLMatcher.grammar_from_json_schema(
        json.dumps({"type": "string", keyword: rule}), overrides={"lenient": False}
    )
    if failed := llguidance.LLMatcher.validate_grammar(source, tokenizer):
        raise InputError(f"json_schema: {keyword} {rule!r}: {failed.splitlines()[-1]}")
    return llguidance.LLMatcher(tokenizer, source, log_level=0)


def check_string_rule(keyword: str, rule: Any) -> None:
    """InputError where a pattern or a format cannot be checked."""
    if not isinstance(rule, str):
        raise InputError(f"json_schema: {keyword} must be a text")
    _string_matcher(keyword, rule)
