"""Runs on the page of a server of SmolLM2: written, stepped through, forked, compared, restored."""

import math
import re

import pytest

from cutaway.trace import Trace, diff_texts
from support.browser import GREEDY, LUCKY, PROMPT, SEEN
from support.paced import Paced

pytestmark = pytest.mark.model


def test_a_text_and_its_figures_are_the_engines(page, smollm2_alone, tmp_path):
    page.write(PROMPT, **LUCKY)
    trace = page.download_run(tmp_path / "run.jsonl")
    done = smollm2_alone.generate(PROMPT, **LUCKY)
    assert trace.output_token_ids == done.token_ids
    assert f"{trace.steps[-1].fingerprint:016x}" == done.fingerprint
    assert len(page.tokens) == 40
    page.press("Home")
    page.settle()
    rows = page.tab.locator("step-waterfall tbody tr").all_inner_texts()
    assert len(rows) == len(trace.steps[0].observed.candidates)
    assert f"{trace.steps[0].observed.candidates[0].logit:.2f}" in rows[0]
    assert f"{trace.head.seed}" in page.tab.locator("run-picker").inner_text()


def test_a_conversation_is_answered_while_one_looks(page):
    page.tab.get_by_role("tab", name="Chat").click()
    field = page.tab.get_by_label("Your message")
    field.fill("Say hello.")
    field.press("Enter")
    page.wait_for_runs()
    answer = page.tab.get_by_role("log").inner_text()
    assert "Say hello." in answer
    assert len(answer) > len("You\nSay hello.\nModel\n")
    field.fill("And again.")
    field.press("Enter")
    page.wait_for_runs(2)
    assert page.tab.locator("chat-box li").count() == 4
    assert page.tab.get_by_label("Run", exact=True).locator("option").count() == 2


def test_keys_step_through_the_run(page):
    page.write(PROMPT, **GREEDY)
    for keys, step in (
        (["Home"], 0),
        (["ArrowRight", "ArrowRight", "Shift+ArrowRight"], 12),
        (["End"], 23),
        (["ArrowLeft"], 22),
    ):
        page.press(*keys)
        page.settle()
        assert page.step == step
    assert re.search(r"\bstep=22\b", page.address)
    page.press("?")
    page.tab.get_by_role("dialog").wait_for()
    page.press("Escape")


def test_keys_find_uncertain_steps(page, smollm2_alone, tmp_path):
    page.write(PROMPT, **LUCKY)
    trace = page.download_run(tmp_path / "run.jsonl")
    page.press("Home")
    wanted = [s.index for s in trace.steps[1:] if s.observed.rank != 1]
    for step in wanted[:3]:
        page.press("r")
        page.settle()
        assert page.step == step


def test_a_fork_has_the_same_luck(page, smollm2_alone, tmp_path):
    page.write(PROMPT, **LUCKY)
    first = page.download_run(tmp_path / "first.jsonl")
    page.fork(2)
    fork = page.download_run(tmp_path / "fork.jsonl")
    token = fork.output_token_ids[2]
    assert token in [c.id for c in first.steps[2].observed.candidates]
    assert diff_texts(first, fork).is_fork
    forced = (*first.output_token_ids[:2], token)
    done = smollm2_alone.generate(PROMPT, forced=forced, **LUCKY)
    assert fork.output_token_ids == done.token_ids
    assert f"{fork.steps[-1].fingerprint:016x}" == done.fingerprint


def test_a_second_click_does_not_fork_the_fork(page):
    page.write(PROMPT, **LUCKY)
    page.press("Home", "ArrowDown")
    page.settle()
    page.tab.locator("step-waterfall tbody").get_by_role("button", name="Branch").dblclick()
    page.wait_for_runs(2)
    assert page.tab.get_by_label("Run", exact=True).locator("option").count() == 2


def test_a_text_that_is_stopped_at_once_leaves_nothing(page, smollm2, monkeypatch):
    paced = Paced(smollm2.engine, 0, monkeypatch)
    field = page.tab.get_by_label("Your message")
    field.fill("word " * 4000)
    field.press("Enter")
    page.tab.locator("chat-box").get_by_role("button", name="Stop").click()
    page.tab.get_by_text("Example (recorded)").wait_for(state="attached")
    page.settle()
    assert page.tab.locator("chat-box li").count() == 0
    assert field.input_value() == ("word " * 4000).strip()
    assert "runs=" not in page.address
    paced.allowed.release(10_000)


def test_two_runs_stand_side_by_side(page):
    page.write(PROMPT, **LUCKY)
    page.fork(1)
    page.tab.get_by_role("tab", name="Branches", exact=True).click()
    page.settle()
    told = page.tab.locator("run-compare").inner_text()
    assert "The prompts are equal" in told
    assert "token at step 2" in told, told
    assert len(page.tokens) + page.tab.locator("token-strip .aside").count() >= 78


@pytest.mark.slow  # js/export.test.mjs and js/save.mjs save others in every run
def test_a_tree_is_saved_as_traces_that_name_their_parents(page, tmp_path):
    page.write(PROMPT, **LUCKY)
    page.fork(2)
    page.tab.get_by_role("tab", name="Branches").click()
    page.tab.get_by_role("button", name="Export this tree").click()
    links = page.tab.locator("branch-tree a[download]")
    links.nth(1).wait_for()
    traces = []
    for i in range(2):
        with page.tab.expect_download() as download:
            links.nth(i).click()
        download.value.save_as(tmp_path / f"{i}.jsonl")
        traces.append(Trace.read(tmp_path / f"{i}.jsonl"))
    root, fork = traces
    assert root.head.parent is None
    assert diff_texts(root, fork).is_fork


