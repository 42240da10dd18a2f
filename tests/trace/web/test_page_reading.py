"""How the text of a run reads: its prompt folded, its line breaks, what a branch marks, panels."""

import json
from urllib.parse import parse_qs

import pytest

from support.browser import expect


def chat(page, message, **settings):
    """Ask something, and wait for the answer."""
    page.go(kind="chat", settings=settings, seed="1")
    field = page.tab.get_by_label("Your message")
    field.fill(message)
    field.press("Enter")
    page.wait_for_runs()


def written_run(page, prompt="The old lighthouse keeper", **settings):
    page.write(prompt, **{"max_tokens": 12, "ignore_eos": True, "seed": 8, **settings})
    page.settle()
    return page


def marks(page):
    """The marks of the tokens, and their steps."""
    found = page.tab.locator("token-strip .chip").evaluate_all(
        "(all) => all.map((chip) => chip.dataset.mark ?? '')"
    )
    return {step: mark for step, mark in enumerate(found) if mark}


def test_a_chat_shows_the_answer_and_its_prompt_on_request(page):
    chat(page, "Name a colour.", max_tokens=6)
    strip = page.tab.locator("token-strip .tokens")
    fold = strip.get_by_role("button", name="prompt · ")
    assert "im_start" not in strip.inner_text()
    expect(fold).to_have_attribute("aria-expanded", "false")
    fold.focus()
    page.press("Enter")
    expect(fold).to_have_attribute("aria-expanded", "true")
    expect(strip).to_contain_text("Name a colour.")
    assert page.tab.locator("run-picker option").count() == 1  # Enter branched nothing
    page.press("Enter")
    expect(strip).not_to_contain_text("Name a colour.")


def test_the_inside_of_a_step_unfolds_the_prompt(page):
    chat(page, "Name a colour.", max_tokens=6)
    strip = page.tab.locator("token-strip .tokens")
    page.tab.get_by_role("tab", name="Inside").click()
    page.tab.locator("inside-panel .proof .mono").wait_for()
    page.settle()
    assert "im_start" in strip.inner_text()
    assert strip.locator(".prompt.place[data-tint]").count() > 0
    page.tab.get_by_role("tab", name="Timelines").click()
    page.settle()
    assert "im_start" not in strip.inner_text()


def test_a_short_prompt_is_read_and_a_long_one_folded(open_page, tiny_server):
    page = written_run(open_page(tiny_server.url), "ab ab")
    strip = page.tab.locator("token-strip .tokens")
    assert strip.locator(".prompt").inner_text().endswith("ab ab")
    assert not strip.get_by_role("button", name="prompt · ").count()
    written_run(page, "ab\n" * 6)
    assert not strip.locator(".prompt").inner_text()
    assert "tokens" in strip.get_by_role("button", name="prompt · ").inner_text()


def test_a_line_break_has_a_mark_and_several_take_no_line_of_their_own(page):
    chat(page, "Write a short poem of two stanzas about rain.", max_tokens=40, temperature=0)
    chips = page.tab.locator("token-strip .chip")
    found = chips.evaluate_all(
        "(all) => all.map((one) => [one.textContent, one.getBoundingClientRect().top])"
    )
    breaks = [i for i, (text, _) in enumerate(found[:-1]) if text.endswith("↵")]
    assert breaks  # or this would prove nothing
    for i in breaks:
        goes_on = found[i + 1][0].startswith("↵")
        assert (found[i + 1][1] == found[i][1]) == goes_on
    assert not any("\\n" in text for text, _ in found)


@pytest.mark.slow  # a branch is in every run
def test_a_branch_of_a_branch_marks_the_changed_tokens_alone(page):
    written_run(page)
    page.fork(5)
    assert (page.step, marks(page)) == (5, {5: "→"})
    page.fork(8)
    assert page.step == 8
    assert marks(page) == {5: "→", 8: "→"}
    page.fork(3)
    assert (page.step, marks(page)) == (3, {3: "→"})


def test_a_token_that_is_typed_is_marked_and_the_view_stays_there(page):
    written_run(page)
    page.press("Home", *["ArrowRight"] * 4)
    page.settle()
    page.tab.get_by_label("Another token").fill(" sailor")
    page.tab.get_by_label("Another token").press("Enter")
    page.wait_for_runs(2)
    assert page.tokens[4] == " sailor"
    assert (page.step, marks(page)) == (4, {4: "→"})


def test_the_panels_are_in_three_groups(open_page, tiny_server):
    page = written_run(open_page(tiny_server.url), "ab")
    groups = page.tab.get_by_role("tablist", name="Panels").locator("> [data-title]")
    told = {
        group.get_attribute("data-title"): group.get_by_role("tab").all_inner_texts()
        for group in groups.all()
    }
    assert told["this step"] == ["Step", "Inside", "Leave out", "What if"]
    assert told["this text"] == ["Timelines", "Why it ended"]
    assert "Practice" in told["other texts"]


def test_opening_a_panel_leaves_the_tabs_under_the_pointer(open_page, tiny_server):
    """Also where the folded prompt of a conversation unfolds above them."""
    page = open_page(tiny_server.url)
    page.go(settings={"max_tokens": 8, "ignore_eos": True})
    page.tab.get_by_label("Your message").fill("a\n" * 12)
    page.tab.get_by_role("button", name="Send", exact=True).click()
    page.wait_for_runs()
    inside = page.tab.get_by_role("tab", name="Inside")
    height = page.tab.locator("token-strip").bounding_box()["height"]
    before = inside.bounding_box()["y"]
    inside.click()
    page.settle()
    assert page.tab.locator("token-strip").bounding_box()["height"] > height + 20
    assert inside.bounding_box()["y"] == pytest.approx(before, abs=1)


def test_a_run_that_fails_says_so_in_the_place_of_its_text(open_page, tiny_server):
    page = written_run(open_page(tiny_server.url), "ab")
    page.settle()
    runs = json.loads(parse_qs(page.address)["runs"][0])
    runs[0]["request"]["settings"]["stop_token_ids"] = [10**9]
    page.expected = "400 (Bad Request)"
    page.go(run=1, runs=runs)
    page.tab.locator("token-strip").get_by_text("This run wrote no token: ").wait_for()
    page.tab.locator("panel-tabs").get_by_text("This run has no token to look at").wait_for()


def test_a_keyboard_skips_to_the_text(open_page, tiny_server):
    page = written_run(open_page(tiny_server.url), "ab")
    page.tab.get_by_role("button", name="Skip to the text").focus()
    page.press("Enter")
    assert page.tab.evaluate("() => document.activeElement.className") == "tokens"


def test_forced_colours_leave_the_surprise_and_the_selection(open_page, tiny_server):
    page = written_run(open_page(tiny_server.url, forced_colors="active"), "ab")
    style = "(e, name) => getComputedStyle(e)[name]"
    chip = page.tab.locator("token-strip .chip:not([aria-current])").first
    assert "217, 72, 1" in chip.evaluate(style, "backgroundImage")
    tab = page.tab.get_by_role("tab", name="Step", exact=True)
    assert tab.evaluate(style, "outlineStyle") == "solid"
