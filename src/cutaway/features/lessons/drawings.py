"""The drawings of lessons, as HTML and SVG: curves, the causal triangle, passes in a row, a table.

A drawing takes its colours from the page (trace/web/css/guide.css), and its figures from a recipe.
"""

from collections.abc import Sequence
from html import escape
from itertools import pairwise
from typing import NamedTuple


class Curve(NamedTuple):
    """A curve of a chart: its label, a value for each step, and whether it stands out."""

    label: str
    values: Sequence[float]
    hot: bool = False


def figure(drawing: str, caption: str) -> str:
    """Return a drawing with its caption; a narrow screen scrolls it."""
    box = f'<div class="wide" tabindex="0" role="group" aria-label="{escape(caption)}">'
    return f"<figure>{box}{drawing}</div><figcaption>{escape(caption)}</figcaption></figure>"


# -- curves --------------------------------------------------------------------------------------

_WIDE, _HIGH, _LEFT, _RIGHT, _TOP, _BOTTOM = 740, 190, 56, 230, 18, 34


def chart(curves: Sequence[Curve], across: str, up: str) -> str:
    """Return curves over the same steps, each labelled at its end. across, up: what axes count."""
    top = _round_up(max(max(curve.values) for curve in curves))
    last = max(len(curve.values) for curve in curves) - 1
    right, base = _WIDE - _RIGHT, _HIGH - _BOTTOM

    def point(step: int, value: float) -> tuple[float, float]:
        x = _LEFT + (right - _LEFT) * step / last
        return x, base - (base - _TOP) * value / top

    marks = [
        f'<line class="axis" x1="{_LEFT}" y1="{base}" x2="{right}" y2="{base}"/>',
        f'<line class="axis" x1="{_LEFT}" y1="{_TOP}" x2="{right}" y2="{_TOP}"/>',
        _text(_LEFT - 6, base + 4, "0", "scale end"),
        _text(_LEFT - 6, _TOP + 4, f"{top:,.0f}", "scale end"),
        _text(_LEFT, _TOP - 7, up, "scale"),
        _text(_LEFT, base + 16, "1", "scale middle"),
        _text(right, base + 16, f"{last + 1}", "scale middle"),
        _text((_LEFT + right) / 2, base + 30, across, "scale middle"),
    ]
    heights = _spread([point(0, curve.values[-1])[1] for curve in curves])
    for curve, height in zip(curves, heights, strict=True):
        path = " ".join(
            f"{x:.1f},{y:.1f}"
            for x, y in (point(step, value) for step, value in enumerate(curve.values))
        )
        kind = " hot" if curve.hot else ""
        marks.append(f'<polyline class="curve{kind}" points="{path}"/>')
        marks.append(_text(right + 8, height + 4, curve.label, "changed" if curve.hot else ""))
    return _svg(_WIDE, _HIGH, marks)


def _round_up(value: float) -> float:
    """Return the next 1, 2 or 5 times a power of ten."""
    power = 1.0
    while power * 10 < value:
        power *= 10
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= value)


def _spread(heights: Sequence[float], apart: float = 16) -> list[float]:
    """Move labels apart that would overlap."""
    order = sorted(range(len(heights)), key=lambda k: heights[k])
    spread = list(heights)
    for above, below in pairwise(order):
        spread[below] = max(spread[below], spread[above] + apart)
    return spread


# -- the causal mask -----------------------------------------------------------------------------


class MaskRow(NamedTuple):
    """A row of the triangle: its token, how much it reads from each position, and its hashes.

    changed: whether the hashes differ
    """

    token: str
    weights: Sequence[float]
    before: str
    after: str
    changed: bool


def triangle(rows: Sequence[MaskRow], heads: tuple[str, str]) -> str:
    """Return a square with the future closed. heads: titles of the two columns of hashes."""
    cell, left, top = 20, 110, 24
    side = left + cell * len(rows)
    marks = [
        _text(side + 16, 14, heads[0], "scale"),
        _text(side + 176, 14, heads[1], "scale"),
    ]
    for y, row in enumerate(rows):
        height = top + y * cell
        marks.append(_text(left - 8, height + 14, row.token, "mono end"))
        for x in range(len(rows)):
            is_open = x <= y
            tint = f' fill-opacity="{row.weights[x]:.2f}"' if is_open else ""
            marks.append(
                f'<rect class="{"open" if is_open else "closed"}"{tint} x="{left + x * cell}" '
                f'y="{height}" width="{cell - 2}" height="{cell - 2}"/>'
            )
        for column, text in enumerate((row.before, row.after)):
            kind = "mono changed" if row.changed and column else "mono"
            marks.append(_text(side + 16 + 160 * column, height + 14, text, kind))
    return _svg(side + 320, top + cell * len(rows), marks)


# -- passes --------------------------------------------------------------------------------------


def passes(groups: Sequence[tuple[str, Sequence[int], int]]) -> str:
    """Return rows of passes, each as wide as it has rows.

    groups: a label, the rows of each pass, and after how many passes the reader sees something
    """
    unit, left, high = 6, 130, 46
    wide = left + unit * max(sum(sizes) + len(sizes) for _, sizes, _ in groups) + 4
    marks = []
    for g, (label, sizes, first) in enumerate(groups):
        x, y = left, 8 + g * high
        marks.append(_text(left - 10, y + 16, label, "end"))
        for n, size in enumerate(sizes):
            kind = "hot" if n < first else "plain"
            marks.append(
                f'<rect class="{kind}" x="{x}" y="{y}" width="{unit * size}" height="22"/>'
            )
            x += unit * size + unit
            if n + 1 == first:
                words = "first word on the screen"
                is_late = x > wide / 2  # on the left there is room
                text = (f"{words} ▲", "scale end") if is_late else (f"▲ {words}", "scale")
                marks.append(_text(x - unit, y + 36, *text))
    return _svg(wide, 8 + high * len(groups), marks)


# -- a table -------------------------------------------------------------------------------------


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; the first column names its row, and figures are aligned on the right."""
    names = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    lines = (
        f'<tr><th scope="row">{escape(name)}</th>' + "".join(map(_cell, cells)) + "</tr>"
        for name, *cells in rows
    )
    return f"<table><thead><tr>{names}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _cell(text: str) -> str:
    kind = ' class="figure"' if text[:1] in "0123456789<" else ""
    return f"<td{kind}>{escape(text)}</td>"


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def _svg(wide: float, high: float, marks: Sequence[str]) -> str:
    size = f'viewBox="0 0 {wide:.0f} {high:.0f}" width="{wide / 16:.2f}rem"'
    return f'<svg aria-hidden="true" {size}>{"".join(marks)}</svg>'
