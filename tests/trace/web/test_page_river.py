"""The river of a step, its stations, which open panels, and its time."""

import pytest

from cutaway import LLM
from cutaway.trace import Trace, to_html

STATIONS = [
    "tokens", "embedding", "2 layers", "logits → softmax", "sampler settings", "luck", "token",
    "why it ended",
]  # fmt: skip
OPENS = {
    "tokens": "Leave out", "embedding": "Inside", "layers": "Inside", "logits": "Step",
    "chain": "Step", "luck": "Practice", "token": "Branches", "end": "Why it ended",
}  # fmt: skip


def written(page, **settings):
    page.write("ab", **{"max_tokens": 12, "ignore_eos": True, "seed": 1, **settings})
    page.settle()
    return page


def title(page, name):
    return station(page, name).get_by_role("button").get_attribute("title")


def station(page, name):
    return page.tab.locator(f"river-view .at-{name}")


def test_the_figures_are_those_of_the_selected_step(open_page, tiny_server, tmp_path):
    page = written(open_page(tiny_server.url))
    steps = page.download_run(tmp_path / "run.jsonl").steps
    assert page.tab.locator("river-view li").all_inner_texts() == STATIONS
    for key, step in (("Home", steps[0]), ("End", steps[-1])):
        page.press(key)
        page.settle()
        assert f"{step.position} so far" in title(page, "tokens")
        assert f"rank {step.observed.rank}" in title(page, "token")
        bands = page.tab.locator("river-view .band[data-id]")
        ids = bands.evaluate_all("(all) => all.map((band) => Number(band.dataset.id))")
        assert sorted(ids) == sorted(c.id for c in step.observed.candidates)
        won = page.tab.locator("river-view .race.chosen").get_attribute("data-id")
        assert int(won) == step.token_id
    assert "heads" in title(page, "layers")


def test_a_band_selects_its_candidate(open_page, tiny_server):
    page = written(open_page(tiny_server.url))
    band = page.tab.locator("river-view .band[data-id]").nth(1)
    band.dispatch_event("click")
    page.settle()
    selected = page.tab.locator("river-view .band.selected").get_attribute("data-id")
    assert selected == band.get_attribute("data-id")
    assert (
        page.tab.locator("step-waterfall tr[aria-current]").get_by_role("cell").nth(2).inner_text()
        == "2"
    )


def test_a_station_opens_its_panel_by_keyboard(open_page, tiny_server):
    page = written(open_page(tiny_server.url))
    for name, panel in OPENS.items():
        page.tab.get_by_role("tab", name="Timelines").click()
        page.settle()
        station(page, name).get_by_role("button").focus()
        page.press("Enter")
        page.settle()
        assert page.tab.get_by_role("tabpanel", name=panel, exact=True).is_visible(), name
        focused = "() => document.activeElement.closest('li')?.className"
        assert page.tab.evaluate(focused) == f"station at-{name}"  # the focus stays


def test_the_stairs_of_time_open_timelines(open_page, tiny_server):
    page = written(open_page(tiny_server.url))
    told = page.tab.locator("time-view").inner_text()
    assert "% of the time is the model" in told
    assert "12 steps" in told
    page.tab.get_by_role("button", name="All steps: Timelines").click()
    page.settle()
    assert page.tab.get_by_role("tabpanel", name="Timelines", exact=True).is_visible()


def test_every_figure_of_the_step_is_explained(open_page, tiny_server):
    page = written(open_page(tiny_server.url))
    parts = page.tab.locator(
        "river-view li button, river-view :is(.band, .fall, .gate, .race) title"
    )
    assert parts.count() > 12
    titles = parts.evaluate_all("(all) => all.map((one) => one.title || one.textContent)")
    assert all(len(words) > 8 for words in titles)
    fold = page.tab.get_by_role("button", name="Figures")
    fold.focus()
    assert not page.tab.locator("step-facts dl").is_visible()
    page.press("Enter")
    rows = page.tab.locator("step-facts dl div")
    rows.first.wait_for()
    texts = [(row.locator("dt").inner_text(), row.locator("dd").last.inner_text())
             for row in rows.all()]  # fmt: skip
    assert {"surprise", "entropy", "rank", "KV cache", "row hash", "fingerprint"} <= {*dict(texts)}
    assert all(len(meaning) > 15 for _, meaning in texts)
    assert not page.barriers("step-facts")


