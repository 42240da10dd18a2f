"""The colour of measures: on the page's own backgrounds and on a terminal's, text stays legible."""

import re
from pathlib import Path

import pytest

import cutaway.trace
from cutaway.trace.html import MOST, ORANGE, heat, heat_of_text

STYLE = (Path(cutaway.trace.__file__).parent / "web" / "style.css").read_text()
LEVELS = [i / 16 for i in range(17)]


def luminance(colour):
    parts = (c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour)
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), parts, strict=True))


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def named(name):
    """The colours of this name in the page's style sheet: in light, then in dark."""
    found = re.findall(rf"--{name}: #([0-9a-f]{{6}});", STYLE)
    return [bytes.fromhex(value) for value in found[:2]]


def over(paper, share):
    opacity = MOST * share
    return [back + (front - back) * opacity for back, front in zip(paper, ORANGE, strict=True)]


SCHEMES = list(zip(named("paper"), named("ink"), strict=True))


@pytest.mark.parametrize(("paper", "ink"), SCHEMES, ids=["light", "dark"])
def test_text_is_legible_on_every_level_and_the_levels_grow_from_the_background(paper, ink):
    backgrounds = [over(paper, share) for share in LEVELS]
    assert all(contrast(ink, back) >= 4.5 for back in backgrounds)
    steps = [contrast(paper, back) for back in backgrounds]
    assert steps[0] == 1
    assert steps == sorted(steps)
    assert steps[-1] >= 3


@pytest.mark.parametrize("paper", [(0, 0, 0), (255, 255, 255)])
def test_text_in_a_terminal_is_legible_on_black_and_on_white(paper):
    assert all(contrast(paper, heat_of_text(share)) >= 3 for share in LEVELS)


def test_shares_beyond_the_scale_have_its_ends():
    assert heat(-1) == heat(0) == "rgb(217 72 1 / 0)"
    assert heat(2) == heat(1) == "rgb(217 72 1 / 0.82)"
