"""Runs on the page of a server of SmolLM2: written, stepped through, forked, compared, restored."""

import math
import re

import pytest

from cutaway.features.inside.ablate import ablate
from cutaway.features.inside.look import inside
from cutaway.trace import Trace, diff_texts
from support.arcs import check_arcs
from support.browser import GREEDY, LUCKY, PROMPT

pytestmark = pytest.mark.model

SEEN = "(field) => field.getBoundingClientRect().bottom <= innerHeight"


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
    page.wait_for_runs()
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
    assert page.tab.get_by_role("dialog").is_visible()
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
    page.wait_for_runs()
    assert page.tab.get_by_label("Run", exact=True).locator("option").count() == 2


def test_a_text_that_is_stopped_at_once_leaves_nothing(page):
    field = page.tab.get_by_label("Your message")
    field.fill("word " * 4000)
    field.press("Enter")
    page.tab.locator("chat-box").get_by_role("button", name="Stop").click()
    page.tab.get_by_text("Example (recorded)").wait_for(state="attached")
    page.settle()
    assert page.tab.locator("chat-box li").count() == 0
    assert field.input_value() == ("word " * 4000).strip()
    assert "runs=" not in page.address


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
    page.wait_for_runs()
    assert len(page.tokens) == 24


def test_an_address_brings_everything_back(page):
    page.write(PROMPT, **LUCKY)
    page.fork(2)
    page.press("Home", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowRight")
    page.tab.get_by_role("tab", name="Branches").click()
    page.settle()
    before, address = page.tokens, page.address
    page.tab.reload()
    page.wait_for_runs()
    page.tab.wait_for_function("() => document.querySelectorAll('token-strip .chip').length > 39")
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
    page.tab.wait_for_function("() => document.querySelectorAll('token-strip .chip').length > 39")
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
    remark = lesson.get_by_role("status").first
    page.tab.wait_for_function(
        "() => /Right/.test(document.querySelector('practice-lesson').innerText)"
    )
    assert "Right" in remark.inner_text() or "Right" in lesson.inner_text()


def test_a_trace_file_is_opened_and_kept_apart(page, smollm2_alone, tmp_path):
    path = tmp_path / "run.jsonl.gz"
    smollm2_alone.generate(PROMPT, trace=path, **GREEDY)
    page.tab.locator("input[type=file]").set_input_files(path)
    page.wait_for_runs()
    assert len(page.tokens) == 24
    page.press("Home")
    page.settle()
    assert page.step == 0
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"kind": "step"}\n')
    page.tab.locator("input[type=file]").set_input_files(broken)
    page.tab.wait_for_function("() => document.querySelector('#notice').textContent")
    assert "broken.jsonl" in page.tab.locator("#notice").inner_text()
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
    page.settle()
    page.wait_for_runs()
    assert page.tokens[4].strip() == token


def test_bad_settings_are_refused_beside_their_field(page):
    page.go(kind="completion", settings={"temperature": 1000}, prompt="x")
    page.tab.get_by_role("button", name="Write", exact=True).click()
    page.tab.get_by_text("temperature must be 0 (greedy) or between").first.wait_for()
    page.complaints.clear()
    page.go(kind="completion", seed="5x")
    page.tab.get_by_role("button", name="Write", exact=True).click()
    page.tab.get_by_text("seed must be a whole number").first.wait_for()
    page.settle()
    assert page.tab.get_by_label("seed", exact=True).evaluate(SEEN)
    page.complaints.clear()  # the browser notes every 400


# -- the panels Inside and Without -------------------------------------------------------------


def opened_inside(page, step=4):
    page.write(PROMPT, **LUCKY)
    page.press("Home", *["ArrowRight"] * step)
    page.tab.get_by_role("tab", name="Inside").click()
    inside = page.tab.locator("inside-panel")
    inside.locator(".proof .mono").wait_for()
    page.settle()
    return inside


