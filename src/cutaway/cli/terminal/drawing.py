r"""Text on a terminal: safe characters, display widths, bars, sparklines and colour.

Knows encodings and display widths; only this module writes escape sequences into text.
Every command shows tokens alike: an invisible character as an escape, such as ``\n``; a byte that
is no whole character as ``\xe4``; a token without text by its name, such as ``<|im_end|>``.
"""

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from cutaway.cli.terminal.streams import print_json
from cutaway.text.characters import printable

if TYPE_CHECKING:
    from cutaway.text import Tokenizer


_SPARKS, _ASCII_SPARKS = "▁▂▃▄▅▆▇█", "_.-:=+*#"
_EIGHTHS = " ▏▎▍▌▋▊▉█"
PLAIN, BOLD, DIM, REVERSE = "", "1", "2", "7"

Span = tuple[str, str]
"""A piece of a line, and its look: the parameters of an SGR escape sequence, or ""."""
Line = list[Span]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Style:
    """Whether a stream shows escape sequences, colour, more than ASCII, and 24-bit colour."""

    ansi: bool
    colour: bool
    unicode: bool
    truecolour: bool = False

    @classmethod
    def from_stream(cls, stream: TextIO) -> "Style":
        """Return a stream's style by NO_COLOR (https://no-color.org), TERM=dumb and COLORTERM."""
        ansi = stream.isatty() and os.environ.get("TERM") != "dumb"
        return cls(
            ansi=ansi,
            colour=ansi and not os.environ.get("NO_COLOR"),
            unicode=(stream.encoding or "").lower().startswith("utf"),
            truecolour=os.environ.get("COLORTERM") in ("truecolor", "24bit"),
        )

    def text(self, text: str) -> str:
        """Escape characters that a terminal takes as commands, or cannot show."""
        safe = printable(text)
        return safe if self.unicode else _ascii(safe)

    def spark(self, heights: Iterable[float | None]) -> str:
        """Return a sparkline: one character for each height from 0 to 1, a blank for None."""
        marks = _SPARKS if self.unicode else _ASCII_SPARKS
        places = (None if h is None else min(int(min(max(h, 0.0), 1.0) * 8), 7) for h in heights)
        return "".join(" " if place is None else marks[place] for place in places)

    def bar(self, share: float, cells: int) -> str:
        """Return a bar over ``share`` of the cells, then blanks; any share above 0 is visible."""
        eighths = min(max(round(share * cells * 8), 1 if share > 0 else 0), cells * 8)
        if not self.unicode:
            return ("#" * -(-eighths // 8)).ljust(cells)
        part = _EIGHTHS[eighths % 8].strip()
        return ("█" * (eighths // 8) + part).ljust(cells)

    def tint(self, share: float) -> str:
        """Return the SGR parameters of a share's colour, from grey at 0 to orange at 1."""
        if not self.colour:
            return PLAIN
        from cutaway.trace.html import (
            heat_of_text,  # here, since html imports the trace, and few texts are tinted
        )

        red, green, blue = heat_of_text(share)
        if self.truecolour:
            return f"38;2;{red};{green};{blue}"
        r, g, b = (round(c / 255 * 5) for c in (red, green, blue))
        return f"38;5;{16 + 36 * r + 6 * g + b}"

    def pick(self, nice: str, plain: str) -> str:
        """Return ``nice`` if the stream shows more than ASCII, else ``plain``."""
        return nice if self.unicode else plain

    def render(self, line: Line, cells: int) -> str:
        """Return a line cut to so many cells, with escape sequences if the stream shows these."""
        done, left = [], cells
        for text, look in line:
            part = clip(text if self.unicode else _ascii(text), left)
            left -= width(part)
            done.append(f"\x1b[{look}m{part}\x1b[m" if look and self.ansi else part)
        return "".join(done)


def print_lines(lines: Iterable[str]) -> None:
    """Print a report in characters that standard output can show; escape terminal commands."""
    print("\n".join(map(Style.from_stream(sys.stdout).text, lines)))


def print_report(
    args: Namespace, document: Callable[[], Any], lines: Callable[[], Iterable[str]]
) -> None:
    """Print a report: one JSON document with --json, else lines."""
    if args.json:
        print_json(document())
    else:
        print_lines(lines())


def _ascii(text: str) -> str:
    """Spell cutaway's own signs in ASCII, and any other character by its code point."""
    for nice, plain in _SPELLINGS.items():
        text = text.replace(nice, plain)
    return text.encode("ascii", "backslashreplace").decode()


_SPELLINGS = {
    "→": "->", "←": "<-", "↑": "^", "↓": "v", "–": "-", "−": "-", "×": "x", "±": "+-", "≠": "!=",
    "√": "sqrt ", "‹": "<", "›": ">", " · ": " | ", "…": "...", "│": "|", "␣": "_", "●": "*",
    "○": "o",
}  # fmt: skip


def width(text: str) -> int:
    """Return how many cells a printable text takes."""
    return len(text) if text.isascii() else sum(map(_cells, text))


def _cells(character: str) -> int:
    import unicodedata  # here, since few texts need it

    if unicodedata.category(character) in ("Mn", "Me") or "\u1160" <= character <= "\u11ff":
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def clip(text: str, cells: int) -> str:
    """Return the beginning of a text that fits into so many cells."""
    if width(text) <= cells:
        return text
    used = 0
    for at, character in enumerate(text):
        used += _cells(character)
        if used > cells:
            return text[:at]
    return text


def fit(text: str, cells: int, *, right: bool = False) -> str:
    """Cut or pad a text to exactly so many cells; with ``right``, pad the left side."""
    cut = clip(text, cells)
    pad = " " * (cells - width(cut))
    return pad + cut if right else cut + pad


def window(count: int, at: int, cells: int) -> range:
    """Return which of ``count`` rows to show on a screen of ``cells`` rows, row ``at`` included."""
    start = min(max(at - cells // 2, 0), max(count - cells, 0))
    return range(start, min(start + cells, count))


def wrap(characters: Iterable[tuple[str, _T]], cells: int) -> Iterator[list[tuple[str, _T]]]:
    """Wrap characters, each with a look or a figure, at so many cells; "\\n" ends a line."""
    line: list[tuple[str, _T]] = []
    used = 0
    for character, look in characters:
        used += width(character)
        if character == "\n" or used > cells:
            yield line
            line, used = [], 0 if character == "\n" else width(character)
        if character != "\n":
            line.append((character, look))
    yield line


def join_spans(line: Iterable[tuple[str, _T]]) -> list[tuple[str, _T]]:
    """Join neighbours with the same look or figure into one text."""
    return [("".join(c for c, _ in same), look) for look, same in groupby(line, itemgetter(1))]


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of cells in columns, two spaces apart."""
    widths = [max(width(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(fit(c, w) for c, w in zip(row, widths, strict=True)) for row in rows)
    return [line.rstrip() for line in lines]


# -- tokens ----------------------------------------------------------------------------------------


def text_of(tokenizer: "Tokenizer", ids: Sequence[int]) -> str:
    """Return the text of tokens, where a token without text has its name; see ``Trace.name_of``."""
    pieces = (tokenizer.token_bytes(i) or tokenizer.token_name(i).encode() for i in ids)
    return b"".join(pieces).decode("utf-8", "backslashreplace")


def names_of(tokenizer: "Tokenizer") -> Callable[[int], str]:
    """Return the function from a token's id to its name."""
    return lambda token_id: text_of(tokenizer, [token_id])


def quote(name: str) -> str:
    """Put a name in quotes, so that the spaces at its ends are seen."""
    return f"'{printable(name)}'"


def visible(style: "Style", name: str) -> str:
    """Return a name without quotes, in which marks show the spaces at its ends."""
    inner, blank = name.strip(" "), style.pick("␣", "_")
    if not inner:
        return blank * len(name) or "<>"
    left = len(name) - len(name.lstrip(" "))
    right = len(name) - left - len(inner)
    return blank * left + style.text(inner) + blank * right


# -- streamed text, wrapped between words ----------------------------------------------------------


class WordWrap:
    """Writes a text piece by piece; a word waits until it is whole, or too long for a line.

    write    writes text in which nothing needs an escape
    columns  returns the terminal's columns at this moment: its size may change
    """

    def __init__(self, write: Callable[[str], object], columns: Callable[[], int]) -> None:
        self._write, self._columns = write, columns
        self._used, self._word = 0, ""  # cells of the line; a word and the blanks before it

    def push(self, text: str) -> None:
        """Add to the text."""
        for character in text:
            if character == "\n":
                self.flush()
                self._write("\n")
                self._used = 0
                continue
            is_wide = width(character) > 1  # Chinese, Japanese: a line may end at each character
            if is_wide or (character == " " and self._word.strip(" ")):
                self.flush()
            self._word += character
            if is_wide or width(self._word) >= self._columns():
                self.flush()

    def flush(self) -> None:
        """Write the word that waits, on the next line if this line has no room for the word."""
        if not self._word:
            return
        columns = max(self._columns(), 1)
        if self._used and self._used + width(self._word) > columns:
            self._word, self._used = self._word.lstrip(" "), 0
            self._write("\n")
        self._write(self._word)
        self._used, self._word = min(self._used + width(self._word), columns), ""
