"""The layout of the page: the first screen, the left column, phones, large type."""

import gzip
import json

import pytest

from cutaway import LLM
from cutaway.features.page.folder import WEB
from cutaway.server.http.settings import ServerSettings
from cutaway.trace import Trace
from cutaway.trace.check import VERSION
from support.browser import LUCKY, PROMPT, expect
from support.served import serve

RECORDED = WEB / "first-run.jsonl.gz"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    path = tmp_path_factory.mktemp("recorded") / "run.jsonl"
    path.write_bytes(gzip.decompress(RECORDED.read_bytes()))
    return Trace.read(path)


def uncertain(trace):
    ends = set(trace.head.end_ids)
    own = (step for step in trace.steps if step.token_id not in ends)
    return min(own, key=lambda step: step.logprob).index


def test_the_recording_is_small_and_of_the_current_format(recorded):
    head = json.loads(gzip.decompress(RECORDED.read_bytes()).splitlines()[0])
    assert head["version"] == VERSION
    assert RECORDED.stat().st_size < 60_000
    assert 40 <= len(recorded.steps) <= 60
    assert recorded.end.reason == "end_token"


def test_the_page_opens_with_a_recorded_run(open_page, tiny_server, recorded):
    page = open_page(tiny_server.url)
    page.wait_for_runs()
    assert len(page.tokens) == len(recorded.steps)
    assert page.step == uncertain(recorded)
    assert page.address == ""
    told = page.tab.locator("first-look").inner_text()
    assert f"recorded with SmolLM2, seed {recorded.head.seed}" in told
    assert "Example (recorded)" in page.tab.locator("run-picker option").inner_text()
    page.press("Home", "ArrowRight", "ArrowRight")
    page.settle()
    assert page.address == "step=2"
    page.reload()
    page.wait_for_runs()
    assert page.step == 2


def test_the_chosen_token_is_in_sight_among_the_candidates(open_page, tiny_server):
    page = open_page(tiny_server.url)
    page.wait_for_runs()
    chosen = page.tab.locator("step-waterfall tr.chosen")
    rows = page.tab.locator("step-waterfall tbody tr")
    assert chosen.get_by_role("cell").nth(2).inner_text() == "104"  # its rank: it is the last row
    for width, height in ((1400, 1000), (1000, 800), (390, 844)):
        page.tab.set_viewport_size({"width": width, "height": height})
        page.reload()
        page.wait_for_runs()
        check_in_sight(page, chosen, rows)


def check_in_sight(page, chosen, rows):
    for keys in ([], ["ArrowDown"] * 19):
        page.press(*keys)
        page.settle()
        selected = rows.nth(len(keys)).bounding_box()
        row = chosen.bounding_box()
        if keys:
            assert row["y"] + row["height"] <= page.tab.viewport_size["height"]
            assert selected["y"] > 0
        assert selected["y"] <= row["y"] - selected["height"] + 1


def test_a_model_that_did_not_record_it_says_so(open_page, tiny_server):
    page = open_page(tiny_server.url)
    page.wait_for_runs()
    page.press("Home", "ArrowDown", "Enter")
    page.tab.get_by_text("This run was recorded with SmolLM2, seed 12, and the served").wait_for()
    page.tab.get_by_role("tab", name="Inside").click()
    page.tab.locator("inside-panel").get_by_text("write a text of your own").wait_for()
    assert "runs=" not in page.address


def test_a_run_of_ones_own_takes_its_place(open_page, tiny_server):
    page = open_page(tiny_server.url)
    page.write("ab", max_tokens=8, ignore_eos=True, seed=1)
    assert len(page.tokens) == 8
    assert page.tab.locator("first-look").is_hidden()
    assert page.tab.locator("run-picker option").count() == 1


def test_examples_write_at_once_and_the_same_again(open_page, tiny_server):
    page = open_page(tiny_server.url)
    page.go(kind="completion", settings={"max_tokens": 8, "ignore_eos": True})
    texts = []
    for _ in range(2):
        page.tab.get_by_role("button", name="My grandmother always said that").click()
        page.wait_for_runs()
        texts.append(page.tokens)
    assert len(texts[0]) == 8
    assert texts[0] == texts[1]


