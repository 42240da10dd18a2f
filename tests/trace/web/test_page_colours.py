"""The page's colours: what is measured, chosen and negative are told apart, by everybody."""

import re
from itertools import combinations

import numpy as np
import pytest

from cutaway.features.page.folder import WEB

SIGHTS = {  # Machado, Oliveira and Fernandes 2009, of linear RGB
    "usual": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
}
TO_XYZ = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
WHITE = [0.9505, 1.0, 1.089]
APART = 20
"""Of CIELAB, in which 2.3 is a difference just seen."""


def schemes():
    """The variables of light, and of dark over them."""
    text = WEB.joinpath("style.css").read_text("utf-8")
    light, dark = re.findall(r":root \{(.*?)\n *\}", text, re.DOTALL)[:2]
    found = [dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block)) for block in (light, dark)]
    return {"light": found[0], "dark": found[0] | found[1]}


def linear(colour):
    values = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(colour, sight):
    x, y, z = np.cbrt(TO_XYZ @ np.clip(SIGHTS[sight] @ linear(colour), 0, 1) / WHITE)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_measured_chosen_and_negative_are_told_apart(scheme, sight):
    colours = schemes()[scheme]
    assert len(colours) > 10
    for one, other in combinations(("bar", "accent", "negative"), 2):
        distance = np.linalg.norm(lab(colours[one], sight) - lab(colours[other], sight))
        assert distance > APART, (one, other, distance)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_marks_stand_out_from_the_paper(scheme):
    """By 3 to 1, as WCAG 2.2 asks of what is not text."""
    colours = schemes()[scheme]

    def luminance(name):
        return 0.05 + np.dot(TO_XYZ[1], linear(colours[name]))

    for name in ("bar-final", "accent", "negative", "faint"):
        high, low = sorted((luminance(name), luminance("paper")), reverse=True)
        assert high / low >= 3, name
