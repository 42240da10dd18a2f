"""The left column and the layout: settings, phones, large type, a link to a step, tools."""

import pytest

from support.browser import LUCKY, PROMPT

ORDER = ("completion-box .row", "token-strip", "step-facts", "panel-tabs", "settings-panel")


def written(page, **settings):
    page.write("ab", **{"max_tokens": 12, "ignore_eos": True, "seed": 1, **settings})
    page.settle()
    return page


def shown(locator):
    return locator.evaluate_all("(all) => all.filter((one) => one.checkVisibility()).length")


def test_four_settings_are_open_and_the_others_folded(open_page, tiny_server):
    page = open_page(tiny_server.url)
    page.ended()
    sliders = page.tab.locator("settings-panel input[type=range]")
    assert shown(sliders) == 4
    assert sliders.count() > 12
    written(page, temperature=0.5)
    force = page.tab.locator("in-force")
    told = force.locator("> dl").inner_text()
    assert "temperature" in told and "max_tokens" in told
    assert "min-p" not in told
    force.get_by_text("more, as by default").click()
    assert "min-p" in force.inner_text()


def test_the_text_stands_once(open_page, tiny_server):
    page = written(open_page(tiny_server.url))
    assert page.tab.locator("completion-box").inner_text().count("ab") == 0
    assert "run 1" in page.tab.locator("completion-box [role=status]").inner_text()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.tab.get_by_role("button", name="Copy text").click()
    page.tab.get_by_role("button", name="Copied").wait_for()
    copied = page.tab.evaluate("() => navigator.clipboard.readText()")
    assert copied.startswith("ab")
    assert len(copied) > 2


def test_a_phone_has_writing_then_the_text_then_its_settings(open_page, tiny_server):
    page = written(open_page(tiny_server.url, 390, 844))
    tops = [page.tab.locator(part).first.bounding_box()["y"] for part in ORDER]
    assert tops == sorted(tops)
    button = page.tab.get_by_role("button", name="Write", exact=True).bounding_box()
    assert tops[1] - (button["y"] + button["height"]) < 120
    assert page.tab.evaluate("() => document.documentElement.scrollWidth") <= 390


@pytest.mark.parametrize(("width", "height"), [(1000, 800), (1400, 900)])
def test_the_header_and_the_tabs_have_one_row(open_page, tiny_server, width, height):
    page = written(open_page(tiny_server.url, width, height))
    assert page.tab.locator("header").bounding_box()["height"] < 60
    for name in ("How to write", "Panels"):
        tabs = page.tab.get_by_role("tablist", name=name).get_by_role("tab")
        tops = {tab.bounding_box()["y"] for tab in tabs.all() if tab.is_visible()}
        assert len(tops) == 1, name
    assert page.tab.evaluate("() => document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize(("width", "height"), [(1400, 900), (1920, 1080)])
def test_large_type_is_a_key_and_kept(open_page, tiny_server, width, height):
    page = written(open_page(tiny_server.url, width, height))
    strip = page.tab.locator("token-strip .tokens")
    size = "(box) => parseFloat(getComputedStyle(box).fontSize)"
    before = strip.evaluate(size)
    page.press("Home", "l")
    page.settle()
    assert strip.evaluate(size) == pytest.approx(1.5 * before)
    assert page.tab.get_by_role("button", name="Large type").get_attribute("aria-pressed") == "true"
    assert page.tab.evaluate("() => document.documentElement.scrollWidth") <= width
    assert not page.barriers()
    page.tab.reload()
    page.ended()
    assert strip.evaluate(size) == pytest.approx(1.5 * before)


def test_a_link_to_a_step_opens_it(open_page, tiny_server):
    page = written(open_page(tiny_server.url))
    tokens = page.tokens
    page.press("Home", "ArrowRight", "ArrowRight", "ArrowRight")
    page.settle()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.tab.get_by_role("button", name="Copy link").click()
    page.tab.locator("copy-link").get_by_role("button", name="Copied").wait_for()
    link = page.tab.evaluate("() => navigator.clipboard.readText()")
    other = open_page(link)
    other.tab.wait_for_function("() => document.querySelectorAll('.chip').length === 12")
    other.ended()
    other.settle()
    assert other.tokens == tokens
    assert other.step == 3
    saved = page.tab.evaluate("() => location.href")
    assert saved == link


def test_a_link_says_that_it_carries_no_file(open_page, tiny_server, tmp_path):
    page = written(open_page(tiny_server.url))
    page.saved(tmp_path / "run.jsonl")
    page.tab.locator("input[type=file]").set_input_files(tmp_path / "run.jsonl")
    page.tab.wait_for_function("() => document.querySelectorAll('run-picker option').length === 2")
    page.tab.get_by_role("button", name="Copy link").click()
    page.tab.get_by_text("A link cannot carry an opened file").wait_for()


@pytest.mark.model
def test_a_call_is_shown_and_its_result_answered(page):
    page.go(settings={"max_tokens": 60}, seed="1")
    page.tab.get_by_text("Tools", exact=True).click()
    page.tab.get_by_role("button", name="Insert an example").click()
    page.settle()
    page.tab.get_by_role("button", name="Send", exact=True).click()
    result = page.tab.get_by_label("What get_weather(")
    result.wait_for()
    assert 'get_weather(city: "' in page.tab.locator("chat-box .calls").nth(1).inner_text()
    assert not page.barriers("chat-box")
    result.fill("rain, 12 degrees")
    page.tab.get_by_role("button", name="Send result").click()
    page.ended()
    page.settle()
    said = page.tab.get_by_role("log").inner_text()
    assert "Result of the call" in said
    assert "rain, 12 degrees" in said
    assert page.tab.locator("chat-box li").count() == 4


def test_tools_that_are_none_are_refused_in_a_sentence(open_page, tiny_server):
    page = open_page(tiny_server.url)
    page.go(tools="[{", draft="Roll.")
    alert = page.tab.locator("tools-field").get_by_role("alert")
    alert.get_by_text("The tools are not JSON").wait_for()
    page.tab.get_by_role("button", name="Send", exact=True).click()
    page.settle()
    assert page.tab.get_by_label("Your message").input_value() == "Roll."
    page.tab.get_by_label("Functions that the model can call").fill(
        '[{"type": "function", "function": {"nme": "roll"}}]'
    )
    page.tab.get_by_role("button", name="Send", exact=True).click()
    alert.get_by_text("tools[0].function.nme is not known").wait_for()
    page.complaints.clear()  # the browser notes every 400


@pytest.mark.model
def test_a_chat_opens_at_its_most_uncertain_step(page, tmp_path):
    page.go(settings={"temperature": LUCKY["temperature"], "max_tokens": 24}, seed="3")
    page.tab.get_by_label("Your message").fill(PROMPT)
    page.tab.get_by_label("Your message").press("Enter")
    page.ended()
    page.settle()
    trace = page.saved(tmp_path / "run.jsonl")
    ends = set(trace.head.end_ids)
    own = [step for step in trace.steps if step.token_id not in ends]
    assert page.step == min(own, key=lambda step: step.logprob).index
