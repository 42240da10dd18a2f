"""Canvases on the page: cells pass by pass, live and from a file; forks; accessibility."""

import pytest

from cutaway import LLM
from cutaway.features.practice.lessons.ways import ways
from support.browser import expect
from support.served import serve

CELLS = 12
DENOISE = {"rule": "mask-predict", "steps": 6}


@pytest.fixture(scope="module")
def server(tiny_diffusion_path):
    with serve(LLM(tiny_diffusion_path, threads=1, progress=False)) as served:
        yield served


@pytest.fixture(scope="module")
def alone(tiny_diffusion_path):
    return LLM(tiny_diffusion_path, threads=1, progress=False)


def written(page, **denoise):
    page.write("ab", max_tokens=CELLS, denoise=denoise or DENOISE, seed=3)
    return page


def fates(page):
    cells = page.tab.locator("canvas-panel .cells .cell")
    return cells.evaluate_all("(all) => all.map((cell) => cell.dataset.fate)")


def expected(passes, at):
    """The state of each cell after a pass, from the engine's passes."""

    def standing(upto):
        now = {}
        for made in passes[:upto]:
            now |= {cell.position: cell.now for cell in made.cells}
            now |= dict.fromkeys(made.masked_again)
        return now

    before, after = standing(at), standing(at + 1)
    first, fates = passes[0].block[0], []
    for position in range(first, first + CELLS):
        was, now = before.get(position), after.get(position)
        if now is None:
            again = position in passes[at].masked_again
            looked = position in {cell.position for cell in passes[at].cells}
            fates.append("again" if again else "masked" if looked else "later")
        else:
            fates.append("fresh" if was is None else "kept" if was == now else "edited")
    return fates


def test_a_diffusion_models_page_opens_on_its_canvas(open_page, server):
    page = open_page(server.url)
    page.tab.get_by_text("fills a row of cells").wait_for()
    page.settle()
    assert page.tab.get_by_role("tab", name="Canvas").get_attribute("aria-selected") == "true"
    assert not page.tab.locator("river-view").is_visible()
    assert page.tab.locator("first-look").inner_text() == "Help · Practice · Lessons · A class"
    assert "SmolLM2" not in page.tab.locator("body").inner_text()
    page.tab.get_by_role("tab", name="Completion").click()
    page.tab.get_by_role("button", name="Mr. Darcy").click()
    page.wait_for_runs()
    assert page.tab.locator("canvas-panel .cells .cell").count() == 48


def test_settings_of_a_text_from_left_to_right_are_not_shown(open_page, server):
    page = open_page(server.url)
    groups = page.tab.locator("settings-panel summary")
    groups.filter(has_text="Canvas").wait_for()
    for title in ("KV cache", "JSON schema"):
        assert not groups.filter(has_text=title).is_visible()


@pytest.mark.parametrize(
    "denoise", [DENOISE, {"rule": "edit", "threshold": 0.05, "block": 5}, {"steps": 3}]
)
def test_the_cells_are_those_of_every_pass(open_page, server, alone, denoise):
    page = written(open_page(server.url), **denoise)
    passes = alone.generate("ab", denoise=denoise, max_tokens=CELLS, seed=3).passes
    assert page.tab.get_by_role("tabpanel", name="Canvas").is_visible()
    page.tab.locator("token-strip .tokens").focus()
    for at in reversed(range(len(passes))):
        page.settle()
        assert f"pass {at + 1} of {len(passes)}" in page.tab.locator("canvas-panel").inner_text()
        assert fates(page) == expected(passes, at), at
        page.press("P")
    said = page.tab.locator("canvas-panel dl").last.inner_text().split()
    assert str(sum(made.rows for made in passes)) in said
    assert f"{CELLS / len(passes):.2f}" in said


def test_a_cell_tells_its_life(open_page, server, alone):
    page = written(open_page(server.url))
    passes = alone.generate("ab", denoise=DENOISE, max_tokens=CELLS, seed=3).passes
    cell = 4
    page.tab.locator("canvas-panel .cells .cell").nth(cell).click()
    page.settle()
    assert page.step == cell
    position = passes[0].block[0] + cell
    looked = [m.index for m in passes if position in {one.position for one in m.cells}]
    shown = page.tab.locator("canvas-panel .life tbody tr")
    assert shown.count() == len(looked)
    shown.first.get_by_role("button").click()
    page.settle()
    assert "pass 1 of" in page.tab.locator("canvas-panel .where").inner_text()
    assert "pass=0" in page.address


