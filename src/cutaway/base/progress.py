"""Show progress and messages, and texts of models, files and servers, without harm.

On a terminal the control characters in a stranger's text are shown instead of obeyed.
"""

import os
import re
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO

# -- while something takes long --------------------------------------------------------------------

Progress = Callable[[str, int, int], object]
"""Called with (name of the work, how much is done, the total)."""

_REDRAW_S = 0.1
_LONGEST_BEGINNING, _LONGEST_END = 900, 300
"""How many characters of a long error are kept: it may quote a long name before the remedy."""


def silent(work: str, done: int, total: int) -> None:
    """Report no progress."""


def say(text: str) -> None:
    """Write one line to standard error, where it never mixes with generated text.

    A terminal's lines are wrapped between words, and no text controls it.
    """
    text = inert(text, sys.stderr) if sys.stderr else text
    if len(text) > (columns := _columns()):
        from textwrap import fill  # not at every start

        text = fill(
            text, columns, break_long_words=False, break_on_hyphens=False, replace_whitespace=False
        )
    with suppress(OSError):  # do not fail because a log is full
        print(text, file=sys.stderr, flush=True)


def say_error(sentence: str) -> None:
    """Write why a command failed to standard error; cut a long sentence in the middle."""
    if len(sentence) > _LONGEST_BEGINNING + _LONGEST_END:
        sentence = f"{sentence[:_LONGEST_BEGINNING]} … {sentence[-_LONGEST_END:]}"
    say(f"cutaway: error: {sentence}")


def _columns() -> int:
    """Return the width of the terminal at standard error; without a terminal, no limit."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or sys.maxsize
    except (OSError, ValueError, AttributeError):  # a file, a closed one, none
        return sys.maxsize


def megabytes(size: int) -> str:
    """Return a size in bytes as people write it; decimal, as disks and indexes count."""
    if size < 1_000_000:
        return f"{size / 1e3:.1f} kB"
    return f"{size / 1e6:.0f} MB" if size < 1_000_000_000 else f"{size / 1e9:.1f} GB"


Figures = Callable[[int, int, float], str]
"""Puts (done, total, seconds) into words."""


def bytes_done(done: int, total: int, seconds: float) -> str:
    """Say how much of a transfer is done, and how fast it goes."""
    return f"{done / total:4.0%} of {megabytes(total)}, {done / seconds / 1e6:.0f} MB/s"


def texts_done(done: int, total: int, seconds: float) -> str:
    """Say how many texts are finished."""
    return f"{done} of {total} texts, {seconds:.0f} s"


def tokens_done(done: int, total: int, seconds: float) -> str:
    """Say how many tokens are computed."""
    return f"{done} of {total} tokens, {seconds:.0f} s"


class Bar:
    """A progress bar on one line of a terminal; nothing when there is no terminal.

    The caller reports with ``update(done)``. The line is ended on leaving the context.
    after: seconds before anything is shown, since the work may be over by then
    """

    def __init__(
        self,
        label: str,
        total: int,
        *,
        show: bool = True,
        figures: Figures = bytes_done,
        after: float = 0,
    ) -> None:
        self._figures = figures
        self._label = label
        self._total = max(total, 1)
        self._show = show and sys.stderr is not None and sys.stderr.isatty()
        self._start = self._last_draw = time.monotonic()
        self._shown_from = self._start + after
        self._done = 0

    def __enter__(self) -> "Bar":
        self._draw()
        return self

    def __exit__(self, *_: object) -> None:
        self._draw()
        if self.is_due():
            say("")

    def leave_out(self, size: int) -> None:
        """Reduce the total by work that need not be done."""
        self._total = max(self._total - size, 1)

    def update(self, done: int) -> None:
        """Report how much is done; it never goes back, and is redrawn 10 times a second."""
        self._done = min(max(done, self._done), self._total)
        if time.monotonic() - self._last_draw >= _REDRAW_S:
            self._draw()

    def is_due(self) -> bool:
        """Whether there is a terminal to show it on, and the work takes long enough."""
        return self._show and time.monotonic() >= self._shown_from

    def _draw(self) -> None:
        if not self.is_due():
            return
        self._last_draw = time.monotonic()
        # \x1b[K clears the rest of a longer line.
        print(f"\r{self._line()}\x1b[K", end="", file=sys.stderr, flush=True)

    def _line(self) -> str:
        share = self._done / self._total
        figures = self._figures(self._done, self._total, max(self._last_draw - self._start, 1e-3))
        columns = min(_columns(), 500)
        label = self._label[: max(columns - len(figures) - 5, 0)]
        width = max(min(columns - len(label) - len(figures) - 8, 40), 0)
        full = round(share * width)
        solid, dotted = ("━", "╌") if _is_unicode() else ("#", ".")
        return f"  {label} {solid * full}{dotted * (width - full)} {figures}"


def _is_unicode() -> bool:
    return (sys.stderr.encoding or "").lower().startswith("utf")


# -- a stranger's text -----------------------------------------------------------------------------

STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Characters that control a terminal or reverse a line. Line feeds and tabs are harmless."""


def inert(text: str, stream: TextIO) -> str:
    """Return the text for this stream: with escapes on a terminal, raw in files and pipes."""
    if not stream.isatty():
        return text
    return STEERING.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
