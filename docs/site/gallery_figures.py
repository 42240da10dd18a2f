"""The index of the gallery: a card for each lesson: its question, its answer and a small figure.

Knows HTML and SVG whose colours follow the page that they are in. Refuses to know how a lesson is
made.
"""

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gallery import Lesson

_STYLE = Path(__file__).with_name("static") / "gallery.css"

Chips = Iterable[tuple[str, str]]
"""Tokens, each with a class: "" plain, "given" faint, "hot" what it is about, "gone" struck."""


def strips(*rows: tuple[str, Chips]) -> str:
    """Lines of text, each with a label, token by token."""
    return "".join(
        f'<span class="strip">{f"<b>{escape(label)}</b>" if label else ""}'
        + "".join(
            f'<span class="{kind}">{escape(text.replace(chr(10), "↵"))}</span>'
            for text, kind in chips
        )
        + "</span>"
        for label, chips in rows
    )


def bars(groups: Sequence[tuple[str, Sequence[tuple[str, float, bool]]]]) -> str:
    """Small bar charts side by side: a label, and of each bar its word, its height in 0 … 1, and
    whether it stands out."""
    wide, high, gap = 100, 64, 12
    total = len(groups) * (wide + gap) - gap
    made = [f'<svg viewBox="0 0 {total} {high + 34}" width="{total}" height="{high + 34}">']
    for g, (label, each) in enumerate(groups):
        left, step = g * (wide + gap), wide / len(each)
        for i, (_, value, chosen) in enumerate(each):
            tall = max(1.0, value * high)
            made.append(
                f'<rect class="{"hot" if chosen else "bar"}" x="{left + i * step + 1:.1f}" '
                f'y="{high - tall + 1:.1f}" width="{step - 2:.1f}" height="{tall:.1f}"/>'
            )
        word = next((word for word, _, chosen in each if chosen), "")
        made.append(
            f'<text x="{left + wide / 2}" y="{high + 15}">{escape(label)}</text>'
            f'<text class="word" x="{left + wide / 2}" y="{high + 31}">'
            f"{escape(word.strip())}</text>"
        )
    return "".join([*made, "</svg>"])


def cells(rows: Sequence[Sequence[tuple[str, str]]]) -> str:
    """A grid: the rows from above, each cell with a letter and a class as of ``strips``."""
    size = 15
    wide, high = max(map(len, rows)) * size, len(rows) * size
    made = [f'<svg class="grid" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}">']
    for y, row in enumerate(rows):
        for x, (letter, kind) in enumerate(row):
            made.append(
                f'<rect class="{kind or "cell"}" x="{x * size}" y="{y * size}" '
                f'width="{size - 1}" height="{size - 1}"/>'
                f'<text x="{x * size + size / 2 - 0.5}" y="{y * size + 11}">{escape(letter)}</text>'
            )
    return "".join([*made, "</svg>"])


def cards(lessons: Sequence["Lesson"], folder: str = "") -> str:
    """A list of all lessons, as HTML. folder: where their pages are."""
    return '<ol class="gallery">\n' + "\n".join(_card(one, folder) for one in lessons) + "\n</ol>\n"


def _card(lesson: "Lesson", folder: str) -> str:
    return (
        f'<li><a href="{folder}{lesson.name}.html">{escape(lesson.title)}</a>'
        f'<p class="question">{escape(lesson.question)}</p>'
        f'<div class="figure" role="img" aria-label="{escape(lesson.words)}">{lesson.figure}</div>'
        f"<p>{escape(lesson.answer)}</p></li>"
    )


def index(lessons: Sequence["Lesson"]) -> str:
    """A document of its own, for a folder of lessons without the site."""
    return _PAGE.replace("STYLE", _STYLE.read_text("utf-8")).replace("CARDS", cards(lessons))


_PAGE = """<!doctype html>
<html lang="en">
<head>
  <meta charset="utf-8">
  <meta name="viewport" content="width=device-width, initial-scale=1">
  <meta name="color-scheme" content="light dark">
  <title>Ten lessons of a minute · cutaway</title>
  <style>
body { max-width: 76rem; margin: 0 auto; padding: 1rem; font: 1rem/1.5 system-ui, sans-serif; }
@media (prefers-color-scheme: dark) {
  body { background: #12151b; color: #e7eaf0; }
  a { color: #7cc0f4; }
}
STYLE
  </style>
</head>
<body>
<main>
<h1>Ten lessons of a minute</h1>
<p>Each is a recorded run: click its sentences one after the other, then anything else.</p>
CARDS
</main>
</body>
</html>
"""
