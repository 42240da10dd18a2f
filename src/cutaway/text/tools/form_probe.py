"""The form of arguments that are no JSON object, found by letting a template write some.

Knows how to cut what was written at keys and values that occur nowhere else.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from cutaway.text.tools.argument_form import ParameterList
from cutaway.text.tools.dialect import same

KEY = "cutaway_key_a"
_SECOND = "cutaway_key_b"
_VALUE, _OTHER = "cutaway probe value", "cutaway probe other"
_NUMBER = 48151623

Write = Callable[[Mapping[str, Any]], str]  # arguments -> the text of a call with them


def find(write: Write) -> ParameterList | None:
    """How ``write`` writes arguments; None where they are no list of parameters."""
    empty, one = write({}), write({KEY: _VALUE})
    two, number = write({KEY: _VALUE, _SECOND: _OTHER}), write({KEY: _NUMBER})
    if not (
        _in_order(one, KEY, _VALUE)
        and _in_order(two, KEY, _VALUE, _SECOND, _OTHER)
        and _in_order(number, KEY, str(_NUMBER))
    ):
        return None
    opening, text_opening, behind = _cut(one, KEY, _VALUE)
    _, other_opening, other_behind = _cut(number, KEY, str(_NUMBER))
    size = same(opening, empty)
    head, tail = empty[:size], empty[size:]
    if not tail or not (behind.endswith(tail) and other_behind.endswith(tail)):
        return None
    closing, other_closing = behind.removesuffix(tail), other_behind.removesuffix(tail)
    before = opening.removeprefix(head)
    gap = two[two.index(_VALUE) + len(_VALUE) : two.index(_SECOND)]
    if not (gap.startswith(closing) and gap.endswith(before) and text_opening and other_opening):
        return None
    between = gap.removeprefix(closing).removesuffix(before)
    text, other = (text_opening, closing), (other_opening, other_closing)
    if text_opening[0] != other_opening[0] or not (closing or between):
        return None
    made = ParameterList(before, text, other, between)
    own = replace(made, nested=True)
    deep = {KEY: {_SECOND: [_VALUE]}}
    return own if own.write(deep) in write(deep) else made


def _in_order(text: str, *pieces: str) -> bool:
    """Whether the text has each of the pieces once, in this order."""
    places = [text.find(piece) for piece in pieces]
    return all(map((1).__eq__, map(text.count, pieces))) and places == sorted(places)


def _cut(text: str, key: str, value: str) -> tuple[str, str, str]:
    """What is before the key, between it and its value, and behind that."""
    before, rest = text.split(key, 1)
    middle, behind = rest.split(value, 1)
    return before, middle, behind