OUTSIDE = """(all) => all.filter((mark) => {
    const boxes = [mark, mark.closest("river-view")].map((one) => one.getBoundingClientRect());
    const [own, view] = boxes;
    return own.width && (own.left < view.left - 3 || own.right > view.right + 3);
}).map((mark) => mark.textContent)"""
CUT = "(box) => box.scrollWidth > box.clientWidth + 1"


@pytest.mark.parametrize(
    ("scheme", "width"),
    [("light", 1400), pytest.param("dark", 1000, marks=pytest.mark.slow), ("dark", 390)],
)
def test_it_fits_and_has_no_barrier(open_page, tiny_server, scheme, width):
    page = written(open_page(tiny_server.url, width, 800, color_scheme=scheme))
    texts = page.tab.locator("river-view .label, river-view .station")
    assert not texts.evaluate_all(OUTSIDE)
    if width > 390:
        assert not page.tab.locator("step-waterfall .scrolling").evaluate(CUT)
    assert not page.barriers("river-view")
    assert not page.barriers("time-view")
    assert page.tab.evaluate("() => document.documentElement.scrollWidth") <= width


def test_a_window_without_room_keeps_the_river(open_page, tiny_server):
    page = written(open_page(tiny_server.url))
    sentence = page.tab.locator("river-view .says").inner_text()
    page.tab.locator("river-view").evaluate("(one) => { one.style.width = '0'; one.show(); }")
    assert page.tab.locator("river-view .says").inner_text() == sentence
    assert page.tab.locator("river-view .band").count() > 1


@pytest.mark.slow  # another test of large type is in every run
def test_large_type_stays_within_the_page(open_page, tiny_server):
    page = written(open_page(tiny_server.url))
    page.tab.evaluate("() => { document.documentElement.style.fontSize = '24px'; }")
    page.settle()
    assert not page.tab.locator("river-view .label, river-view .station").evaluate_all(OUTSIDE)


def test_branch_covers_no_figure(open_page, tiny_server):
    page = written(open_page(tiny_server.url, 1000, 800))
    page.tab.locator("step-waterfall tbody tr:not(.chosen)").first.click()
    page.settle()
    covered = """(button) => {
        const box = button.getBoundingClientRect();
        return [...button.closest("tr").querySelectorAll("td:not(.action), th")].some((cell) => {
            const range = document.createRange();
            range.selectNodeContents(cell);
            return [...range.getClientRects()].some((text) => text.width > 1
                && text.left < box.right && text.right > box.left
                && text.top < box.bottom && text.bottom > box.top);
        });
    }"""
    button = page.tab.locator("step-waterfall .branch")
    for width in (1000, 390):
        page.resize(width, 800)
        assert not button.evaluate(covered), width
        button.click(trial=True)  # nothing lies over it


def test_nothing_moves_by_itself(open_page, tiny_server):
    page = written(open_page(tiny_server.url))
    moving = "() => document.querySelector('river-view').getAnimations({ subtree: true }).length"
    assert page.tab.evaluate(moving) == 0


@pytest.mark.slow  # two exports are in every run
def test_an_exported_file_has_the_river_with_the_stations_that_it_can_open(
    open_page, tiny_path, tmp_path
):
    llm = LLM(tiny_path, threads=1, progress=False)
    llm.generate("ab", max_tokens=6, seed=3, trace=tmp_path / "run.jsonl", ignore_eos=True)
    out = tmp_path / "run.html"
    out.write_text(to_html(Trace.read(tmp_path / "run.jsonl")))
    page = open_page(out.as_uri())
    page.settle()
    assert page.tab.locator("river-view li").all_inner_texts() == STATIONS
    station(page, "token").get_by_role("button").click()
    page.settle()
    assert page.tab.get_by_role("tabpanel", name="Branches").is_visible()
    assert not station(page, "luck").get_by_role("button").count()  # lessons need a server


# -- other settings ------------------------------------------------------------------------------


def handle(page, name="temperature"):
    return page.tab.locator("river-view").get_by_role("slider", name=name)


def exact(page):
    """What the page says once the model has computed the step again."""
    page.settle()
    page.tab.locator("river-view .tells").get_by_text("Exact: computed again").wait_for()
    return page.tab.locator("river-view .tells").inner_text()


