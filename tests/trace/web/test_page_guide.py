"""A page of several runs with a guide: its sentences open places, also by keyboard and address."""

import pytest

from cutaway import LLM, InputError
from cutaway.features.inside import summary
from cutaway.features.inside.look import inside
from cutaway.rerun import branch
from cutaway.trace import Guide, Point, ShownRun, Trace, runs_to_html
from support.made_traces import read_embedded

SAID = "<b>the fork</b> & “more”"


@pytest.fixture(scope="module")
def runs(tiny_path, tmp_path_factory):
    """A run and its fork, with the inside of one step of the fork."""
    folder = tmp_path_factory.mktemp("runs")
    with LLM(tiny_path, threads=1) as llm:
        llm.generate("ab", trace=folder / "a", max_tokens=8, ignore_eos=True, temperature=1, seed=2)
        run = Trace.read(folder / "a")
        other = run.steps[3].observed.candidates[2].id
        branch(llm, run, 3, other, trace=folder / "b")
        fork = Trace.read(folder / "b")
        look = inside(llm, fork, 4)
        found = look, look.logit_attribution(), look.lens(1)
        told = summary.page_header(*found, llm.tokenizer.token_name, trace="", model=llm.name)
    return ShownRun(run, "as drawn"), ShownRun(fork, SAID, {4: summary.to_bytes(*found, told)})


@pytest.fixture
def address(runs, tmp_path):
    """Where the page of both runs is."""
    points = (
        Point("The first step.", 1, {}),
        Point(SAID, 2, {"step": 3, "candidate": 1}),
        Point("Inside.", 2, {"step": 4, "panel": "inside", "inside": {"head": (1, 0)}}),
        Point("Both.", 1, {"step": 3, "panel": "compare", "other": 2}),
    )
    guide = Guide("A title", "What is it?", points, "So it is.", {"All": "index.html"})
    page = tmp_path / "page.html"
    page.write_text(runs_to_html(runs, "A title", guide), "utf-8")
    return page.as_uri()


def panel(page):
    return (
        page.tab.get_by_role("tablist", name="Panels")
        .get_by_role("tab", selected=True)
        .inner_text()
    )


def test_its_sentences_open_places(open_page, address):
    page = open_page(address)
    page.settle()
    guide = page.tab.locator("run-guide")
    assert (page.step, panel(page)) == (0, "Step")
    assert guide.locator("[aria-current]").inner_text() == "The first step."
    following = guide.get_by_role("button", name="Next")
    following.focus()
    page.press("Enter")
    page.settle()
    assert page.step == 3
    assert (
        page.tab.get_by_label("Run", exact=True)
        .locator("option:checked")
        .inner_text()
        .startswith(SAID)
    )
    assert guide.locator("[aria-current]").inner_text() == SAID
    page.press("Enter")
    page.tab.locator("inside-panel").get_by_text("recomputed bit for bit").wait_for()
    page.settle()
    assert (page.step, panel(page)) == (4, "Inside")
    assert "L1.H0" in page.tab.locator("#heads-sentence").inner_text()
    page.press("Enter")
    page.settle()
    assert panel(page) == "Branches"
    assert following.is_disabled()
    assert "The first 3 tokens" in page.tab.locator("run-compare").inner_text()
    guide.get_by_role("link", name="The first step.").click()
    page.settle()
    assert (page.step, panel(page)) == (0, "Step")
    assert not page.tab.locator("run-guide b").count()


def test_each_is_an_address(open_page, address):
    page = open_page(address)
    link = page.tab.locator("run-guide").get_by_role("link", name="Inside.").get_attribute("href")
    page.tab.goto("about:blank")
    page.tab.goto(address + link)
    page.tab.locator("inside-panel").get_by_text("recomputed bit for bit").wait_for()
    page.settle()
    assert (page.step, panel(page)) == (4, "Inside")
    assert page.tab.locator("run-guide [aria-current]").inner_text() == "Inside."
    page.tab.get_by_role("tab", name="Branches").click()
    page.settle()
    assert page.tab.locator("branch-tree .branch").count() == 2


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (390, "dark")])
def test_no_serious_barrier(open_page, address, width, scheme):
    page = open_page(address, width, 844, color_scheme=scheme)
    page.settle()
    assert not page.barriers()
    guide = page.tab.locator("run-guide")
    for _ in range(3):
        guide.get_by_role("button", name="Next").click()
        page.settle()
        assert page.tab.evaluate("() => document.documentElement.scrollWidth") <= width
        assert guide.locator("[aria-current]").is_visible()
        assert page.tab.get_by_role("tabpanel").is_visible()
    assert not page.barriers("section.guide")
    assert guide.get_by_text("So it is.").is_visible()


def test_what_cannot_be_shown_is_refused(runs):
    with pytest.raises(InputError, match="one or more"):
        runs_to_html([], "none")
    guide = Guide("t", "q", (Point("far away", 3, {}),), "a")
    with pytest.raises(InputError, match="far away"):
        runs_to_html(runs, "two", guide)


def test_a_page_without_a_guide_has_none(runs):
    page = runs_to_html(runs[:1], "one")
    assert "<run-guide>" not in page
    assert read_embedded(page).steps == runs[0].trace.steps
