"""Paragraphs and tables on standard output, as wide and as plain as it needs them.

Knows encodings, NO_COLOR, the terminal's width and how wide a character is. Refuses to know
what is said.
"""

import os
import shutil
import sys
from itertools import zip_longest
from textwrap import wrap
from unicodedata import category, east_asian_width

from cutaway.practice import Block, Table

_WIDEST, _NARROWEST, _LONGEST_BAR = 80, 20, 24
_ASCII = str.maketrans({
    "–": "-", "−": "-", "×": "x", "±": "+-", "√": "sqrt ", "→": "->", "…": "...", "␣": "_",
    "‹": "<", "›": ">",
})  # fmt: skip


class Page:
    """Where blocks are shown, one below the other."""

    def __init__(self) -> None:
        self._width = max(min(shutil.get_terminal_size().columns, _WIDEST), _NARROWEST)
        self._unicode = (sys.stdout.encoding or "").lower().startswith("utf")
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        self._bold = sys.stdout.isatty() and not plain

    def say(self, text: str, *, bold: bool = False) -> None:
        """Print a paragraph."""
        for line in wrap(self._plain(text), self._width, break_on_hyphens=False):
            print(f"\x1b[1m{line}\x1b[m" if bold and self._bold else line)

    def show(self, *blocks: Block) -> None:
        """Print the blocks, an empty line above and below each."""
        for block in blocks:
            if isinstance(block, str):
                self.say(block)
            else:
                print(*self._lines(block), sep="\n")
            print()

    def _plain(self, text: str) -> str:
        if self._unicode:
            return text
        return text.translate(_ASCII).encode("ascii", "backslashreplace").decode()

    def _lines(self, table: Table) -> list[str]:
        grid = [list(map(self._plain, cells)) for cells in (table.head, *table.rows)]
        widths = [max(map(_cells, column)) for column in zip(*grid, strict=True)]
        words = [name in ("", "token") or n == 0 for n, name in enumerate(table.head)]
        lines = [
            "  ".join(_fit(*each) for each in zip(cells, widths, words, strict=True))
            for cells in grid
        ]
        room = min(self._width - sum(widths) - 2 * len(widths) - 2, _LONGEST_BAR)
        mark = "█" if self._unicode else "#"
        bars = ["", *(mark * round(length * room) for length in table.bars)]
        return [f"  {line}  {bar}".rstrip() for line, bar in zip_longest(lines, bars, fillvalue="")]


def _fit(text: str, width: int, is_word: bool) -> str:
    """Words stand to the left, figures to the right."""
    space = " " * (width - _cells(text))
    return text + space if is_word else space + text


def _cells(text: str) -> int:
    """How many cells of a terminal a printable text takes."""
    zero = sum(category(character) in ("Mn", "Me") for character in text)
    return len(text) - zero + sum(east_asian_width(character) in "WF" for character in text)
