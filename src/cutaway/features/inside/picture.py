"""A look in a notebook: the tinted text, a map of heads, attributions part by part, the lens.

Pictures are static HTML and SVG, without scripts or style sheets: they do not affect each other,
and fetch nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cutaway.features.inside.lens import LensRow
from cutaway.trace.figures import percent, phrase
from cutaway.trace.html import Markup, heat, tag

Floats = NDArray[np.float64]
_CELL, _FALL, _BAR = (16, 12), 120, 9  # pixels
_MONO = "font-family:ui-monospace,Menlo,Consolas,monospace"


@dataclass(frozen=True, slots=True)
class Picture:
    """The contents of a look's picture.

    title, proof  a sentence on the step, and a sentence on its row
    tokens   the text before the step: each token with its mean weight and the sum of its
             attributions
    heads    (layers, heads): the attributions of heads
    parts    attributions by name, in order; with biases and rounding they add up to the total
    """

    title: str
    proof: str
    tokens: Sequence[str]
    weights: Floats
    attributions: Floats
    heads: Floats
    parts: Mapping[str, float]
    lens: Sequence[LensRow]

    def html(self) -> Markup:
        """Write the picture."""
        return tag(
            "div",
            tag("p", tag("b", self.title)),
            self._text(),
            _note("attention is no effect"),
            _head("Attribution of each head: layers across, heads down; outlined: negative"),
            self._map(),
            _head("Attribution of each part, in logits"),
            self._fall(),
            _note("attribution is no effect"),
            _head("Logit lens: what the output head would predict after each layer"),
            self._lens(),
            _note("not said"),
            tag("p", self.proof, style=_MONO),
            style="font:13px sans-serif;max-width:60em",
        )

    def _text(self) -> Markup:
        chips = [
            tag(
                "span", token or "∅",
                title=f"position {i}: {percent(weight)}, attribution {value:+.3f}",
                style=_tint(weight) + "white-space:pre-wrap",
            )
            for i, (token, weight, value) in enumerate(
                zip(self.tokens, self.weights, self.attributions, strict=True)
            )
        ]  # fmt: skip
        return tag("p", *chips, style=f"{_MONO};line-height:1.8;overflow-wrap:anywhere")

    def _map(self) -> Markup:
        layers, count = self.heads.shape
        wide, high = _CELL
        largest = float(np.abs(self.heads).max(initial=0)) or 1.0
        cells = [
            _cell(layer * wide, head * high, float(self.heads[layer, head]), largest,
                  f"L{layer}.H{head}: attribution {self.heads[layer, head]:+.3f}")
            for layer in range(layers)
            for head in range(count)
        ]  # fmt: skip
        return _svg(layers * wide, count * high, "The attributions of all heads", cells)

    def _fall(self) -> Markup:
        ends = np.concatenate([[0.0], np.cumsum([*self.parts.values()])])
        low, high = float(ends.min()), float(ends.max())
        y = (high - ends) / ((high - low) or 1.0) * (_FALL - 4) + 2
        bars = [
            tag("rect", tag("title", f"{name}: attribution {value:+.3f}"), x=i * _BAR,
                y=f"{min(y[i], y[i + 1]):.1f}", width=_BAR - 1,
                height=f"{max(abs(y[i + 1] - y[i]), 1):.1f}",
                fill="#4a7fb0" if value >= 0 else "none", stroke="#4a7fb0")
            for i, (name, value) in enumerate(self.parts.items())
        ]  # fmt: skip
        at = f"{y[0]:.1f}"
        zero = tag("line", x1=0, x2=len(bars) * _BAR, y1=at, y2=at, stroke="#888888")
        return _svg(len(bars) * _BAR, _FALL, "Attributions that add up", [zero, *bars])

    def _lens(self) -> Markup:
        names = ("layer", "likeliest", "p", "rank", "drawn")
        rows = [tag("tr", *(tag("th", name) for name in names))]
        for row in self.lens:
            cells = (
                "before" if row.layer < 0 else f"L{row.layer}", repr(row.token),
                percent(row.probability), f"{row.rank:,}",
                "–" if row.drawn_token is None else repr(row.drawn_token),
            )  # fmt: skip
            rows.append(tag("tr", *(tag("td", cell, style=_MONO) for cell in cells)))
        return tag("table", *rows)


def _cell(x: int, y: int, value: float, largest: float, title: str) -> Markup:
    wide, high = _CELL
    share = (abs(value) / largest) ** 0.5
    size = {"width": wide - 1, "height": high - 1, "fill": heat(share), "stroke": "#8888"}
    rect = tag("rect", tag("title", title), x=x, y=y, **size)
    if value >= 0:
        return rect
    line = tag("line", x1=x + 1, x2=x + wide - 2, y1=y + high - 2, y2=y + 1, stroke="currentColor")
    return tag("g", rect, line)


def _svg(width: int, height: int, label: str, content: Sequence[Markup]) -> Markup:
    return tag(
        "svg", *content, viewBox=f"0 0 {width} {height}", width=width, height=height,
        role="img", aria_label=label, style="max-width:100%;display:block",
    )  # fmt: skip


def _tint(weight: float) -> str:
    share = max(float(weight), 0.0) ** 0.5
    return f"background:{heat(share)};"


def _head(text: str) -> Markup:
    return tag("p", tag("b", text))


def _note(name: str) -> Markup:
    return tag("p", phrase(name), style="opacity:.75")
