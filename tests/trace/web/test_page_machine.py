"""The drawing of the machine: figures of the selected step, stations that open panels, a pulse."""

import pytest

from cutaway import LLM
from cutaway.trace import Trace, to_html

STATIONS = [
    "tokens", "embedding", "2 layers", "logits → softmax", "sampler settings", "luck", "token",
]  # fmt: skip
OPENS = {
    "tokens": "Leave out", "embedding": "Inside", "layers": "Inside", "logits": "Step",
    "chain": "Step", "luck": "Practice", "token": "Branches",
}  # fmt: skip


def written(page, **settings):
    page.write("ab", **{"max_tokens": 12, "ignore_eos": True, "seed": 1, **settings})
    page.settle()
    return page


def station(page, name):
    return page.tab.locator(f"machine-view .at-{name}")


def test_the_figures_are_those_of_the_selected_step(open_page, tiny_server, tmp_path):
    page = written(open_page(tiny_server.url))
    steps = page.download_run(tmp_path / "run.jsonl").steps
    assert page.tab.locator("machine-view .name").all_inner_texts() == STATIONS
    for key, step in (("Home", steps[0]), ("End", steps[-1])):
        page.press(key)
        page.settle()
        assert f"{step.position} so far" in station(page, "tokens").inner_text()
        assert f"rank {step.observed.rank}" in station(page, "token").inner_text()
    assert "heads" in station(page, "layers").inner_text()


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


def test_the_way_back_opens_timelines_and_why_it_ended(open_page, tiny_server):
    page = written(open_page(tiny_server.url))
    for name, panel in (("and again", "Timelines"), ("why it ended", "Why it ended")):
        page.tab.locator("machine-view").get_by_role("button", name=name).click()
        page.settle()
        assert page.tab.get_by_role("tabpanel", name=panel, exact=True).is_visible()


def test_every_figure_of_the_step_is_explained(open_page, tiny_server):
    page = written(open_page(tiny_server.url))
    figures = page.tab.locator("machine-view .figure")
    assert figures.count() > 12
    assert all(figures.evaluate_all("(all) => all.map((one) => one.title.length > 15)"))
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


OUTSIDE = """(all) => all.filter((text) => {
    const [own, part] = [text, text.closest("li")].map((one) => one.getBoundingClientRect());
    return own.width && (own.left < part.left - 3 || own.right > part.right + 3);
}).map((text) => text.textContent)"""
CUT = "(box) => box.scrollWidth > box.clientWidth + 1"


@pytest.mark.parametrize(
    ("scheme", "width"),
    [("light", 1400), pytest.param("dark", 1000, marks=pytest.mark.slow), ("dark", 390)],
)
def test_it_fits_and_has_no_barrier(open_page, tiny_server, scheme, width):
    page = written(open_page(tiny_server.url, width, 800, color_scheme=scheme))
    texts = page.tab.locator("machine-view .name, machine-view .figure")
    assert not texts.evaluate_all(OUTSIDE)
    if width > 390:
        assert not page.tab.locator("step-waterfall .scrolling").evaluate(CUT)
    assert not page.barriers("machine-view")
    page.tab.locator("machine-view .pulse").evaluate(
        "(pulse) => { pulse.style.transform = 'translateX(100%)'; }"  # as at its end
    )
    assert page.tab.evaluate("() => document.documentElement.scrollWidth") <= width


@pytest.mark.slow  # another test of large type is in every run
def test_large_type_stays_within_the_page(open_page, tiny_server):
    page = written(open_page(tiny_server.url))
    page.tab.evaluate("() => { document.documentElement.style.fontSize = '24px'; }")
    page.settle()
    assert not page.tab.locator("machine-view .name, machine-view .figure").evaluate_all(OUTSIDE)


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


def test_the_pulse_runs_while_a_text_is_written_and_is_still_afterwards(open_page, tiny_server):
    page = open_page(tiny_server.url)
    page.go(kind="completion", settings={"max_tokens": 240, "ignore_eos": True})  # many frames
    page.tab.evaluate("""() => {
        window.pulses = 0;
        document.addEventListener("animationstart", (event) => {
            if (event.animationName.startsWith("machine-pulse")) window.pulses += 1;
        });
    }""")
    page.tab.get_by_role("tab", name="Completion").click()
    page.tab.get_by_label("Text to continue").fill("ab")
    page.tab.get_by_role("button", name="Write", exact=True).click()
    page.wait_for_runs()
    page.tab.wait_for_function("() => window.pulses > 0")
    page.tab.wait_for_function("() => !document.querySelector('machine-view .pulse.runs')")


def test_nothing_moves_where_motion_is_not_wanted(open_page, tiny_server):
    page = written(open_page(tiny_server.url, reduced_motion="reduce"))
    moving = "() => document.querySelector('machine-view').getAnimations({ subtree: true }).length"
    assert page.tab.evaluate(moving) == 0
    name = (
        "(pulse) => { pulse.classList.add('runs'); return getComputedStyle(pulse).animationName; }"
    )
    assert page.tab.locator("machine-view .pulse").evaluate(name) == "none"


@pytest.mark.slow  # two exports are in every run
def test_an_exported_file_has_the_machine_with_the_stations_that_it_can_open(
    open_page, tiny_path, tmp_path
):
    llm = LLM(tiny_path, threads=1, progress=False)
    llm.generate("ab", max_tokens=6, seed=3, trace=tmp_path / "run.jsonl", ignore_eos=True)
    out = tmp_path / "run.html"
    out.write_text(to_html(Trace.read(tmp_path / "run.jsonl")))
    page = open_page(out.as_uri())
    page.settle()
    assert page.tab.locator("machine-view .name").all_inner_texts() == STATIONS
    station(page, "token").get_by_role("button").click()
    page.settle()
    assert page.tab.get_by_role("tabpanel", name="Branches").is_visible()
    assert not station(page, "luck").get_by_role("button").count()  # lessons need a server
