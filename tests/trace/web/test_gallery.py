"""The gallery: its lessons have the same bytes each time, and each is read in a browser.

The canvas needs no download, and is built in the usual run; all ten are in the slow one.
"""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "docs" / "site"))  # which is no package

import gallery
from gallery_figures import cards, index
from gallery_lessons import LESSONS


@pytest.fixture(scope="module")
def canvas():
    return gallery.make(["canvas"], threads=1)


def test_a_lesson_has_the_same_bytes_each_time(canvas, tmp_path):
    sizes = gallery.write(canvas, tmp_path / "one")
    again = gallery.write(gallery.make(["canvas"], threads=2), tmp_path / "two")
    one, two = ((tmp_path / name / "canvas.html").read_bytes() for name in ("one", "two"))
    assert one == two
    assert sizes == again == {"canvas": len(one)}
    assert len(one) < gallery.MOST


def test_what_is_not_there_is_named():
    with pytest.raises(SystemExit, match="no lesson 'luck'; they are temperature, stages"):
        gallery.make(["canvas", "luck"])
    assert gallery.main([]) == 2


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (390, "dark")])
def test_a_lesson_is_read(open_page, canvas, tmp_path, width, scheme):
    gallery.write(canvas, tmp_path)
    read(open_page, canvas, tmp_path, width, scheme)


def read(open_page, lessons, folder, width, scheme, *, thorough=False):
    """Go through every sentence by keyboard: it is marked, and its panel has content.

    thorough: axe looks at the panel after each of them
    """
    for lesson in lessons:
        page = open_page((folder / f"{lesson.name}.html").as_uri(), width, 844, color_scheme=scheme)
        page.settle()
        guide = page.tab.locator("run-guide")
        assert guide.locator("h2").inner_text() == lesson.title
        assert not page.barriers(), lesson.name
        following = guide.get_by_role("button", name="Next →")
        following.focus()
        for number, point in enumerate(lesson.points):
            if number:
                page.press("Enter")
                page.settle()
            shown = guide.locator("[aria-current]")
            assert shown.inner_text() == point.text
            assert shown.is_visible()
            panel = page.tab.get_by_role("tabpanel")
            if point.shows.get("panel") == "inside":
                panel.get_by_text("recomputed bit for bit").wait_for()
                page.settle()
            assert page.step == point.shows.get("step", 0)
            assert len(panel.inner_text()) > 40, (lesson.name, point.text)
            assert page.tab.evaluate("() => document.documentElement.scrollWidth") <= width
            if thorough or number + 1 == len(lesson.points):
                assert not page.barriers("panel-tabs"), (lesson.name, point.text)
        assert following.is_disabled()
        assert guide.get_by_text(lesson.answer).is_visible()
        assert not page.tab.locator("#notice").inner_text()


def test_the_index_has_a_card_for_each(open_page, canvas, tmp_path):
    tmp_path.joinpath("index.html").write_text(index(canvas), "utf-8")
    gallery.write(canvas, tmp_path)
    for width, scheme in ((1400, "light"), (390, "dark")):
        page = open_page((tmp_path / "index.html").as_uri(), width, color_scheme=scheme)
        assert not page.barriers()
        assert page.tab.evaluate("() => document.documentElement.scrollWidth") <= width
        assert page.tab.locator(".figure").get_attribute("aria-label") == canvas[0].words
        page.press("Tab", "Enter")
        page.tab.wait_for_url("**/canvas.html*")
        page.tab.get_by_role("link", name="All lessons").click()
        page.tab.wait_for_url("**/index.html")
    assert "\n\n" not in cards(canvas)  # which would end a block of HTML in Markdown


@pytest.mark.slow
@pytest.mark.model
def test_all_ten(open_page, tmp_path, smollm2_path):
    lessons = gallery.make()
    assert [lesson.name for lesson in lessons] == [*LESSONS]
    assert len(lessons) == 10
    sizes = gallery.write(lessons, tmp_path)
    assert max(sizes.values()) < gallery.MOST
    read(open_page, lessons, tmp_path, 1400, "dark", thorough=True)
    read(open_page, lessons, tmp_path, 390, "light", thorough=True)
    for again in gallery.make(["induction", "tool-call"], threads=1):
        first = lessons[[*LESSONS].index(again.name)]
        assert recorded(again) == recorded(first)


def recorded(lesson):
    """All of a lesson but where its runs were written."""
    return lesson._replace(runs=[(run.trace.sha256, run.name, run.looks) for run in lesson.runs])


def test_bits_do_not_depend_on_what_was_written_before(canvas):
    (lesson,) = canvas
    assert {run.trace.head.tier for run in lesson.runs} == {"any"}
    assert {run.trace.end.usage["cached_tokens"] for run in lesson.runs} == {0}
    assert {step.phases.run for run in lesson.runs for step in run.trace.steps} == {0.0}