def test_the_inside_is_what_python_finds(page, smollm2_alone, tmp_path):
    panel = opened_inside(page)
    trace = page.download_run(tmp_path / "run.jsonl")
    look = inside(smollm2_alone, trace, 4)
    assert not panel.locator("table").count()  # folded
    assert panel.locator(".tower svg").evaluate(SEEN)  # without scrolling
    panel.get_by_text("Figures", exact=True).click()
    page.settle()
    assert f"recomputed bit for bit: row hash {look.row_hash:016x}" in panel.inner_text()
    found = look.logit_attribution()
    assert f"in logits: {found.total:+.3f}".replace("-", "−") in panel.inner_text()
    weights = look.weights.mean(axis=(0, 1))
    first = panel.get_by_role("region", name="Positions").locator("tbody tr").first.inner_text()
    assert first.split("\t")[1] == f"{weights.argmax()}"
    assert f"{weights.max():.1%}" in first
    rows = panel.get_by_role("region", name="The lens").locator("tbody tr")
    assert rows.count() == len(look.lens(1).rank) == 31
    for row, rank in zip(rows.all_inner_texts(), look.lens(1).rank, strict=True):
        assert f"{rank:,}" in row.split("\t")


def test_no_table_of_the_inside_is_cut(open_page, smollm2):
    page = open_page(smollm2.url)
    panel = opened_inside(page)
    panel.get_by_text("Figures", exact=True).click()
    wide = "(all) => all.map((one) => [one.textContent, one.scrollWidth - one.clientWidth])"
    for width, height in ((1400, 1000), (1200, 900), (1000, 800)):
        page.tab.set_viewport_size({"width": width, "height": height})
        page.settle()
        for boxes in (panel.get_by_role("region"), panel.locator("th")):
            assert [name for name, over in boxes.evaluate_all(wide) if over > 0] == []


def test_the_chosen_head_tints_the_text(page, smollm2_alone, tmp_path):
    panel = opened_inside(page)
    trace = page.download_run(tmp_path / "run.jsonl")
    panel.locator("canvas").first.focus()
    page.press("ArrowUp", *["ArrowUp"] * 3, "ArrowRight", "ArrowRight")
    page.settle()
    assert page.step == 4  # the arrows were for the picture
    look = inside(smollm2_alone, trace, 4)
    row = look.weights[3, 2]
    assert "L3.H2: attribution" in panel.inner_text()
    assert "head%22%3A%5B3%2C2%5D" in page.address
    tinted = page.tab.locator("token-strip .place, token-strip .chip").evaluate_all(
        "(all) => all.map((one) => ["
        "one.style.getPropertyValue('--heat') !== '', one.dataset.tint ?? ''])"
    )
    levels = [round(16 * round(255 * weight**0.5) / 255) for weight in row]
    assert [on for on, _ in tinted] == [level > 0 for level in levels] + [False] * 36
    marked = {mark: i for i, (_, mark) in enumerate(tinted) if mark}
    assert marked["1"] == row.argmax()
    page.tab.reload()
    page.wait_for_runs()
    panel.locator(".proof .mono").wait_for()
    page.settle()
    assert "L3.H2: attribution" in panel.inner_text()


TOKENS = "token-strip .place, token-strip .chip"


def test_arcs_over_the_text_lead_to_the_most_attended_tokens(page, smollm2_alone, tmp_path):
    page.write("one two three four five six seven eight nine ten " * 12, **LUCKY)
    page.press("Home", *["ArrowRight"] * 20)
    page.tab.get_by_role("tab", name="Inside").click()
    panel = page.tab.locator("inside-panel")
    panel.locator(".proof .mono").wait_for()
    page.settle()
    look = inside(smollm2_alone, page.download_run(tmp_path / "run.jsonl"), 20)
    origin = len(look.token_ids)  # where the step's token is written
    check_arcs(page, TOKENS, look.mean_weights, origin)
    heads = panel.locator("canvas").first
    heads.scroll_into_view_if_needed()
    box = heads.bounding_box()
    cell = (box["width"] - 24) / 9, box["height"] / 30
    for layer, head in ((25, 2), (3, 7)):
        page.tab.mouse.move(
            box["x"] + 24 + cell[0] * (head + 0.5), box["y"] + cell[1] * (29 - layer + 0.5)
        )
        page.settle()
        check_arcs(page, TOKENS, look.weights[layer, head], origin)
        assert f"L{layer}.H{head}: attribution" in panel.inner_text()
        assert "head%22" not in page.address  # pointed at, and not chosen
    page.tab.mouse.move(5, 5)
    page.settle()
    check_arcs(page, TOKENS, look.mean_weights, origin)
    heads.focus()
    page.press("ArrowUp", "ArrowUp", "ArrowRight")
    page.settle()
    check_arcs(page, TOKENS, look.weights[4, 8], origin)
    page.tab.set_viewport_size({"width": 1000, "height": 800})  # the text wraps otherwise
    page.settle()
    check_arcs(page, TOKENS, look.weights[4, 8], origin)
    page.tab.evaluate("() => { document.querySelector('token-strip .tokens').scrollTop = 60 }")
    page.settle()
    check_arcs(page, TOKENS, look.weights[4, 8], origin)
    page.tab.get_by_role("tab", name="Timelines").click()
    page.settle()
    assert not page.tab.locator(".arc").count()


