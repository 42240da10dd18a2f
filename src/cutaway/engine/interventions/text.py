"""The interventions of a request, checked; and one as a line of text.

"L25.H2 x 0", "L9.mlp x 0.5 at 3-7 from 2", "knock_out 3-7".
"""

import re
from collections.abc import Iterable
from typing import Any

from cutaway.base.arithmetic import plainly
from cutaway.base.checks import shown
from cutaway.engine.interventions.intervention import (
    Intervention,
    current_name,
    knock_out,
    numbered,
    scale,
)  # fmt: skip
from cutaway.errors import InputError

MOST = 1024
"""Interventions of one request."""
MOST_BYTES = 8 << 20
"""Of the vectors of one request: one line of its trace has them all."""


_SCALE = re.compile(
    r"\s*(?P<where>\S+)\s+x\s+(?P<number>\S+)(?:\s+at\s+(?P<at>[^a-z]+?))?", re.ASCII
)
_KNOCK_OUT = re.compile(r"\s*knock_out\s+(?P<at>[^a-z]+?)", re.ASCII)
_FROM = re.compile(r"(.*?)(?:\s+from\s+([0-9]{1,10}))?\s*", re.ASCII | re.DOTALL)


@plainly
def parse_intervention(text: Any) -> Intervention:
    """An intervention without a vector from its text; InputError where the text is none."""
    found = _FROM.fullmatch(current_name(text)) if isinstance(text, str) else None
    if found is None:
        raise _none(text)
    step = None if found[2] is None else int(found[2])
    if hidden := _KNOCK_OUT.fullmatch(found[1]):
        return knock_out(hidden["at"], from_step=step)
    if not (scaled := _SCALE.fullmatch(found[1])):
        raise _none(text)
    try:
        factor = float(scaled["number"])
    except ValueError:
        raise _none(text) from None
    return scale(scaled["where"], factor, positions=scaled["at"], from_step=step)


def check_interventions(given: Any) -> tuple[Intervention, ...]:
    """Interventions, given as such, as texts or as objects of a trace; else InputError."""
    if isinstance(given, (str, Intervention)) or not isinstance(given, Iterable):
        raise InputError(
            f'interventions must be a list, such as ["L25.H2 x 0"], not {shown(given)}'
        )
    found: list[Intervention] = []
    for i, one in enumerate(given):
        with numbered(i):
            if isinstance(one, Intervention):
                found.append(one)
            else:
                found.append(
                    parse_intervention(one) if isinstance(one, str) else Intervention.from_json(one)
                )
    if len(found) > MOST:
        raise InputError(f"interventions: {len(found)} are more than {MOST}")
    if (nbytes := sum(len(one.vector) for one in found)) > MOST_BYTES:
        raise InputError(f"interventions: vectors of {nbytes} bytes are more than {MOST_BYTES}")
    return tuple(found)


def _none(text: Any) -> InputError:
    return InputError(
        f'intervention: write "L25.H2 x 0", "L9.mlp x 0.5 at 3-7 from 2" or "knock_out 3-7", '
        f"not {shown(text)}"
    )
