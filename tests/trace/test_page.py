"""The page: it fetches nothing, runs only its own script, and a token is never markup."""

import re
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cutaway.trace
from cutaway.trace import to_html
from cutaway.trace.html import (
    MAX_OPACITY,
    ORANGE,
    Chip,
    Markup,
    heat,
    heat_of_text,
    strip,
    tag,
    text,
)
from support.made_traces import read_embedded
from support.trace_by_hand import made_text, made_trace

EMPTY = {"meta", "br"}
HOSTILE = {
    1: "</span></style><script>alert(1)</script>",
    2: '"><img src=x onerror=alert(1)>',
    3: "&amp;<!--",
    4: "\u202egnp.exe\x00\x1b[31m",
    5: "]]>'\"",
}


class Reader(HTMLParser):
    """Insists on balance, and keeps what it read."""

    def __init__(self, page):
        super().__init__()
        self.open, self.tags, self.text = [], [], []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, name, attributes):
        self.tags.append((name, dict(attributes)))
        if name not in EMPTY:
            self.open.append(name)

    def handle_endtag(self, name):
        assert self.open.pop() == name

    def handle_data(self, data):
        self.text.append(data)

    def texts(self, class_):
        found = [a for _, a in self.tags if class_ in (a.get("class") or "").split()]
        assert found
        return found


def everything(page):
    """No element or attribute that could run or fetch anything."""
    read = Reader(page)
    names = {name for name, _ in read.tags}
    assert not names & {"script", "img", "link", "iframe", "object", "embed", "form", "base", "a"}
    for _, attributes in read.tags:
        assert not [name for name in attributes if name.startswith("on") or name == "src"]
        assert "url(" not in (attributes.get("style") or "")
    return read


@pytest.mark.parametrize("reason", ["max_tokens", None])
def test_what_is_in_a_trace_is_data(reason):
    trace = made_text(*HOSTILE, names=HOSTILE, model="<b>model</b>", reason=reason)
    page = to_html(trace)
    read = Reader(page)
    scripts = [a for name, a in read.tags if name == "script"]
    data = [{"type": "application/json", "id": name} for name in ("catalogue", "looks")]
    runs = {"class": "trace", "id": "trace-1", "data-name": "cutaway: <b>model</b>, seed 7"}
    assert scripts == [data[0], {"type": "application/json"} | runs, data[1], {"type": "module"}]
    assert not {name for name, _ in read.tags} & {"b", "img", "link"}
    shown = read_embedded(page)
    assert (shown.head, shown.steps, shown.end) == (trace.head, trace.steps, trace.end)
    assert [shown.name_of(i) for i in HOSTILE] == list(HOSTILE.values())


def test_only_scripts_of_the_file_may_run():
    page = to_html(made_text(1, 2))
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy.startswith("default-src 'none'; ")
    for name, pattern in (("script", r'"module">(.*?)</script'), ("style", "<style>(.*?)</style")):
        (inside,) = re.findall(pattern, page, re.DOTALL)
        digest = b64encode(sha256(inside.encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in policy
    assert not re.findall(
        r"""(?:src|href)=["']|url\(|@import|\bfetch\(["']http""", page.split("<script")[0]
    )


def test_a_trace_without_steps_has_a_page():
    assert read_embedded(to_html(made_trace([], None))).steps == ()
    assert everything(made_trace([], None)._repr_html_())


def test_a_notebook_shows_a_trace():
    read = everything(made_text(*HOSTILE, names=HOSTILE)._repr_html_())
    assert "body" not in {name for name, _ in read.tags}
    assert len(read.texts("t")) >= 5
    assert HOSTILE[2] in read.text


@given(st.lists(st.tuples(st.text(), st.none() | st.floats(0, 20)), max_size=5))
def test_a_strip_shows_its_tokens_and_nothing_else(tokens):
    read = everything(strip(Chip(shown, bits, title=shown) for shown, bits in tokens))
    visible = [str(text(shown)) for shown, _ in tokens]
    assert len(read.texts("strip")) == 1
    assert tag("p", "".join(read.text)) == tag("p", *(Markup(v) if v else "∅" for v in visible))


def test_surprise_is_the_background():
    page = str(strip(Chip("x", bits) for bits in (0.0, 4.0, 8.0, 80.0)))
    assert [a["class"] for _, a in Reader(page).tags[1:]] == ["t s0", "t s8", "t s16", "t s16"]
    rules = made_text(1)._repr_html_()
    assert ".cutaway .s0{background:rgb(217 72 1 / 0)}" in rules
    assert ".cutaway .s16{background:rgb(217 72 1 / 0.82)}" in rules


@given(st.text(), st.text())
def test_content_and_attributes_survive_a_parser(content, title):
    read = Reader(tag("p", content, title=title))
    assert read.tags == [("p", {"title": _shown(title)})]
    assert "".join(read.text) == _shown(content)


def _shown(value):
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in value)


# -- colours: on any background a text stays legible -------------------------------------------

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
    opacity = MAX_OPACITY * share
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