@pytest.mark.slow  # a file that is chosen is in every run
def test_a_trace_may_be_dropped(page, smollm2_alone, tmp_path):
    path = tmp_path / "run.jsonl"
    smollm2_alone.generate(PROMPT, trace=path, **GREEDY)
    page.tab.evaluate(
        """(text) => {
            const data = new DataTransfer();
            data.items.add(new File([text], "run.jsonl"));
            document.body.dispatchEvent(
                new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
        }""",
        path.read_text(),
    )
    page.wait_for_runs(1)
    assert len(page.tokens) == 24


def test_an_address_brings_everything_back(page):
    page.write(PROMPT, **LUCKY)
    page.fork(2)
    page.press("Home", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowRight")
    page.tab.get_by_role("tab", name="Branches").click()
    page.settle()
    before, address = page.tokens, page.address
    page.reload()
    page.wait_for_runs(2)
    page.settle()
    assert page.tokens == before
    assert page.step == 5
    assert page.address == address
    assert page.tab.get_by_role("tab", name="Branches").get_attribute("aria-selected") == "true"
    assert page.tab.get_by_label("Run", exact=True).locator("option").count() == 2


@pytest.mark.slow  # an address that is opened again is in every run
def test_another_address_is_another_page(page):
    page.write(PROMPT, **LUCKY)
    page.settle()
    tokens, address = page.tokens, page.address
    page.go()
    page.tab.get_by_text("Example (recorded)").wait_for(state="attached")
    page.tab.evaluate("(address) => { location.hash = address; }", address)
    page.wait_for_runs(1)
    assert page.tokens == tokens


def test_typing_with_the_model(page, smollm2_alone):
    page.tab.get_by_role("tab", name="Type with the model").click()
    box = page.tab.locator("typing-box")
    box.locator("textarea").first.fill(PROMPT)
    box.get_by_role("button", name="Begin").click()
    board = box.get_by_role("group", name="The model's next token")
    for pick in ("␣Paris", "."):
        board.get_by_text(pick, exact=True).click()
    page.tab.wait_for_function(
        "() => document.querySelector('typing-box .result').innerText.includes('Paris.')"
    )


def test_the_lesson_is_practised(page):
    page.tab.get_by_role("tab", name="Practice", exact=True).click()
    lesson = page.tab.locator("practice-lesson")
    lesson.get_by_role("button", name=re.compile("^Exercise 3")).click()
    lesson.get_by_role("button", name="mat").click()
    lesson.get_by_text("Right").first.wait_for()


def test_a_trace_file_is_opened_and_kept_apart(page, smollm2_alone, tmp_path):
    path = tmp_path / "run.jsonl.gz"
    smollm2_alone.generate(PROMPT, trace=path, **GREEDY)
    page.open_file(path)
    assert len(page.tokens) == 24
    page.press("Home")
    page.settle()
    assert page.step == 0
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"kind": "step"}\n')
    page.tab.locator("input[type=file]").set_input_files(broken)
    page.tab.locator("#notice").get_by_text("broken.jsonl").wait_for()
    page.tab.locator("input[type=file]").set_input_files(path)
    page.tab.wait_for_function("() => !document.querySelector('#notice').textContent")


def test_what_if_is_what_the_model_draws(page, smollm2_alone, tmp_path):
    page.write(PROMPT, **LUCKY)
    page.press("Home", *["ArrowRight"] * 4)
    page.tab.get_by_role("tab", name="What if").click()
    box = page.tab.locator("what-if")
    slider = box.get_by_role("slider", name="temperature")
    slider.fill("2")
    box.get_by_text("is drawn").wait_for()
    first = smollm2_alone.generate(PROMPT, **LUCKY).token_ids[:4]
    hot = {**LUCKY, "temperature": 2, "max_tokens": 5}
    smollm2_alone.generate(PROMPT, forced=first, trace=tmp_path / "hot.jsonl", **hot)
    trace = Trace.read(tmp_path / "hot.jsonl")
    step = trace.steps[4]
    row = box.locator("tbody tr").first.inner_text()
    assert f"{math.exp(step.observed.candidates[0].final_logprob):.1%}" in row
    token = trace.name_of(step.token_id).strip()
    assert token in box.locator("tbody tr.chosen th").inner_text()
    box.get_by_role("button", name="Run it").click()
    page.wait_for_runs()
    assert page.tokens[4].strip() == token


def test_bad_settings_are_refused_beside_their_field(page):
    page.expected = "400 (Bad Request)"
    page.go(kind="completion", settings={"temperature": 1000}, prompt="x")
    page.tab.get_by_role("button", name="Write", exact=True).click()
    page.tab.get_by_text("temperature must be 0 (greedy) or between").first.wait_for()
    page.go(kind="completion", seed="5x")
    page.tab.get_by_role("button", name="Write", exact=True).click()
    page.tab.get_by_text("seed must be a whole number").first.wait_for()
    page.settle()
    assert page.tab.get_by_label("seed", exact=True).evaluate(SEEN)
