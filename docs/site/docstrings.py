"""The docstrings of cutaway, as Sphinx reads them.

Knows the two forms in which a docstring names things: columns, ``name   what it is`` with
continuation lines indented, and sentences, ``name: what it is``. Refuses to know what they say.
"""

import inspect
import re
from collections.abc import Iterable
from typing import Any

_COLUMNS = re.compile(r"(\w+(?:, \w+)*)\s{2,}(\S.*)")
_NAMES = r"(?:{0})(?:, (?:{0}))*"


def read(object: Any, lines: list[str]) -> None:
    """Make lists of both forms in the lines of an object's docstring, in place."""
    lines[:] = listed(lines, _parameters(object))


def listed(lines: Iterable[str], parameters: Iterable[str] = ()) -> list[str]:
    """The lines in reStructuredText; ``parameters`` may begin a sentence of the second form."""
    known = "|".join(map(re.escape, parameters)) or r"(?!)"
    begins = re.compile(rf"({_NAMES.format(known)}): (.*)")
    inside = re.compile(rf"(?<=\.) (?={_NAMES.format(known)}: )")
    made: list[str] = []
    open_item = False  # whether the lines that follow belong to an item of a list
    for whole in lines:
        for line in inside.split(_plain(whole)):
            if found := _COLUMNS.fullmatch(line) or begins.fullmatch(line):
                made += [] if open_item else [""]
                made.append(f"* **{found[1]}**: {found[2]}")
                open_item = True
            elif not line.strip():
                made.append("")
                open_item = False
            else:
                made.append(f"  {line.strip()}" if open_item else line)
    return made


def _plain(line: str) -> str:
    """A line whose signs mean nothing to reStructuredText, but for what is ``code``.

    FILE:SCALE would be a link: reStructuredText knows ``file:`` as a scheme.
    """
    parts = line.split("``")
    parts[::2] = [re.sub(r"([*|\\]|_(?!\w)|(?<=FILE):)", r"\\\1", part) for part in parts[::2]]
    return "``".join(parts)


def _parameters(object: Any) -> list[str]:
    try:
        return [*inspect.signature(object).parameters]
    except (TypeError, ValueError):
        return []
