"""What a caller gives as changes, and a change as a line of text.

"L25.H2 x 0", "L9.mlp x 0.5 at 3-7 from 2", "blind 3-7".
"""

import re
from collections.abc import Iterable
from typing import Any

from cutaway.base.checks import shown
from cutaway.engine.changes.change import Change, blind, scale
from cutaway.errors import InputError

MOST = 1024
"""Changes of one request."""
MOST_BYTES = 8 << 20
"""Of the vectors of one request, which a line of its trace holds."""


_SCALE = re.compile(
    r"\s*(?P<where>\S+)\s+x\s+(?P<number>\S+)(?:\s+at\s+(?P<at>[^a-z]+?))?", re.ASCII
)
_BLIND = re.compile(r"\s*blind\s+(?P<at>[^a-z]+?)", re.ASCII)
_FROM = re.compile(r"(.*?)(?:\s+from\s+([0-9]{1,10}))?\s*", re.ASCII | re.DOTALL)


def parse_change(text: Any) -> Change:
    """Of its text; InputError where it is none. Those with a vector have no text."""
    found = _FROM.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise _none(text)
    step = None if found[2] is None else int(found[2])
    if hidden := _BLIND.fullmatch(found[1]):
        return blind(hidden["at"], from_step=step)
    if not (scaled := _SCALE.fullmatch(found[1])):
        raise _none(text)
    try:
        factor = float(scaled["number"])
    except ValueError:
        raise _none(text) from None
    return scale(scaled["where"], factor, positions=scaled["at"], from_step=step)


def check_changes(given: Any) -> tuple[Change, ...]:
    """Changes, texts of them, or objects of a trace; InputError where one is none."""
    if isinstance(given, (str, Change)) or not isinstance(given, Iterable):
        raise InputError(f'changes must be a list, such as ["L25.H2 x 0"], not {shown(given)}')
    found: list[Change] = []
    for one in given:
        if isinstance(one, Change):
            found.append(one)
        else:
            found.append(parse_change(one) if isinstance(one, str) else Change.from_json(one))
    if len(found) > MOST:
        raise InputError(f"changes: {len(found)} are more than {MOST}")
    if (nbytes := sum(len(one.vector) for one in found)) > MOST_BYTES:
        raise InputError(f"changes: vectors of {nbytes} bytes are more than {MOST_BYTES}")
    return tuple(found)


def _none(text: Any) -> InputError:
    return InputError(
        f'change: write "L25.H2 x 0", "L9.mlp x 0.5 at 3-7 from 2" or "blind 3-7", '
        f"not {shown(text)}"
    )
