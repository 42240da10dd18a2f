"""Curves as an SVG file: positions along a logarithmic axis, bits upwards.

Knows shapes and colours that everybody can tell apart (Okabe and Ito's, with dashes). Refuses to
know what the curves show.
"""

from collections.abc import Mapping, Sequence
from html import escape
from math import floor, log2, log10
from pathlib import Path

from cutaway.errors import InputError
from cutaway.rerun import Estimate, span

_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 720, 360, 56, 40, 24, 48
_LOOKS = (("#0072b2", "none"), ("#d55e00", "6 3"), ("#009e73", "2 3"), ("#cc79a7", "8 3 2 3"))
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#222}.grid{stroke:#ddd}"
    "polyline{fill:none;stroke-width:2}.range{stroke-width:1;opacity:.6}"
)


def write(path: str, drawing: str) -> None:
    """Write a drawing to a file; InputError where the file cannot be written."""
    try:
        Path(path).write_text(drawing, encoding="utf-8")
    except OSError as error:
        raise InputError(f"--svg: {path} cannot be written: {error.strerror}") from error


def chart(title: str, x: str, bands: Sequence[slice], curves: Mapping[str, list[Estimate]]) -> str:
    """Draw named curves: one point per band of positions, with its interval."""
    estimates = [estimate for curve in curves.values() for estimate in curve]
    axes = _Axes(bands, min(0.0, *(e.low for e in estimates)), max(e.high for e in estimates))
    legend = (
        f'<line x1="{_LEFT + 150 * i}" x2="{_LEFT + 150 * i + 24}" y1="30" y2="30" stroke='
        f'"{_look(i)[0]}" stroke-width="2" stroke-dasharray="{_look(i)[1]}"/>'
        f'<text x="{_LEFT + 150 * i + 30}" y="34">{escape(name)}</text>'
        for i, name in enumerate(curves)
    )
    parts = [axes.curve(curve, *_look(i)) for i, curve in enumerate(curves.values())]
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
        f'<text x="{_LEFT}" y="16" font-weight="bold">{escape(title)}</text>',
        *legend,
        *axes.lines(x),
        *parts,
        "</svg>\n",
    ])  # fmt: skip


class _Axes:
    def __init__(self, bands: Sequence[slice], low: float, high: float) -> None:
        self._bands, self._low, self._high = bands, low, max(high, low + 1e-9)
        self._last = max(log2(bands[-1].stop), 1.0)

    def lines(self, x: str) -> list[str]:
        """Return the SVG of the grid, its numbers and the names of the bands, one tag per line."""
        unit = 10.0 ** floor(log10(self._high - self._low))
        step = next(s for s in (unit / 5, unit / 2, unit, unit * 2)
                    if (self._high - self._low) / s <= 8)  # fmt: skip
        ticks = range(floor(self._low / step), floor(self._high / step) + 1)
        lines = [
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{self._y(i * step)}" '
            f'y2="{self._y(i * step)}"/><text x="{_LEFT - 6}" y="{self._y(i * step)}" '
            f'text-anchor="end" dominant-baseline="middle">{i * step:g}</text>'
            for i in ticks
            if i * step >= self._low
        ]
        lines += [
            f'<text x="{self._x(band)}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">'
            f"{span(band)}</text>"
            for band in self._bands
        ]
        middle = (_LEFT + _WIDTH - _RIGHT) / 2
        label = f'<text x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(x)}</text>'
        return [*lines, label, f'<text x="8" y="{_TOP + 8}">bits</text>']

    def curve(self, estimates: list[Estimate], colour: str, dashes: str) -> str:
        """Return the SVG of a curve: a line through its points, and each point's interval."""
        at = [self._x(band) for band in self._bands]
        points = " ".join(f"{x},{self._y(e.mean)}" for x, e in zip(at, estimates, strict=True))
        ranges = "".join(
            f'<line class="range" x1="{x}" x2="{x}" y1="{self._y(e.low)}" y2="{self._y(e.high)}"/>'
            for x, e in zip(at, estimates, strict=True)
        )
        line = f'<polyline points="{points}" stroke-dasharray="{dashes}"/>'
        return f'<g stroke="{colour}">{ranges}{line}</g>'

    def _x(self, band: slice) -> float:
        """Return the x coordinate of a band's geometric middle."""
        middle = (log2(band.start + 1) + log2(band.stop)) / 2
        return round(_LEFT + 8 + (_WIDTH - _LEFT - _RIGHT - 16) * middle / self._last, 1)

    def _y(self, bits: float) -> float:
        share = (bits - self._low) / (self._high - self._low)
        return round(_HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP - 8) * share, 1)


def _look(i: int) -> tuple[str, str]:
    return _LOOKS[i % len(_LOOKS)]