def test_an_example_of_a_conversation_is_answered(open_page, tiny_server):
    page = open_page(tiny_server.url)
    page.go(settings={"max_tokens": 8, "ignore_eos": True})
    page.tab.get_by_role("button", name="Tell me a joke about a cat.").click()
    page.wait_for_runs()
    said = page.tab.get_by_role("log").inner_text()
    assert "Tell me a joke about a cat." in said
    assert len(page.tokens) == 8
    assert not page.tab.get_by_role("group", name="Examples").is_visible()
    form, settings = (
        page.tab.locator(part).bounding_box() for part in ("ask-box", "settings-panel")
    )
    assert settings["y"] - form["y"] - form["height"] < 40, "no room is kept for the examples"


def test_help_and_lessons_are_a_click_away(open_page, tiny_server):
    page = open_page(tiny_server.url)
    look = page.tab.locator("first-look")
    look.get_by_role("button", name="Help").click()
    help_ = page.tab.get_by_role("dialog", name="Help")
    assert "surprise" in help_.inner_text()
    reference = help_.get_by_role("link", name="openapi.json").get_attribute("href")
    assert page.tab.request.get(f"{tiny_server.url}/{reference}").ok
    help_.get_by_role("button", name="Close").click()
    look.get_by_role("button", name="Practice").click()
    page.tab.get_by_role("tabpanel", name="Practice", exact=True).wait_for()


def test_help_on_a_phone_begins_at_its_beginning(open_page, tiny_server):
    page = open_page(tiny_server.url, 390, 844)
    page.press("?")
    dialog = page.tab.get_by_role("dialog", name="Help")
    dialog.get_by_role("heading", name="How to read this page").wait_for()
    assert dialog.evaluate("(one) => one.scrollTop") == 0


@pytest.mark.model
def test_the_recording_is_the_models_and_may_be_branched(page, smollm2_alone, recorded):
    head = recorded.head
    params = {name: head.params[name] for name in ("temperature", "top_p", "max_tokens")}
    again = smollm2_alone.generate(head.prompt, seed=head.seed, **params)
    assert again.token_ids == recorded.output_token_ids
    page.fork(5)
    page.settle()
    assert page.tab.get_by_label("Run", exact=True).locator("option").count() == 2
    before = page.tokens
    page.reload()
    page.wait_for_runs(2)
    assert page.tokens == before


@pytest.fixture
def locked(tiny_path):
    with serve(LLM(tiny_path, threads=1), ServerSettings(api_key="secret")) as served:
        yield served


def test_the_recording_is_open_before_the_key_is_given(locked, open_page, recorded):
    page = open_page(locked.url)
    page.expected = "401"
    page.wait_for_runs()
    assert len(page.tokens) == len(recorded.steps)


# -- the left column: settings, a link to a step, tools ----------------------------------------

ORDER = ("completion-box .row", "token-strip", "step-facts", "panel-tabs", "settings-panel")


def written(page, **settings):
    page.write("ab", **{"max_tokens": 12, "ignore_eos": True, "seed": 1, **settings})
    page.settle()
    return page


def shown(locator):
    return locator.evaluate_all("(all) => all.filter((one) => one.checkVisibility()).length")


def test_four_settings_are_open_and_the_others_folded(open_page, tiny_server):
    page = open_page(tiny_server.url)
    page.wait_for_runs()
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


def test_a_phone_has_the_text_first_and_one_field_at_its_lower_edge(open_page, tiny_server):
    page = open_page(tiny_server.url, 390, 844)
    page.wait_for_runs()
    field = page.tab.get_by_label("Your message").bounding_box()
    assert page.tab.locator("token-strip").bounding_box()["y"] < field["y"]
    assert 0 < 844 - field["y"] < 70
    assert page.tab.get_by_role("heading", name="Settings of the next text").is_hidden()
    page.open_form()
    page.tab.get_by_role("heading", name="Settings of the next text").wait_for()
    assert not page.barriers(".write")
    written(page)
    assert page.tab.get_by_role("heading", name="Settings of the next text").is_hidden()
    assert page.tab.evaluate("() => document.documentElement.scrollWidth") <= 390


