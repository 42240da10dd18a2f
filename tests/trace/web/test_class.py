"""The class in a browser: every paragraph is clicked, and shows the figures that it states."""

import re

import pytest

from cutaway.features.lessons.class_page import write_class
from cutaway.features.lessons.class_text import CHAPTERS
from cutaway.features.lessons.lesson import read
from cutaway.trace.web.bundle import ALONE, page_files

PARAGRAPHS = [paragraph for chapter in CHAPTERS for paragraph in chapter.paragraphs]
SHAPES = {
    "window": {"width": 1400, "height": 900},
    "projector": {"width": 1280, "height": 720},
    "phone": {"width": 390, "height": 844, "color_scheme": "dark"},
    "contrast": {"width": 1400, "height": 900, "forced_colors": "active"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The class and its lessons as files, as an exported page has them."""
    out = tmp_path_factory.mktemp("class")
    files = page_files(ALONE)
    (out / files.folder).mkdir(parents=True)
    for name, content in files.contents.items():
        (out / files.folder / name).write_bytes(content)
    write_class(out, files.folder)
    return out


@pytest.fixture(params=["served", "files"])
def address(request, hosted):
    """Where the class is, on a server and without one."""
    if request.param == "served":
        return f"{request.getfixturevalue('tiny_server').url}/class"
    return f"{hosted(request.getfixturevalue('folder'))}class.html"


@pytest.mark.parametrize(
    ("address", "dealt"),
    [
        ("served", slice(0, None, 2)), ("files", slice(1, None, 2)),
        *(pytest.param(way, slice(None), marks=pytest.mark.slow) for way in ("served", "files")),
    ],
    indirect=["address"],
    ids=["served", "files", "served-all", "files-all"],
)  # fmt: skip
def test_each_paragraph_opens_what_it_claims(open_page, address, dealt):
    """In one of two ways, which open the same lessons; slow, in both."""
    page = open_page(address)
    links = page.tab.get_by_role("link", name=re.compile("^See it"))
    assert links.count() == len(PARAGRAPHS)
    for number, paragraph in [*enumerate(PARAGRAPHS)][dealt]:
        article = page.tab.get_by_role("article", name=paragraph.title, exact=True)
        figures = article.locator(".figure").all_inner_texts()
        assert figures == re.findall(r"\{(.+?)\}", paragraph.text)
        links.nth(number).click()
        lesson = read(paragraph.lesson)
        point = lesson.points[paragraph.point - 1]
        shown = page.tab.locator("run-guide [aria-current]", has_text=point.text)
        shown.wait_for()  # not of the sentence that was marked before the address was read
        page.tab.locator("token-strip .chip[aria-current]").wait_for()  # its run has come, too
        page.settle()
        assert page.tab.locator("run-guide h2").inner_text() == lesson.title
        assert shown.inner_text() == point.text
        for figure in figures:
            assert figure in shown.inner_text(), (paragraph.title, figure)
        assert page.step == point.shows.get("step", 0), paragraph.title
        assert page.tab.get_by_role("tabpanel").is_visible()
        assert not page.tab.locator("#notice").inner_text()
        page.tab.go_back()
        links.first.wait_for()


def test_questions_unfold_their_answers(open_page, address):
    page = open_page(address)
    for paragraph in PARAGRAPHS:
        article = page.tab.get_by_role("article", name=paragraph.title, exact=True)
        answer = article.get_by_text(paragraph.answer, exact=True)
        assert not answer.is_visible()
        article.locator("summary").focus()
        page.press("Enter")
        answer.wait_for()


@pytest.mark.parametrize("shape", SHAPES)
def test_it_has_no_barrier_in_any_shape(open_page, tiny_server, shape):
    page = open_page(f"{tiny_server.url}/class", **SHAPES[shape])
    if shape == "projector":
        page.tab.get_by_label("Large type").check()
        size = page.tab.evaluate("() => getComputedStyle(document.documentElement).fontSize")
        assert size == "24px"
    page.tab.locator("summary").first.click()
    assert not page.barriers()
    width = SHAPES[shape]["width"]
    assert page.tab.evaluate("() => document.documentElement.scrollWidth") <= width


def test_paper_has_the_answers_and_the_addresses(open_page, tiny_server):
    page = open_page(f"{tiny_server.url}/class")
    page.tab.emulate_media(media="print")
    for paragraph in PARAGRAPHS:
        answer = page.tab.get_by_text(paragraph.answer, exact=True)
        assert answer.bounding_box()["height"] > 10
    assert not page.tab.get_by_label("Large type").is_visible()
    link = page.tab.get_by_role("link", name=re.compile("^See it")).first
    content = link.evaluate("link => getComputedStyle(link, '::after').content")
    assert "lessons/" in content
    page.tab.emulate_media(media="screen")


def test_the_first_screen_leads_to_it(open_page, tiny_server):
    page = open_page(tiny_server.url)
    page.tab.get_by_role("link", name="A class", exact=True).click()
    page.tab.wait_for_url("**/class")
    page.tab.get_by_role("link", name="All lessons").click()
    page.tab.wait_for_url("**/lessons")
    page.tab.go_back()
    page.tab.get_by_role("link", name="The page that writes").click()
    page.tab.locator("first-look").wait_for()


def test_an_exported_page_has_it_and_fetches_lessons_only_when_they_are_opened(
    open_page, hosted, toy_folder
):
    page = open_page(hosted(toy_folder))
    page.wait_for_runs()
    page.tab.get_by_role("link", name="A class", exact=True).click()
    page.tab.wait_for_url("**/class.html")
    assert not any("/lessons/" in request for request in page.requests)
    assert "lessons/" not in (toy_folder / "offline.js").read_text("utf-8")
    page.tab.get_by_role("link", name="See it: A temperature is no intelligence").click()
    page.tab.locator("run-guide [aria-current]").get_by_text("96%").wait_for()
    page.tab.get_by_role("link", name="All lessons").click()
    page.tab.get_by_role("link", name="A class of 45 minutes").click()
    page.tab.wait_for_url("**/class.html")
