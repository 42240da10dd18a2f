"""A canvas on a terminal: its cells in place, masked or written, while it is revealed."""

import os
from collections.abc import Callable
from itertools import groupby
from typing import TextIO

from cutaway.cli.terminal.drawing import BOLD, DIM, PLAIN, Line, Span, Style, joined, window, wrap
from cutaway.engine import Pass, Step


class CanvasView:
    """What is in the cells of a text that is being revealed.

    stream  what it is drawn on, where that is a terminal
    """

    def __init__(
        self, stream: TextIO, token_bytes: Callable[[int], bytes], first: int, cells: int
    ) -> None:
        """first: the position of the first cell; cells: how many there are."""
        self._stream, self._token_bytes = stream, token_bytes
        self._style = Style.of(stream)
        self._cells: dict[int, int | None] = dict.fromkeys(range(first, first + cells))
        self._new: set[int] = set()
        self._text, self._passes, self._below = "", 0, 0

    @property
    def is_drawn(self) -> bool:
        """Whether the stream is a terminal that can show it."""
        return self._style.ansi

    @property
    def written(self) -> int:
        """How many cells of blocks that are not finished are not masked."""
        return sum(token_id is not None for token_id in self._cells.values())

    def passed(self, made: Pass, *, draw: bool) -> None:
        """Take a pass, and draw what there is then."""
        self._cells |= made.stands
        self._new = {cell.position for cell in made.cells if cell.now != cell.was}
        self._passes += 1
        if draw:
            self._draw()

    def wrote(self, step: Step) -> None:
        """Take a token of a finished block: it is text now, and no cell any more."""
        self._text += step.text
        self._cells.pop(step.position, None)

    def standing(self) -> str:
        """The cells that are no text yet, in one line."""
        return "".join(self._style.text(text) for text, _ in self._spans())

    def clear(self) -> None:
        """Leave the terminal as if nothing had been drawn."""
        if self.is_drawn and self._below:
            up = f"\x1b[{self._below - 1}A" if self._below > 1 else ""
            self._stream.write(f"\r{up}\x1b[J")
            self._stream.flush()
        self._below = 0

    def _draw(self) -> None:
        try:
            columns, rows = os.get_terminal_size(self._stream.fileno())
        except OSError:  # no file is behind it
            columns, rows = 80, 24
        columns, rows = max(columns - 1, 20), max(rows - 2, 1)
        lines, masked = _lines([(self._text, PLAIN), *self._spans()], columns, self._mask)
        shown = [lines[i] for i in window(len(lines), masked, rows)]
        left = sum(token_id is None for token_id in self._cells.values())
        told = f"[pass {self._passes} · {left} of {len(self._cells)} cells masked]"
        self.clear()
        drawn = [
            self._style.render(line, columns)
            for line in (*shown, [(told, DIM if self._style.colour else PLAIN)])
        ]
        self._stream.write("\r\n".join(drawn))
        self._stream.flush()
        self._below = len(drawn)

    @property
    def _mask(self) -> str:
        return self._style.pick("░", "_")

    def _spans(self) -> list[Span]:
        """The cells, those of one look together: a character may be cut into several."""
        spans = []
        for (is_masked, is_new), cells in groupby(self._cells.items(), self._kind):
            ids = [token_id for _, token_id in cells]
            data = b"".join(self._token_bytes(one) for one in ids if one is not None)
            text = self._mask * len(ids) if is_masked else data.decode("utf-8", "replace")
            look = DIM if is_masked else BOLD if is_new else PLAIN
            spans.append((text, look if self._style.colour else PLAIN))
        return spans

    def _kind(self, cell: tuple[int, int | None]) -> tuple[bool, bool]:
        """Whether it is masked, and whether the last pass changed it."""
        position, token_id = cell
        return token_id is None, position in self._new


def _lines(spans: list[Span], columns: int, mask: str) -> tuple[list[Line], int]:
    """Spans in lines of so many columns, and the number of the line with the first masked cell."""
    shown = "".join(
        c if c.isprintable() or c == "\n" else "\ufffd" for text, _ in spans for c in text
    )
    looks = (look for text, look in spans for _ in text)
    rows = [*wrap(zip(shown, looks, strict=True), columns)]
    masked = (n for n, row in enumerate(rows) if any(c == mask for c, _ in row))
    return [joined(row) for row in rows], next(masked, len(rows) - 1)
