"""Calls that one answer repeats: how a grammar marks its calls, and whether one is there twice.

Knows how llguidance keeps what rules matched, and how the rules of calls are named.
"""

from collections.abc import Iterable

_KEPT = "__LIST_APPEND:"
"""Before the name of a capture: llguidance then keeps what is equal to the one before it, too."""
_GIVEN, _CALLED = f"{_KEPT}given_", f"{_KEPT}called_"


def marked_call(index: int, before: str, behind: str) -> list[str]:
    """Lark of the rule ``called_{index}``, a call with these texts around its arguments."""
    return [
        f'given_{index}[capture="{_GIVEN}{index}"]: arguments_{index}',
        f'called_{index}[capture="{_CALLED}{index}"]: {before} given_{index} {behind}',
    ]


def marks_calls(lark: str) -> bool:
    """Whether a grammar's answers end behind a call that they repeat."""
    return f'[capture="{_CALLED}' in lark


def without_marks(lark: str) -> str:
    """The same without captures of calls."""
    return "\n".join(line for line in lark.split("\n") if f'[capture="{_KEPT}' not in line)


def repeats_call(captures: Iterable[tuple[str, bytes]]) -> bool:
    """Whether a tool was called twice with the same arguments; ids of calls do not count."""
    calls, given = set[tuple[str, bytes]](), b""
    for name, data in captures:
        if name.startswith(_GIVEN):
            given = data
        elif name.startswith(_CALLED):
            if (name, given) in calls:
                return True
            calls.add((name, given))
            given = b""
    return False