def test_a_cell_is_given_another_token_in_a_pass(open_page, server, alone):
    page = written(open_page(server.url), steps=4)
    page.tab.locator("canvas-panel .cells .cell").nth(2).click()
    page.tab.locator("token-strip .tokens").focus()
    page.press("P", "P", "P")
    page.settle()
    page.tab.get_by_label("The chosen cell").locator(".row button.token").last.click()
    page.wait_for_runs(2)
    shown = page.tab.locator("run-picker select").locator("option").last.inner_text()
    assert "in cell 3, pass 1" in shown
    passes = alone.generate("ab", denoise={"steps": 4}, max_tokens=CELLS, seed=3).passes
    token = next(c for c in passes[0].cells if c.position == passes[0].block[0] + 2).likely[1][0]
    again = alone.generate(
        "ab", denoise={"steps": 4, "forced_cells": [(0, 2, token)]}, max_tokens=CELLS, seed=3
    )
    page.press("End")
    page.settle()
    page.tab.get_by_role("button", name="Figures").click()
    figures = page.tab.locator("step-facts dl div")
    figures.last.get_by_text(again.fingerprint).wait_for()


def test_the_panel_asks_for_a_canvas(open_page, server):
    page = open_page(server.url)
    page.tab.locator("settings-panel").get_by_text("Canvas", exact=True).click()
    page.tab.get_by_label("rule", exact=True).select_option("left")
    page.tab.get_by_label("steps", exact=True).fill("3")
    page.tab.get_by_role("tab", name="Completion").click()
    page.tab.get_by_label("Text to continue").fill("ab")
    page.tab.get_by_role("button", name="Write", exact=True).click()
    page.wait_for_runs()
    said = page.tab.locator("canvas-panel dl").last.inner_text()
    assert "order left" in said and "steps 3" in said and "loss at most" in said


def test_passes_are_played(open_page, server):
    page = written(open_page(server.url), steps=4)
    page.stop_clock()
    page.tab.locator("canvas-panel").get_by_role("button", name="Play").click()
    for number in (1, 2, 3, 4):
        page.tab.clock.run_for(50)
        page.tab.locator("canvas-panel .where").get_by_text(f"pass {number} of 4").wait_for()
        page.tab.clock.run_for(550)
    page.tab.locator("canvas-panel").get_by_role("button", name="Play").wait_for()


@pytest.mark.each_choice
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 360])
def test_no_serious_barrier(open_page, server, scheme, width):
    page = written(open_page(server.url, width, color_scheme=scheme))
    page.press("P", "P")
    page.settle()
    assert not page.barriers()
    assert page.tab.evaluate("() => document.documentElement.scrollWidth") <= width


def test_one_file_shows_a_canvas(open_page, alone, tmp_path, capsys):
    from cutaway.cli.main import main

    run, out = tmp_path / "run.jsonl", tmp_path / "run.html"
    done = alone.generate("ab", denoise=DENOISE, max_tokens=CELLS, seed=3, trace=run)
    assert main(["trace", "export", str(run), "--html", str(out)]) == 0
    page = open_page(out.as_uri())
    page.settle()
    assert page.tab.get_by_role("tabpanel", name="Canvas").is_visible()
    assert fates(page) == expected(done.passes, len(done.passes) - 1)
    page.press("P", "P")
    page.settle()
    assert fates(page) == expected(done.passes, len(done.passes) - 3)
    assert page.tab.get_by_text("continue with the same luck").count() == 0


def test_the_next_cell_is_chosen_by_hand(open_page, server):
    page = written(open_page(server.url), steps=4)
    page.press("P", "P", "P")
    page.tab.get_by_role("tab", name="Practice", exact=True).click()
    page.tab.get_by_role("button", name="Cells of pass 1").click()
    page.tab.get_by_text("masked cells in pass 1 of your run").wait_for()
    lesson = page.tab.locator("practice-lesson")
    figures = lesson.locator("tbody tr td:nth-child(3)").all_inner_texts()
    best = max(range(len(figures)), key=lambda i: float(figures[i]))
    lesson.locator(".answers button").nth(best).click()
    lesson.get_by_text("Right.").wait_for()


