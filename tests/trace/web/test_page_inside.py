"""The panels Inside and Without of a run of SmolLM2: figures, marks and drawings of a step."""

import re

import pytest

from cutaway.features.inside.ablate import ablate
from cutaway.features.inside.look import inside
from support.arcs import check_arcs
from support.browser import GREEDY, LUCKY, PROMPT, SEEN

pytestmark = pytest.mark.model


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
        page.resize(width, height)
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
    page.reload()
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
    page.resize(1000, 800)  # the text wraps otherwise
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