def test_a_tap_on_a_phone_brings_a_sheet_under_the_text(open_page, tiny_server):
    page = written(open_page(tiny_server.url, 390, 844, has_touch=True))
    page.tab.locator("token-strip .chip").nth(4).tap()
    page.settle()
    sheet = page.tab.get_by_role("region", name="The token", exact=True)
    box = sheet.bounding_box()
    assert box["height"] == pytest.approx(0.45 * 844, abs=2)
    assert page.tab.locator("token-strip [aria-current]").bounding_box()["y"] < box["y"]
    assert "step 5 of 12" in sheet.inner_text()
    assert sheet.locator("li").count() == 5
    assert not page.barriers("token-sheet")
    sheet.get_by_role("button", name="the next token").tap()
    page.settle()
    assert page.step == 5
    swipe = """(target) => {
      for (const [name, clientX] of [["touchstart", 300], ["touchend", 200]]) {
        const touches = [new Touch({ identifier: 1, target, clientX, clientY: 700 })];
        target.dispatchEvent(new TouchEvent(name, { touches, changedTouches: touches }));
      }
    }"""
    sheet.evaluate(swipe)
    page.settle()
    assert page.step == 6
    other = sheet.locator("li button[aria-pressed=false]").last
    token = other.locator(".token").inner_text()
    other.tap()
    page.settle()
    branch = sheet.get_by_role("button", name="Branch")
    if branch.is_disabled():  # it was the text's own token
        token = sheet.locator("li .token").first.inner_text()
        sheet.locator("li button").first.tap()
        page.settle()
    branch.tap()
    page.wait_for_runs(2)
    assert sheet.locator("strong").inner_text() == token
    sheet.get_by_role("button", name="close").tap()
    page.settle()
    assert sheet.is_hidden()


def test_the_header_and_the_tabs_have_one_row(open_page, tiny_server):
    page = written(open_page(tiny_server.url))
    for width, height in ((1000, 800), (1400, 900)):
        page.resize(width, height)
        assert page.tab.locator("header").bounding_box()["height"] < 60
        for name in ("How to write", "Panels"):
            tabs = page.tab.get_by_role("tablist", name=name).get_by_role("tab")
            tops = {tab.bounding_box()["y"] for tab in tabs.all() if tab.is_visible()}
            assert len(tops) == 1, (name, width)
        assert page.tab.evaluate("() => document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize(  # axe looks at the whole page, which takes five seconds
    ("width", "height"), [(1400, 900), pytest.param(1920, 1080, marks=pytest.mark.slow)]
)
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
    writing = page.tab.locator(".write")
    assert not writing.is_visible()  # the run has all of the width
    page.tab.get_by_role("button", name="New text").click()
    page.tab.get_by_label("Text to continue").wait_for()
    page.reload()
    page.wait_for_runs()
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
    other.wait_for_runs(1)
    assert other.tokens == tokens
    assert other.step == 3
    saved = page.tab.evaluate("() => location.href")
    assert saved == link


def test_a_link_says_that_it_carries_no_file(open_page, tiny_server, tmp_path):
    page = written(open_page(tiny_server.url))
    page.download_run(tmp_path / "run.jsonl")
    page.open_file(tmp_path / "run.jsonl")
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
    page.wait_for_runs()
    said = page.tab.get_by_role("log").inner_text()
    assert "Result of the call" in said
    assert "rain, 12 degrees" in said
    assert page.tab.locator("chat-box li").count() == 4


def test_tools_that_are_none_are_refused_in_a_sentence(open_page, tiny_server):
    page = open_page(tiny_server.url)
    page.expected = "400 (Bad Request)"
    page.go(tools="[{", draft="Roll.")
    alert = page.tab.locator("tools-field").get_by_role("alert")
    alert.get_by_text("The tools are not JSON").wait_for()
    page.tab.get_by_role("button", name="Send", exact=True).click()
    expect(page.tab.get_by_label("Your message")).to_have_value("Roll.")
    page.tab.get_by_label("Functions that the model can call").fill(
        '[{"type": "function", "function": {"nme": "roll"}}]'
    )
    page.tab.get_by_role("button", name="Send", exact=True).click()
    alert.get_by_text("tools[0].function.nme is not known").wait_for()


@pytest.mark.model
def test_a_chat_opens_at_its_most_uncertain_step(page, tmp_path):
    page.go(settings={"temperature": LUCKY["temperature"], "max_tokens": 24}, seed="3")
    page.tab.get_by_label("Your message").fill(PROMPT)
    page.tab.get_by_label("Your message").press("Enter")
    page.wait_for_runs()
    trace = page.download_run(tmp_path / "run.jsonl")
    ends = set(trace.head.end_ids)
    own = [step for step in trace.steps if step.token_id not in ends]
    assert page.step == min(own, key=lambda step: step.logprob).index