def test_a_handle_draws_what_the_model_then_computes(open_page, tiny_server, tiny_path, tmp_path):
    page = written(open_page(tiny_server.url))
    trace = page.download_run(tmp_path / "run.jsonl")
    page.press("Home", *["ArrowRight"] * 4)
    page.settle()
    handle(page).focus()
    page.press("Home")
    flipped = page.tab.locator("token-strip [data-flip]")
    while not flipped.count() and float(handle(page).input_value()) < 2:
        page.press("ArrowDown")
        page.settle()
    temperature = float(handle(page).input_value())
    assert page.step == 4  # the keys are the slider's
    row = f"{trace.steps[4].logits_hash:016x}"
    assert exact(page) == f"Exact: computed again by the model, row hash {row} as recorded."
    done = LLM(tiny_path, threads=1, progress=False).generate(
        "ab", max_tokens=5, ignore_eos=True, seed=1, temperature=temperature,
        forced=trace.output_token_ids[:4],
    )  # fmt: skip
    won = page.tab.locator("river-view .race.chosen")
    drawn = done.token_ids[4]
    if temperature:
        assert int(won.get_attribute("data-id")) == drawn
    assert drawn != trace.steps[4].token_id
    faded = "(chips) => chips.map((chip) => getComputedStyle(chip).opacity)"
    assert set(page.tab.locator(".chip[data-flip] ~ .chip").evaluate_all(faded)) == {"0.35"}
    page.tab.locator("river-view").get_by_role("button", name="Run it").click()
    page.wait_for_runs()
    fork = page.download_run(tmp_path / "fork.jsonl")
    assert fork.output_token_ids[:5] == (*trace.output_token_ids[:4], drawn)
    assert not flipped.count()


FRAMES = """async () => {
    const view = document.querySelector("river-view");
    const took = [];
    for (let i = 0; i < 40; i++) {
        view.store.state.whatIf = { temperature: 0.2 + i * 0.04 };
        const began = performance.now();
        view.draw();
        view.getBoundingClientRect(); // the layout, too
        took.push(performance.now() - began);
    }
    return Math.min(...took); // what it takes while nothing else holds the processor
}"""


def test_a_dragged_handle_is_followed_within_a_frame(open_page, tiny_server):
    page = written(open_page(tiny_server.url))
    box = handle(page).bounding_box()
    x, low = box["x"] + box["width"] / 2, box["y"] + box["height"]
    page.tab.mouse.move(x, box["y"] + 0.35 * box["height"] + 4)  # temperature 0.7 of 2
    page.tab.mouse.down()
    page.tab.mouse.move(x, low - 20, steps=12)
    page.settle()
    assert float(handle(page).input_value()) > 1.5
    before = page.tab.locator("river-view .band").first.get_attribute("d")
    page.tab.mouse.move(x, low - 90, steps=12)
    page.settle()
    assert page.tab.locator("river-view .band").first.get_attribute("d") != before
    page.tab.mouse.up()
    assert "as recorded" in exact(page)
    page.tab.locator("river-view").get_by_role("button", name="As recorded").click()
    page.settle()
    assert handle(page).input_value() == "0.7"
    assert page.tab.evaluate(FRAMES) < 16.7


PICTURE = "() => document.querySelector('river-view svg').outerHTML"


def test_a_river_that_was_dragged_is_the_one_of_its_address(open_page, tiny_server):
    page = written(open_page(tiny_server.url))
    page.press("Home", "ArrowRight")
    for value in ("0", "1.9", "0.05", "1.2"):
        handle(page).fill(value)
        exact(page)
    handle(page, "top-p").fill("0.6")
    exact(page)
    dragged = page.tab.evaluate(PICTURE)
    page.reload()
    page.wait_for_runs()
    exact(page)
    assert page.tab.evaluate(PICTURE) == dragged


def test_a_setting_that_is_off_can_be_dragged_into_force(open_page, tiny_server):
    page = written(open_page(tiny_server.url), temperature=0)
    assert page.tab.locator("river-view .label", has_text="temperature 0").count() == 1
    handle(page).fill("0.8")
    assert "as recorded" in exact(page)
    assert page.tab.locator("river-view .race").count() > 1
    handle(page, "top-p").fill("0.5")
    assert "as recorded" in exact(page)
    assert page.tab.locator("river-view .fall").count() == 1


def test_an_exported_file_says_that_it_approximates(open_page, tiny_path, tmp_path):
    llm = LLM(tiny_path, threads=1, progress=False)
    llm.generate("ab", max_tokens=6, seed=3, trace=tmp_path / "run.jsonl", ignore_eos=True)
    out = tmp_path / "run.html"
    out.write_text(to_html(Trace.read(tmp_path / "run.jsonl")))
    page = open_page(out.as_uri())
    page.settle()
    handle(page).fill("1.5")
    page.settle()
    assert "Approximated from the record" in page.tab.locator("river-view .tells").inner_text()
    assert not page.tab.get_by_role("button", name="Run it").count()
