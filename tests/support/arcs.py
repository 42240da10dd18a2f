"""The arcs over a text of the page, where they are drawn."""

import numpy as np
import pytest

THICK = 16  # pixels of an arc whose weight is 1
_READ = """([within, tokens]) => {
    const arcs = [...document.querySelectorAll(`${within} .arcs-layer .arc`)].map((arc) => {
        const point = (length) => arc.getPointAtLength(length);
        const ends = [0, arc.getTotalLength()].map(point);
        const places = ends.map((end) => end.matrixTransform(arc.getScreenCTM()));
        return [Number(arc.getAttribute("stroke-width")), ...places.map(({x, y}) => [x, y])];
    });
    const widest = (token) => [...token.getClientRects()].sort((a, b) => b.width - a.width)[0];
    const boxes = [...document.querySelectorAll(tokens)].map(widest); // spaces may be a line above
    return [arcs, boxes.map(({left, right, top, bottom}) => [left, top, right, bottom])];
}"""


def check_arcs(page, tokens, weights, origin, across=0.0, within=""):
    """Check that arcs lead from a token to those of the eight largest weights, as thick as these.

    tokens: a selector; origin: the index of the token where the arcs begin, ``across`` of its width
    within: a selector of the text, where there may be others
    """
    arcs, boxes = page.tab.evaluate(_READ, [within, tokens])
    weights = np.asarray(weights)
    largest = [i for i in np.argsort(-np.abs(weights), kind="stable")[:8] if weights[i]]
    thick = THICK * np.abs(weights[largest])
    assert [width for width, *_ in arcs] == pytest.approx(thick, abs=0.002)
    left, top, right, bottom = boxes[origin]
    begins = left + across * (right - left), {top, bottom}
    for position, (_, (x0, y0), (x, y)) in zip(largest, arcs, strict=True):
        left, top, right, bottom = boxes[position]
        assert (x0, x) == pytest.approx((begins[0], (left + right) / 2), abs=0.2)
        assert min(abs(y0 - edge) for edge in begins[1]) < 0.2
        assert min(abs(y - top), abs(y - bottom)) < 0.2
