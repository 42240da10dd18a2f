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
        page.tab.get_by_role("tab", name="Compare", exact=True).click()
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
    page.tab.keyboard.press("Enter")
    rows = page.tab.locator("step-facts dl div")
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
        page.tab.set_viewport_size({"width": width, "height": 800})
        page.settle()
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
