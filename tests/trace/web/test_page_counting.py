"""The page counts steps, passes and cells from 1 for its readers; its address keeps the index."""

import re

import pytest

from cutaway import LLM
from support.served import serve

ZERO = re.compile(r"\b(steps?|pass(es)?|cells?|at) 0\b(?!\.\d)", re.IGNORECASE)
PANELS = (
    "Step", "Inside", "Leave out", "What if", "Timelines", "Why it ended", "Branches", "Practice",
)  # fmt: skip
RUN = {"temperature": 0.8, "max_tokens": 12, "ignore_eos": True, "seed": 3}
SHOWN = """() => {
  const all = [...document.querySelectorAll("*")];
  const names = ["title", "aria-label", "aria-valuetext", "placeholder"];
  return [document.body.innerText, ...all.flatMap((element) =>
    names.map((name) => element.getAttribute(name) ?? "")),
    ...all.filter((element) => element.matches("text, title, option")).map((t) => t.textContent)];
}"""


def zeros(page):
    """Return what the page shows or tells that counts a step, pass or cell from 0."""
    page.settle()
    return [text[:200] for text in page.tab.evaluate(SHOWN) if ZERO.search(text)]


def open_each(page, tabs):
    """Select each of these tabs in turn, and yield its name."""
    for name in tabs:
        page.tab.get_by_role("tab", name=name, exact=True).click()
        page.settle()
        yield name


@pytest.fixture(scope="module")
def diffusion(tiny_diffusion_path):
    with serve(LLM(tiny_diffusion_path, threads=1, progress=False)) as served:
        yield served


def test_each_panel_counts_from_1_at_the_first_step(open_page, tiny_server):
    page = open_page(tiny_server.url)
    page.write("ab", **RUN)
    page.fork(0)
    assert page.step == 0
    assert "step 1 of " in page.tab.locator("step-facts").inner_text()
    assert page.tab.locator("run-picker option").last.inner_text().endswith(" at 1")
    for name in open_each(page, PANELS):
        assert zeros(page) == [], name
    for name in open_each(page, ("How a mistake grows", "Why won’t it stop?")):
        assert zeros(page) == [], name
    [_] = open_each(page, ["Step"])
    page.press("Home", "ArrowRight")
    page.settle()
    assert "step 2 of " in page.tab.locator("step-facts").inner_text()
    assert "step=1" in page.address


def test_the_slider_of_steps_goes_from_1_to_their_number(open_page, tiny_server):
    page = open_page(tiny_server.url)
    page.write("ab", **RUN)
    page.press("End")
    [_] = open_each(page, ["Timelines"])
    slider = page.tab.locator("run-timelines").get_by_role("slider", name="Step")
    names = ("aria-valuemin", "aria-valuenow", "aria-valuemax")
    assert [slider.get_attribute(name) for name in names] == ["1", "12", "12"]
    assert page.tab.locator("run-timelines .readout").inner_text().startswith("step 12 ")


def test_a_canvas_counts_passes_and_cells_from_1(open_page, diffusion):
    page = open_page(diffusion.url)
    page.write("ab", max_tokens=8, denoise={"steps": 4}, seed=3)
    page.press("Home")
    page.tab.get_by_label("Pass", exact=True).fill("0")
    assert zeros(page) == []
    assert page.tab.get_by_role("heading", name="Cell 1, position 3").is_visible()
    assert page.tab.locator("canvas-panel .where").inner_text() == "pass 1 of 4"
