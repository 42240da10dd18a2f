"""Small figures of the index's cards, as HTML and SVG whose colours follow their page."""

from collections.abc import Iterable, Sequence
from html import escape

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
    marks = [f'<svg viewBox="0 0 {total} {high + 34}" width="{total}" height="{high + 34}">']
    for g, (label, group) in enumerate(groups):
        left, step = g * (wide + gap), wide / len(group)
        for i, (_, value, stands_out) in enumerate(group):
            tall = max(1.0, value * high)
            marks.append(
                f'<rect class="{"hot" if stands_out else "bar"}" x="{left + i * step + 1:.1f}" '
                f'y="{high - tall + 1:.1f}" width="{step - 2:.1f}" height="{tall:.1f}"/>'
            )
        word = next((word for word, _, stands_out in group if stands_out), "")
        marks.append(
            f'<text x="{left + wide / 2}" y="{high + 15}">{escape(label)}</text>'
            f'<text class="word" x="{left + wide / 2}" y="{high + 31}">'
            f"{escape(word.strip())}</text>"
        )
    return "".join([*marks, "</svg>"])


def cells(rows: Sequence[Sequence[tuple[str, str]]]) -> str:
    """A grid: the rows from above, each cell with a letter and a class as of ``strips``."""
    size = 15
    wide, high = max(map(len, rows)) * size, len(rows) * size
    marks = [f'<svg class="grid" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}">']
    for y, row in enumerate(rows):
        for x, (letter, kind) in enumerate(row):
            marks.append(
                f'<rect class="{kind or "cell"}" x="{x * size}" y="{y * size}" '
                f'width="{size - 1}" height="{size - 1}"/>'
                f'<text x="{x * size + size / 2 - 0.5}" y="{y * size + 11}">{escape(letter)}</text>'
            )
    return "".join([*marks, "</svg>"])
