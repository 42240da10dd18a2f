"""The drawing of curves: all of it inside, bits upwards, names as they are."""

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway import InputError
from cutaway.features.measure import svg
from cutaway.rerun import Estimate, bands

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
