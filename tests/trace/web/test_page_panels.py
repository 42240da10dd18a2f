"""What a panel shows first: the usual settings, an early mistake, a button that fills it."""

import json

import pytest

from support.browser import hold

RUN = {"temperature": 0.8, "max_tokens": 24, "ignore_eos": True, "seed": 3}


@pytest.fixture
def page(open_page, tiny_server):
    page = open_page(tiny_server.url)
    page.write("ab", **RUN)
    return page


def test_what_if_begins_with_three_sliders(page):
    page.tab.get_by_role("tab", name="What if").click()
    page.settle()
    box = page.tab.locator("what-if")
    names = [slider.get_attribute("aria-label") for slider in box.get_by_role("slider").all()]
    assert names == ["temperature", "top-p", "top-k"]
    box.get_by_text("More settings").click()
    assert box.get_by_role("slider").count() > 10
    box.get_by_role("slider", name="repetition-penalty").fill("1.5")
    box.get_by_text("More settings · 1 changed").wait_for()


def mistakes(page):
    """Open the lesson; return its two offers."""
    page.tab.get_by_role("tab", name="Practice").click()
    page.tab.get_by_role("tab", name="How a mistake grows").click()
    page.settle()
    lesson = page.tab.locator("snowball-lesson")
    return lesson, lesson.locator("p:has(> button:text-matches('Make the'))")


def test_a_mistake_is_early_and_less_likely(page, tmp_path):
    trace = page.download_run(tmp_path / "run.jsonl")
    early = next(s for s in trace.steps if s.observed.rank == 1)
    page.press("End")
    lesson, offers = mistakes(page)
    assert offers.count() == 2
    assert offers.first.inner_text().startswith(f"Make the mistake\nStep {early.index + 1}:")
    assert offers.nth(1).inner_text().startswith("Make the ")
    assert "at the selected step\nStep 24:" in offers.nth(1).inner_text()
    offers.first.get_by_role("button").click()
    page.wait_for_runs(3)
    heading = lesson.get_by_role("heading", name="The mistake at step")
    assert heading.inner_text() == f"The mistake at step {early.index + 1} of run 1"
    runs = json.loads(
        page.tab.evaluate("() => new URLSearchParams(location.hash.slice(1)).get('runs')")
    )
    wrong = runs[1]["request"]["forced"][early.index]
    ranks = {c.id: c.rank for c in early.observed.candidates}
    assert ranks[wrong] == 2


def test_the_panel_branches_offers_the_first(page):
    page.press("Home")
    page.tab.get_by_role("tab", name="Branches").click()
    page.settle()
    tree = page.tab.locator("branch-tree")
    assert not tree.get_by_role("button", name="Go to the fork").is_visible()
    tree.get_by_role("button", name="Branch at step 1:").click()
    page.wait_for_runs(2)
    assert page.tab.get_by_label("Run", exact=True).locator("option").count() == 2
    assert tree.get_by_role("button", name="Go to the fork").is_visible()


def test_old_exercises_are_gone_while_new_ones_are_made(page):
    page.tab.get_by_role("tab", name="Practice").click()
    lesson = page.tab.locator("practice-lesson")
    lesson.get_by_role("heading", name="1 of").wait_for()
    with hold(page.tab, "**/page/practice") as let_go:
        lesson.get_by_role("button", name="Three ways to write").click()
        lesson.get_by_text("The model generates in each of its ways").wait_for()
        assert not lesson.get_by_role("heading", name="1 of").is_visible()
        let_go()
        lesson.get_by_role("heading", name="1 of").wait_for()


def test_the_reply_to_an_exercise_is_for_no_other_that_was_opened_meanwhile(page):
    page.tab.get_by_role("tab", name="Practice").click()
    lesson = page.tab.locator("practice-lesson")
    lesson.get_by_role("heading", name="1 of").wait_for()
    show = lesson.get_by_role("button", name="Show me")
    with hold(page.tab, "**/page/practice/answer") as let_go:

        def solution():
            with page.tab.expect_response("**/page/practice/answer") as response:
                let_go()
            return response.value.json()["solution"]  # which waits for the whole of it

        show.click()
        lesson.get_by_role("button", name="Three ways to write").click()
        lesson.get_by_role("heading", name="1 of").wait_for()  # again, which the click has hidden
        show.click()
        earlier, later = solution(), solution()
    assert earlier != later
    shown = lesson.get_by_text("The answer: ")
    shown.wait_for()
    assert shown.inner_text() == f"The answer: {later}"
