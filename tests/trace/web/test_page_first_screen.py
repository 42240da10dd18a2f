"""The first screen: the recorded run, examples to click, and what each kind of model is offered."""

import gzip
import json

import pytest

from cutaway import LLM
from cutaway.server.http.settings import ServerSettings
from cutaway.trace import Trace
from cutaway.trace.check import VERSION
from cutaway.trace.web import _WEB
from support.served import serve

RECORDED = _WEB / "first-run.jsonl.gz"


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
    page.ended()
    page.settle()
    assert len(page.tokens) == len(recorded.steps)
    assert page.step == uncertain(recorded)
    assert page.address == ""
    told = page.tab.locator("first-look").inner_text()
    assert f"recorded with SmolLM2, seed {recorded.head.seed}" in told
    assert "no run yet" in page.tab.locator("run-picker option").inner_text()
    page.press("Home", "ArrowRight", "ArrowRight")
    page.settle()
    assert page.address == "step=2"
    page.tab.reload()
    page.ended()
    page.settle()
    assert page.step == 2


@pytest.mark.parametrize("size", [(1400, 1000), (1000, 800), (390, 844)])
def test_the_chosen_token_is_in_sight_among_the_candidates(open_page, tiny_server, size):
    page = open_page(tiny_server.url, *size)
    page.ended()
    page.settle()
    chosen = page.tab.locator("step-waterfall tr.chosen")
    rows = page.tab.locator("step-waterfall tbody tr")
    assert chosen.get_by_role("cell").nth(2).inner_text() == "104"  # its rank: it is the last row
    for keys in ([], ["ArrowDown"] * 19):
        page.press(*keys)
        page.settle()
        box = page.tab.get_by_role("region", name="Candidates").bounding_box()
        selected = rows.nth(len(keys)).bounding_box()
        row = chosen.bounding_box()
        assert row["y"] + row["height"] <= box["y"] + box["height"]
        assert box["y"] < selected["y"] <= row["y"] - selected["height"] + 1


def test_a_model_that_did_not_record_it_says_so(open_page, tiny_server):
    page = open_page(tiny_server.url)
    page.ended()
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
        page.ended()
        texts.append(page.tokens)
    assert len(texts[0]) == 8
    assert texts[0] == texts[1]


def test_an_example_of_a_conversation_is_answered(open_page, tiny_server):
    page = open_page(tiny_server.url)
    page.go(settings={"max_tokens": 8, "ignore_eos": True})
    page.tab.get_by_role("button", name="Tell me a joke about a cat.").click()
    page.ended()
    page.settle()
    said = page.tab.get_by_role("log").inner_text()
    assert "Tell me a joke about a cat." in said
    assert len(page.tokens) == 8
    assert not page.tab.get_by_role("group", name="Examples").is_visible()


def test_help_and_lessons_are_a_click_away(open_page, tiny_server):
    page = open_page(tiny_server.url)
    look = page.tab.locator("first-look")
    look.get_by_role("button", name="Help").click()
    help_ = page.tab.get_by_role("dialog", name="Help")
    assert "surprise" in help_.inner_text()
    reference = help_.get_by_role("link", name="openapi.json").get_attribute("href")
    assert page.tab.request.get(f"{tiny_server.url}/{reference}").ok
    help_.get_by_role("button", name="Close").click()
    look.get_by_role("button", name="Lessons").click()
    page.tab.get_by_role("tabpanel", name="Lesson").wait_for()


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
    page.tab.reload()
    page.ended()
    page.tab.wait_for_function("() => document.querySelectorAll('run-picker option').length === 2")
    page.settle()
    assert page.tokens == before


@pytest.fixture
def locked(tiny_path):
    with serve(LLM(tiny_path, threads=1), ServerSettings(api_key="secret")) as served:
        yield served


def test_the_recording_is_open_before_the_key_is_given(locked, open_page, recorded):
    page = open_page(locked.url)
    page.expected = "401"
    page.ended()
    assert len(page.tokens) == len(recorded.steps)
