"""How ratios grow with context and with size: an SVG of the results that compare.py printed.

    python bench/compare.py -m 1B.gguf --measure all … | tail -1 > 1b.json
    python bench/growth.py docs/growth.svg 135m.json 1b.json 8b.json [--peer llama]

Left: decoding by the peer at each context, a curve a model. Right: each measurement by the peer at
each size. Points are medians of paired ratios, bars the lowest and the highest of them.
"""

import json
from collections.abc import Mapping
from html import escape
from math import ceil, log2
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from peers.goals import METRICS
from peers.table import Column, ratios
from script import parser_of

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM, _GAP = 420, 300, 44, 48, 260, 60
_LOOKS = (("#0072b2", "none"), ("#d55e00", "6 3"), ("#009e73", "2 3"), ("#cc79a7", "8 3 2 3"))
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#222}.grid{stroke:#ddd}"
    "polyline{fill:none;stroke-width:2}.range{stroke-width:1;opacity:.6}"
)
_BY_SIZE = ("decode64", "batch8", "batch32", "prefill")


class Point(NamedTuple):
    """A median ratio at a context or a size, with the lowest and highest of its rounds."""

    x: float
    middle: float
    low: float
    high: float


Curves = dict[str, list[Point]]


def curves(results: list[dict[str, Any]], peer: str) -> tuple[Curves, Curves]:
    """Return curves over contexts, one a model, and over parameters, one a metric. A curve needs
    two points."""
    by_context: Curves = {}
    by_size: Curves = {}
    for result in sorted(results, key=lambda r: float(r["parameters"])):
        columns = [Column(**engine) for engine in result["engines"]]
        other = next((c for c in columns if c.kind == peer and not c.other_format), None)
        for metric in METRICS if other else ():
            assert other is not None
            found = ratios(columns[0], other, metric)
            command: Mapping[str, Any] = metric.command or {}
            if not found:
                continue
            values = median(found), min(found), max(found)
            if command.get("batch") == 1:
                point = Point(command["context"], *values)
                by_context.setdefault(result["model"], []).append(point)
            if metric.name in _BY_SIZE:
                by_size.setdefault(metric.title, []).append(Point(result["parameters"], *values))
    return by_context, by_size


def drawing(by_context: Curves, by_size: Curves, peer: str) -> str:
    """Draw both panels as SVG."""
    width = 2 * _WIDTH + _GAP
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {_HEIGHT}" role="img">',
        f"<title>cutaway by {escape(peer)}</title><style>{_STYLE}</style>",
        f'<rect width="{width}" height="{_HEIGHT}" fill="#fff"/>',
        *_panel(f"one stream by {peer}, at contexts", by_context, 0, "{:,.0f}", 1),
        *_panel(f"by {peer}, at billions of parameters", by_size, _WIDTH + _GAP, "{:.2g}", 1e9),
        "</svg>\n",
    ])  # fmt: skip


def _panel(title: str, lines: Curves, shift: int, form: str, unit: float) -> list[str]:
    points = [point for curve in lines.values() for point in curve]
    if not points:
        return []
    xs = sorted({point.x for point in points})
    span = max(log2(xs[-1] / xs[0]), 1e-9)
    top = ceil(max(point.high for point in points))

    def x(value: float) -> float:
        return round(_LEFT + 16 + (_WIDTH - _LEFT - 32) * log2(value / xs[0]) / span, 1)

    def y(value: float) -> float:
        return round(_BOTTOM - (_BOTTOM - _TOP - 14 * len(lines)) * value / top, 1)

    parts = [f'<g transform="translate({shift})">',
             f'<text x="{_LEFT}" y="16" font-weight="bold">{escape(title)}</text>']  # fmt: skip
    for i in range(0, top + 1, ceil(top / 8)):
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH}" y1="{y(i)}" y2="{y(i)}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y(i) + 4}" text-anchor="end">{i}×</text>')
    parts += [f'<text x="{x(value)}" y="{_BOTTOM + 18}" text-anchor="middle">'
              f"{form.format(value / unit)}</text>" for value in xs]  # fmt: skip
    for i, (name, curve) in enumerate(lines.items()):
        colour, dashes = _LOOKS[i % len(_LOOKS)]
        line = " ".join(f"{x(p.x)},{y(p.middle)}" for p in curve)
        parts += [f'<g stroke="{colour}">',
                  f'<line x1="{_LEFT}" x2="{_LEFT + 24}" y1="{28 + 14 * i}" y2="{28 + 14 * i}" '
                  f'stroke-width="2" stroke-dasharray="{dashes}"/>',
                  *(f'<line class="range" x1="{x(p.x)}" x2="{x(p.x)}" y1="{y(p.low)}" '
                    f'y2="{y(p.high)}"/>' for p in curve),
                  f'<polyline points="{line}" stroke-dasharray="{dashes}"/></g>',
                  f'<text x="{_LEFT + 30}" y="{32 + 14 * i}">{escape(name)}</text>']  # fmt: skip
    return [*parts, "</g>"]


def main() -> None:
    parser = parser_of(__doc__, model=False)
    parser.add_argument("svg", type=Path)
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--peer", default="llama", help="a kind of engine")
    args = parser.parse_args()
    results = [json.loads(path.read_text()) for path in args.results]
    titles = (e["title"] for r in results for e in r["engines"] if e["kind"] == args.peer)
    args.svg.write_text(drawing(*curves(results, args.peer), next(titles, args.peer)))


if __name__ == "__main__":
    main()
