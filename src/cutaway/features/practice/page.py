"""Paragraphs and tables on standard output, in the width and the characters that it can show."""

import shutil
import sys
from textwrap import wrap

from cutaway.cli.terminal.drawing import BOLD, PLAIN, Style, fit, width
from cutaway.features.practice import Block, Table

_WIDEST, _NARROWEST, _LONGEST_BAR = 80, 20, 24


class Page:
    """Where blocks are shown, one below the other."""

    def __init__(self) -> None:
        self._width = max(min(shutil.get_terminal_size().columns, _WIDEST), _NARROWEST)
        self._style = Style.of(sys.stdout)

    def say(self, text: str, *, bold: bool = False) -> None:
        """Print a paragraph."""
        look = BOLD if bold and self._style.colour else PLAIN
        for line in wrap(self._style.text(text), self._width, break_on_hyphens=False):
            print(self._style.render([(line, look)], self._width))

    def show(self, *blocks: Block) -> None:
        """Print the blocks, an empty line above and below each."""
        for block in blocks:
            if isinstance(block, str):
                self.say(block)
            else:
                print(*self._lines(block), sep="\n")
            print()

    def _lines(self, table: Table) -> list[str]:
        grid = [list(map(self._style.text, cells)) for cells in (table.head, *table.rows)]
        widths = [max(map(width, column)) for column in zip(*grid, strict=True)]
        figures = [name not in ("", "token") and n > 0 for n, name in enumerate(table.head)]
        lines = [
            "  ".join(fit(c, w, right=f) for c, w, f in zip(cells, widths, figures, strict=True))
            for cells in grid
        ]
        room = max(min(self._width - sum(widths) - 2 * len(widths) - 2, _LONGEST_BAR), 0)
        bars = [self._style.bar(share, room) for share in table.bars]
        bars = ["", *bars, *[""] * (len(lines) - len(bars) - 1)]
        return [f"  {line}  {bar}".rstrip() for line, bar in zip(lines, bars, strict=True)]