def test_three_ways_to_write_are_shown_by_the_model_that_is_served(open_page, server, alone):
    page = open_page(server.url)
    page.tab.get_by_role("tab", name="Practice", exact=True).click()
    page.tab.get_by_role("button", name="Three ways to write").click()
    lesson = page.tab.locator("practice-lesson")
    lesson.get_by_text("Direction. 24 cells").wait_for()
    answer = ways(alone).exercises[0].answer.solution
    lesson.get_by_role("textbox").fill(answer)
    lesson.get_by_role("button", name="Check").click()
    lesson.get_by_text("Right.").wait_for()
    expect(lesson).to_contain_text("The order was")


@pytest.fixture(scope="module")
def toy_canvas():
    with serve(LLM("toy-canvas", threads=1, progress=False)) as served:
        yield served


def test_the_first_click_works_with_a_model_that_only_fills_a_canvas(open_page, toy_canvas):
    page = open_page(toy_canvas.url)
    page.tab.get_by_role("button", name="Mr. Darcy").wait_for()
    ways = page.tab.get_by_role("tablist", name="How to write").get_by_role("tab")
    assert ways.all_inner_texts() == ["Completion"]
    page.tab.get_by_label("Text to continue").fill("Mr. Darcy ")
    page.tab.get_by_role("button", name="Write", exact=True).click()
    cells = page.tab.locator("canvas-panel .cells .cell")
    cells.nth(245).wait_for()  # with the first pass; all of them take many
    # A quick machine may have made all passes by now.
    page.tab.get_by_role("button", name="Stop").evaluate_all("found => found[0]?.click()")
    page.settle()
    assert cells.count() == 246  # 256, less the prompt's 10
    panels = page.tab.get_by_role("tablist", name="Panels").get_by_role("tab")
    assert not {"Inside", "Leave out"} & {*panels.all_inner_texts()}
    page.go(kind="chat", panel="inside", runs=[])
    page.settle()
    page.tab.get_by_role("tab", name="Completion", selected=True).wait_for()
    assert not any("/v1/inside" in url for url in page.requests)


@pytest.fixture(scope="module")
def toy_noise():
    with serve(LLM("toy-noise", threads=1, progress=False)) as served:
        yield served


def test_a_model_of_noise_runs_with_what_its_fields_show(open_page, toy_noise):
    page = open_page(toy_noise.url)
    page.tab.get_by_role("button", name="Mr. Darcy").wait_for()
    page.tab.locator("details", has_text="Canvas").locator("summary").first.click()
    rule = page.tab.get_by_label("rule", exact=True)
    expect(rule).to_have_value("diffusion-gemma")
    possible = "(all) => all.filter((option) => !option.hidden).map((option) => option.value)"
    assert rule.locator("option").evaluate_all(possible) == ["diffusion-gemma"]
    page.tab.get_by_role("button", name="pure", pressed=True).wait_for()
    page.tab.get_by_role("button", name="balanced").click()
    page.tab.get_by_label("noise", exact=True).select_option("reuse")
    page.tab.get_by_label("Text to continue").fill("Mr. Darcy ")
    page.tab.get_by_label("max_tokens", exact=True).last.fill(str(CELLS))
    with page.tab.expect_request("**/v1/completions") as sent:
        page.tab.get_by_role("button", name="Write", exact=True).click()
    body = sent.value.post_data_json
    assert (body["temperature"], body["top_p"]) == (0.7, 0.9)
    assert body["denoise"] == {"noise": "reuse"}
    page.wait_for_runs()


def test_the_canvas_of_a_model_of_noise_speaks_of_no_mask(open_page, toy_noise):
    page = open_page(toy_noise.url)
    page.write("Mr. Darcy ", max_tokens=CELLS, denoise=True, seed=3)
    page.settle()
    words = page.tab.locator("canvas-panel").inner_text().replace("remask", "")  # a setting's name
    assert "kept from this pass on" in words
    assert "mask" not in words
    assert "loss at most" not in words  # the last tokens were not drawn together
