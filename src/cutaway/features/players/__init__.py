"""``cutaway trace play``: a recorded run step by step, in the terminal.

This module has what both screens share: keys that move, the help, the last line.

A player is a state. Changing it by a key, and drawing it, need no terminal.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from textwrap import wrap
from typing import ClassVar

from cutaway.cli.terminal.drawing import DIM, PLAIN, REVERSE, Line, Style, width
from cutaway.trace import Trace

LABEL = 17
"""The number of cells before a sparkline."""

_MOVES = {
    "left": -1, "right": 1, "shift-left": -10, "shift-right": 10, "page-up": -10, "page-down": 10,
}  # fmt: skip
_HELP_INDENT = 12
_HELP_KEYS = ("? leave this help", "↑/↓ scroll", "q quit")


@dataclass
class Player:
    """A reader's place in a trace.

    at       the index of the step or pass that is shown
    scrolled  number of lines of the help above the first shown line
    pause_s  seconds for which a step is shown while the trace plays; None: until a key is pressed
    last     the index of the last step or pass; -1 if the trace has none
    """

    unit: ClassVar[str]
    keys: ClassVar[Sequence[str]]  # for the last line, the commonest first
    signs: ClassVar[Sequence[tuple[str, str]]]  # for the help: keys and signs, and their meanings

    trace: Trace
    at: int = 0
    helping: bool = False
    scrolled: int = 0
    done: bool = False
    message: str = ""
    pause_s: float | None = None
    last: int = field(init=False)

    def frame(self, columns: int, rows: int, style: Style) -> list[str]:
        """Draw a screen of that size: ``rows`` lines of at most ``columns`` columns."""
        if self.last < 0:
            lines: list[Line] = [[(f" no {self.unit} on record yet", PLAIN)]]
        elif self.helping:
            lines = self._help(columns, rows - 1, style)
        else:
            lines = self._lines(columns, rows - 1, style)
        lines = lines[: rows - 1] + [[]] * (rows - 1 - len(lines))
        keys = _HELP_KEYS if self.helping else self.keys
        lines.append([(f" {self.message or _keys(keys, columns, style)}", DIM)])
        return [style.render(line, columns) for line in lines[-rows:]]

    def press(self, key: str) -> None:
        """Act on a key; unknown keys do nothing."""
        self.message = ""
        if key == "q":
            self.done = True
        elif key == "?" or (self.helping and key == "escape"):
            self.helping, self.scrolled = not self.helping, 0
        elif self.helping and key in ("up", "down"):
            self.scrolled += 1 if key == "down" else -1
        elif key in _MOVES:
            self._go(self.at + _MOVES[key])
        elif key in ("home", "end"):
            self._go(0 if key == "home" else self.last)
        else:
            self._press(key)

    def tick(self) -> None:
        """Show the next step or pass, as the pause is over."""
        self._go(self.at + 1)
        if self.at == self.last:
            self.pause_s = None

    def _help(self, columns: int, rows: int, style: Style) -> list[Line]:
        lines = [*_help(self.signs, columns, style)]
        self.scrolled = max(min(self.scrolled, len(lines) - rows), 0)
        return [[(f" {line}", PLAIN)] for line in lines[self.scrolled :]]

    def _lines(self, columns: int, rows: int, style: Style) -> list[Line]:
        raise NotImplementedError

    def _press(self, key: str) -> None:
        """Act on a key that only this kind of player has."""
        raise NotImplementedError

    def _go(self, index: int) -> None:
        self.at = max(min(index, self.last), 0)

    def _search(self, target: str, is_wanted: Callable[[int], bool], *, ahead: bool) -> None:
        order = range(self.at + 1, self.last + 1) if ahead else range(self.at - 1, -1, -1)
        index = next((i for i in order if is_wanted(i)), None)
        if index is None:
            self.message = f"no {target} {'after' if ahead else 'before'} this one"
        else:
            self._go(index)


def _help(signs: Sequence[tuple[str, str]], columns: int, style: Style) -> Iterator[str]:
    for sign, text in signs:
        line = style.text(f"{sign:<{_HELP_INDENT}}{text}")
        yield from wrap(line, max(columns - 2, 16), subsequent_indent=" " * _HELP_INDENT)


def _keys(keys: Sequence[str], columns: int, style: Style) -> str:
    """Write as many keys as fit into a line."""
    line = keys[0]
    for key in keys[1:]:
        longer = f"{line} · {key}"
        if width(style.text(longer)) >= columns:
            break
        line = longer
    return line


def wrap_rows(widths: list[int], cells: int) -> list[range]:
    """Divide tokens or cells of these widths among rows of ``cells`` columns."""
    rows, start, used = [], 0, 0
    for i, wide in enumerate(widths):
        if used + wide > cells and i > start:
            rows.append(range(start, i))
            start, used = i, 0
        used += wide
    return [*rows, range(start, len(widths))]


def spark_row(label: str, marks: list[str], here: int, looks: list[str] | None = None) -> Line:
    """Write a label, and a mark for each step or pass; the mark at ``here`` is highlighted."""
    looks = list(looks or [PLAIN] * len(marks))
    looks[here] = REVERSE
    return [(f" {label:<{LABEL - 1}}", PLAIN), *zip(marks, looks, strict=True)]