@pytest.mark.slow  # the token's own rival is in every run, above
def test_the_chosen_candidate_is_the_rival(page, smollm2_alone, tmp_path):
    panel = opened_inside(page)
    trace = page.download_run(tmp_path / "run.jsonl")
    page.press("ArrowDown", "ArrowDown")
    rival = trace.steps[4].observed.candidates[2].id
    total = inside(smollm2_alone, trace, 4).logit_attribution(rival).total
    panel.get_by_text(f"in logits: {total:+.3f}".replace("-", "−")).wait_for()


def test_an_attention_opens_into_heads_and_positions(page):
    panel = opened_inside(page)
    panel.locator("canvas").nth(1).focus()
    page.press("ArrowRight", "ArrowRight")  # the embedding, then L0.attn
    page.settle()
    assert "L0.attn: attribution" in panel.inner_text()
    heads = panel.get_by_role("region", name="Heads of layer 0")
    assert heads.locator("tbody tr").count() == 9
    heads.get_by_role("button").first.click()
    page.settle()
    assert panel.get_by_role("region", name=re.compile("Positions of L0")).is_visible()
    panel.get_by_role("button", name="All heads").click()
    panel.get_by_label("Colour the text by").select_option("attribution")
    page.settle()
    assert "attribution, all heads" in page.tab.locator("token-strip").inner_text()


@pytest.mark.slow  # a page alone has it in every run
def test_a_lesson_on_the_inside_of_the_step_that_is_shown(page):
    page.write(PROMPT, **GREEDY)
    page.press("End")
    page.settle()
    page.tab.get_by_role("tab", name="Practice", exact=True).click()
    lesson = page.tab.locator("practice-lesson")
    lesson.get_by_role("button", name=f"The inside of step {page.step + 1}").click()
    page.tab.wait_for_function(
        "() => /and its row has the hash/.test(document.querySelector('practice-lesson').innerText)"
    )
    assert lesson.locator("h2").inner_text().endswith("mask")
    lesson.get_by_role("textbox").fill("5")
    lesson.get_by_role("button", name="Check").click()
    lesson.get_by_role("button", name="Next").wait_for()
    assert "Right." in lesson.inner_text()
    assert lesson.inner_text().count("the same bits") == 5
    lesson.get_by_role("button", name="The sample").click()
    lesson.get_by_text("Which token comes next?").wait_for()


def test_the_step_without_each_word(page, smollm2_alone, tmp_path):
    page.write(PROMPT, **GREEDY)
    page.press("Home")
    page.settle()
    trace = page.download_run(tmp_path / "run.jsonl")
    found = ablate(smollm2_alone, trace, 0, by="word")
    page.tab.get_by_role("tab", name="Leave out").click()
    panel = page.tab.locator("without-panel")
    panel.get_by_role("button", name="Leave it out").click()
    panel.locator("tbody tr").first.wait_for()
    rows = [row.split("\t") for row in panel.locator("tbody").inner_text().split("\n")]
    best = sorted(found.parts, key=lambda part: -abs(part.effect))
    assert [row[0] for row in rows] == [str(part.start) for part in best]
    lost = [float(row[4].replace("−", "-")) for row in rows]
    assert lost == pytest.approx([part.effect for part in best], abs=6e-4)
    assert panel.locator(".left-out").inner_text() == PROMPT
    assert "repeated words mask each other" in panel.inner_text()
    page.press("ArrowRight")
    page.settle()
    assert not panel.locator("tbody").is_visible()  # it was of another step
