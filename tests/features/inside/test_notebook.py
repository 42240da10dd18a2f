"""A look in a notebook shows every figure; it runs and fetches nothing."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest

from cutaway import LLM
from cutaway.features.inside.look import inside
from cutaway.trace import Trace
from cutaway.trace.figures import percent

HOSTILE = '<img src=x onerror=alert(1)>&amp;"\x1b[2J\u202e'
STEP = 3


@pytest.fixture(scope="module")
def look(small_path, tmp_path_factory):
    folder = tmp_path_factory.mktemp("notebook")
    llm = LLM(small_path)
    llm.generate(HOSTILE, seed=3, max_tokens=6, trace=folder / "run.jsonl", ignore_eos=True)
    return inside(llm, Trace.read(folder / "run.jsonl"), STEP)


class Read(HTMLParser):
    """Elements by name, with their attributes, and whatever is text."""

    def __init__(self, page):
        super().__init__()
        self.elements, self.text, self.open = [], "", []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_it_is_static_and_two_can_be_on_one_page(look):
    page = look._repr_html_()
    read = Read(page + look._repr_html_())
    allowed = {"div", "p", "b", "span", "svg", "rect", "line", "g", "title",
               "table", "tr", "th", "td"}  # fmt: skip
    assert {tag for tag, _ in read.elements} == allowed
    names = {name for _, attributes in read.elements for name in attributes}
    assert not {n for n in names if n.startswith("on") or n in ("id", "class", "href", "src")}
    assert "url(" not in page and "http" not in page
    assert "\x1b" not in page and "\u202e" not in page
    assert "<img" not in page and "&lt;" in page
    assert page == look._repr_html_()


def test_every_figure_is_shown(look):
    read, found, lens = Read(look._repr_html_()), look.logit_attribution(), look.lens(1)
    titles = [a["title"] for tag, a in read.elements if tag == "span"]
    weights, attributions = look.weights.mean(axis=(0, 1)), found.positions.sum(axis=(0, 1))
    assert titles == [
        f"position {i}: {percent(weight)}, attribution {attribution:+.3f}"
        for i, (weight, attribution) in enumerate(zip(weights, attributions, strict=True))
    ]
    for layer, head in np.ndindex(found.heads.shape):
        assert f"L{layer}.H{head}: attribution {found.heads[layer, head]:+.3f}" in read.text
    for name, attribution in found.parts.items():
        assert f"{name}: attribution {attribution:+.3f}" in read.text
    assert f"rounding: attribution {found.rounding:+.3f}" in read.text
    assert sum(tag == "tr" for tag, _ in read.elements) == 1 + len(lens.rank)
    for rank in lens.rank:
        assert re.search(rf"\b{rank:,}\b", read.text)
    assert f": {found.total:+.3f}" in read.text
    assert f"recomputed bit for bit: row hash {look.row_hash:016x}" in read.text
    for words in ("Attention is not effect", "Attribution is not the effect", "until they settle"):
        assert words in read.text


def test_a_tint_is_of_the_scale_and_the_text_keeps_its_colour(look):
    tinted = re.findall(r'style="background:([^;]*);([^"]*)"', look._repr_html_())
    assert len(tinted) == len(look.token_ids)
    for colour, others in tinted:
        assert colour.startswith("rgb(217 72 1 / ")
        assert "color" not in others
