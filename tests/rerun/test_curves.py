"""The figures of the experiments against their definitions."""

from itertools import pairwise
from math import log2
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway import InputError
from cutaway.features.measure import svg
from cutaway.rerun import Estimate, bands
from cutaway.rerun.statistics import divergence, estimate, surprise

ROWS = st.integers(0, 2**32 - 1).map(
    lambda seed: np.random.default_rng(seed).normal(size=(2, 3, 7)).astype(np.float32) * 5
)


def probabilities(row):
    weights = [np.exp(float(z) - float(max(row))) for z in row]
    return [w / sum(weights) for w in weights]


@given(ROWS)
def test_divergence_is_the_sum_that_defines_it(rows):
    for of, under, got in zip(*rows, divergence(*rows), strict=True):
        p, q = probabilities(of), probabilities(under)
        expected = sum(a * log2(a / b) for a, b in zip(p, q, strict=True))
        assert got == pytest.approx(expected, abs=1e-9)


@given(ROWS)
def test_a_row_does_not_diverge_from_itself_or_from_itself_shifted(rows):
    assert divergence(rows[0], rows[0]).tolist() == [0, 0, 0]
    np.testing.assert_allclose(divergence(rows[0], rows[0] + np.float32(3)), 0, atol=1e-6)


@given(ROWS)
def test_surprise_is_minus_log2_p(rows):
    expected = [-log2(probabilities(row)[i]) for row, i in zip(rows[0], (6, 0, 3), strict=True)]
    assert surprise(rows[0], (6, 0, 3)) == pytest.approx(expected)


@given(st.integers(1, 300))
def test_bands_contain_every_position_once_and_double(length):
    every = bands(length)
    assert [i for band in every for i in range(length)[band]] == list(range(length))
    widths = [band.stop - band.start for band in every]
    assert widths[:1] == [1]
    assert all(b in (1, 2 * a) for a, b in pairwise(widths[1:-1]))


def test_an_estimate_contains_the_mean_and_is_the_same_each_time():
    values = np.random.default_rng(1).normal(3, 1, 100)
    once = estimate(values)
    assert once == estimate(values)
    assert once.low < once.mean == values.mean() < once.high
    # of a mean of 100, 95 % lies within about two tenths of the deviation
    assert once.high - once.low == pytest.approx(2 * 1.96 * values.std() / 10, rel=0.1)


def test_a_constant_is_certain():
    flat = estimate(np.full(5, 2.5))
    assert (flat.low, flat.mean, flat.high) == (2.5, 2.5, 2.5)


# -- the drawing: all of it inside, bits upwards, names as they are ----------------------------

BITS = st.floats(-30, 30)


def points(drawing):
    root = ElementTree.fromstring(drawing)
    for line in root.iterfind(".//{*}polyline"):
        yield [tuple(map(float, point.split(","))) for point in line.get("points").split()]


@given(st.integers(1, 200), st.data())
def test_points_are_inside_from_left_to_right_and_more_bits_are_higher(length, data):
    parts = bands(length)
    row = st.lists(BITS, min_size=len(parts), max_size=len(parts))
    curves = {name: [Estimate(v, v - 1, v + 1) for v in data.draw(row)] for name in "ab"}
    drawn = list(points(svg.chart("title", "tokens", parts, curves)))
    assert [len(line) for line in drawn] == [len(parts)] * 2
    for line, curve in zip(drawn, curves.values(), strict=True):
        assert all(0 <= x <= 720 and 0 <= y <= 360 for x, y in line)
        xs = [x for x, _ in line]
        assert xs == sorted(set(xs))
        by_bits = sorted(zip((e.mean for e in curve), (y for _, y in line), strict=True))
        heights = [-y for _, y in by_bits]
        assert heights == sorted(heights)


def test_names_are_text():
    drawing = svg.chart("<b>", "&", bands(3), {"<script>": [Estimate(1, 1, 1)] * 3})
    shown = [element.text for element in ElementTree.fromstring(drawing).iter()]
    assert {"<b>", "&", "<script>"} <= set(shown)


def test_a_file_that_cannot_be_written_is_an_error(tmp_path):
    with pytest.raises(InputError, match=r"--svg: .* cannot be written: Is a directory"):
        svg.write(str(tmp_path), "")
