"""Temperature 0 on the page: one band, 100% and 0%, no draw and no luck; also with the slider."""

from cutaway.trace import Trace

GREEDY = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}


def finals(page):
    """Return the final probability of each row of the step's table, the chosen one first."""
    rows = page.tab.locator("step-waterfall tbody tr")
    cells = rows.locator(".shares .mono:last-child").all_inner_texts()
    chosen = rows.evaluate_all("(all) => all.findIndex((row) => row.classList.contains('chosen'))")
    return [cells.pop(chosen), *cells]


def test_a_greedy_step(open_page, tiny_server, tmp_path):
    page = open_page(tiny_server.url)
    page.write("ab", **GREEDY)
    trace = page.download_run(tmp_path / "run.jsonl")
    page.settle()
    first, *others = finals(page)
    assert first == "100%"
    assert {*others} == {"0.0%"}
    assert len(others) == len(trace.steps[0].observed.candidates) - 1
    marks = page.tab.locator("step-waterfall td.mark").all_inner_texts()
    assert sum("not the likeliest" in mark for mark in marks) == len(others)
    river = page.tab.locator("river-view")
    assert river.locator(".race").count() == 0
    assert "no luck" in river.inner_text()
    stages = page.tab.locator("step-waterfall .stage").all_inner_texts()
    assert [stage.split()[-1] for stage in stages if "temperature 0" in stage] == ["100%"]


def test_why_a_greedy_text_went_on(open_page, tiny_server):
    page = open_page(tiny_server.url)
    page.write("ab", **GREEDY)
    page.tab.get_by_role("tab", name="Why it ended").click()
    page.settle()
    told = page.tab.locator("why-panel").inner_text()
    assert "Of 12 steps, in 12 the end token was not the likeliest." in told
    assert "after the chain it was 100%. Temperature 0 takes the likeliest token" in told
    assert "draw" not in told
    assert "Expected ends" not in told


def test_the_slider_at_0_leaves_one_band(open_page, tiny_server, tmp_path):
    page = open_page(tiny_server.url)
    page.write("ab", **(GREEDY | {"temperature": 0.8, "seed": 3}))
    trace: Trace = page.download_run(tmp_path / "run.jsonl")
    page.press("Home")
    page.tab.get_by_role("tab", name="What if").click()
    page.tab.locator("what-if").get_by_role("slider", name="temperature").fill("0")
    box = page.tab.locator("what-if")
    box.get_by_text("temperature 0 takes it, without luck").wait_for()
    rows = [row.split("\t") for row in box.locator("tbody tr").all_inner_texts()]
    best = trace.name_of(trace.steps[0].observed.candidates[0].id)
    taken, *others = sorted(rows, key=lambda row: row[-1] != "the likeliest: taken")
    assert taken[0].strip("␣") == best.strip()
    assert taken[2] == "100%"
    assert {row[2] for row in others} == {"0.0%"}
    assert {row[-1] for row in others} <= {"not the likeliest", ""}  # the last row has all others
    assert page.tab.locator("river-view .race").count() == 0
