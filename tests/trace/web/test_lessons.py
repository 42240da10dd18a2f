"""The lessons of the package: each is read in a browser, from files and from a server."""

import pytest

from cutaway.features.lessons import LESSONS
from cutaway.features.lessons.lesson import read
from cutaway.features.lessons.pages import index, write


def dealt(way):
    """Each lesson, and the points at which axe looks: every second, from the first or the next.

    Both ways of reading show the same panels, in two schemes: usual runs look at each point in one
    of the two, at the first of a lesson and the whole page in turn; slow runs, at all in both. Axe
    takes three quarters of the time.
    """
    return [
        pytest.param(name, points, marks=marks, id=f"{name}{'-all' * bool(marks)}")
        for i, name in enumerate(LESSONS)
        for points, marks in (
            (slice((i + way) % 2, None, 2), ()), (slice(None), pytest.mark.slow),
        )
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "points"), dealt(0))
def test_a_lesson_is_read(open_page, tmp_path, name, points):
    write(tmp_path, [name])
    address = tmp_path.joinpath(f"{name}.html").as_uri()
    read_through(open_page, address, read(name), points, 1400, "light")


@pytest.mark.parametrize(("name", "points"), dealt(1))
def test_a_served_lesson_is_read_on_a_phone(open_page, tiny_server, name, points):
    address = f"{tiny_server.url}/lessons/{name}"
    read_through(open_page, address, read(name), points, 390, "dark")


def read_through(open_page, address, lesson, points, width, scheme):
    """Go through every sentence by keyboard: it is marked, and its panel has content."""
    page = open_page(address, width, 844, color_scheme=scheme)
    page.settle()
    guide = page.tab.locator("run-guide")
    assert guide.locator("h2").inner_text() == lesson.title
    following = guide.get_by_role("button", name="Next →")
    following.focus()
    looked_at = range(len(lesson.points))[points]
    for number, point in enumerate(lesson.points):
        if number:
            page.press("Enter")
            page.settle()
        current = guide.locator("[aria-current]")
        assert current.inner_text() == point.text
        assert current.is_visible()
        panel = page.tab.get_by_role("tabpanel")
        if point.shows.get("panel") == "inside":
            panel.get_by_text("recomputed bit for bit").wait_for()
            page.settle()
        assert page.step == point.shows.get("step", 0)
        assert len(panel.inner_text()) > 40, point.text
        assert page.tab.evaluate("() => document.documentElement.scrollWidth") <= width
        if number in looked_at:
            around = "panel-tabs" if number else None  # the whole page once
            assert not page.barriers(around), point.text
    assert following.is_disabled()
    assert guide.get_by_text(lesson.answer).is_visible()
    assert not page.tab.locator("#notice").inner_text()


def test_the_index_has_a_card_for_each(open_page, tmp_path):
    tmp_path.joinpath("index.html").write_text(index({}), "utf-8")
    write(tmp_path, ["canvas"])
    for width, scheme in ((1400, "light"), (390, "dark")):
        page = open_page((tmp_path / "index.html").as_uri(), width, color_scheme=scheme)
        assert not page.barriers()
        assert page.tab.evaluate("() => document.documentElement.scrollWidth") <= width
        captions = [
            page.tab.locator(".figure").nth(n).get_attribute("aria-label")
            for n in range(len(LESSONS))
        ]
        assert captions == [read(name).caption for name in LESSONS]
        page.tab.get_by_role("link", name=read("canvas").title).press("Enter")
        page.tab.wait_for_url("**/canvas.html*")
        page.tab.get_by_role("link", name="All lessons").click()
        page.tab.wait_for_url("**/index.html")


def test_the_first_screen_leads_to_the_lessons_and_back(open_page, tiny_server):
    page = open_page(tiny_server.url)
    page.wait_for_runs()
    page.tab.locator("first-look").get_by_role("link", name="Lessons").click()
    page.tab.wait_for_url("**/lessons")
    names = [*LESSONS][:2]
    first, second = (read(name).title for name in names)
    page.tab.get_by_role("link", name=first).click()
    page.tab.wait_for_url(f"**/lessons/{names[0]}*")
    page.tab.get_by_role("link", name=f"Next: {second}").click()
    page.tab.wait_for_url(f"**/lessons/{names[1]}*")
    page.tab.get_by_role("link", name="All lessons").click()
    page.tab.wait_for_url("**/lessons")
    page.tab.get_by_role("link", name="The page").click()
    page.tab.wait_for_url(lambda url: "/lessons" not in url)
    page.wait_for_runs()


def test_the_cost_of_no_cache_is_measured_on_the_readers_machine(open_page, tiny_server):
    page = open_page(f"{tiny_server.url}/lessons/cache")
    page.settle()
    page.tab.get_by_role("link", name="Measure it on this machine").click()
    page.tab.wait_for_url(lambda url: "/lessons/" not in url)
    page.wait_for_runs(2)
    ways = page.tab.get_by_role("tabpanel", name="Timelines").locator("text-ways")
    sentence = ways.locator("p").inner_text()
    assert sentence.startswith("Written without the KV cache")
    assert "Run 1 is the same text with the KV cache" in sentence
