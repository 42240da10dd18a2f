"""The page by keyboard alone, on small screens, in both colour schemes, and with hostile texts."""

import json

import pytest

from cutaway import LLM
from cutaway.server.http.settings import ServerSettings
from support.served import serve

HOSTILE = "<img src=x onerror=alert(1)><script>document.title='hit'</script>&amp;\u202e"
PANELS = (
    "Step", "Inside", "Leave out", "What if", "Timelines", "Why it ended", "Branches",
    "Practice",
)  # fmt: skip


def written(page, prompt="ab", **settings):
    page.write(prompt, **{"max_tokens": 12, "ignore_eos": True, "seed": 1, **settings})
    return page


@pytest.mark.parametrize(
    ("width", "scheme", "panels"),
    [
        (1400, "light", PANELS[::2]), (390, "dark", PANELS[1::2]),
        *(pytest.param(width, scheme, PANELS, marks=pytest.mark.slow)
          for width in (1400, 390) for scheme in ("light", "dark")),
    ],
)  # fmt: skip
def test_no_serious_barrier(open_page, tiny_server, scheme, width, panels):
    """Axe takes a second for each panel."""
    page = open_page(tiny_server.url, width, color_scheme=scheme)
    written(page)
    for panel in panels:
        page.tab.get_by_role("tab", name=panel, exact=True).click()
        page.settle()
        # All that is around the panels is checked once.
        assert not page.barriers(None if panel == panels[0] else "panel-tabs"), panel


def test_there_is_no_canvas_panel_for_a_model_that_reveals_none(open_page, tiny_server):
    page = written(open_page(tiny_server.url))
    shown = page.tab.get_by_role("tablist", name="Panels").get_by_role("tab")
    assert shown.all_inner_texts() == [*PANELS]


def test_an_encoder_offers_neither_chat_nor_typing(open_page, tiny_server):
    page = open_page(tiny_server.url)

    def as_encoder(route):
        about = route.fetch().json()
        assert about["chat"]  # or this would prove nothing
        encoder = {"attention": "bidirectional", "writes": False, "canvas": None}
        route.fulfill(json=about | encoder)

    page.tab.route("**/page/about*", as_encoder)
    page.reload()
    page.tab.get_by_text("writes no text").wait_for()
    ways = page.tab.get_by_role("tablist", name="How to write").get_by_role("tab")
    assert ways.all_inner_texts() == ["Completion"]


def test_the_chosen_panel_is_seen(open_page, tiny_server):
    page = written(open_page(tiny_server.url), max_tokens=48)
    for panel in PANELS:
        page.tab.get_by_role("tab", name=panel, exact=True).click()
        page.settle()
        box = page.tab.get_by_role("tabpanel", name=panel, exact=True).bounding_box()
        assert box["y"] < 660, panel  # of a window of 900
        assert page.tab.evaluate("() => scrollY") == 0


def test_the_candidates_use_the_whole_width(open_page, tiny_server):
    page = written(open_page(tiny_server.url))
    table = page.tab.locator("step-waterfall table").bounding_box()
    strip = page.tab.locator("token-strip .tokens").bounding_box()
    assert table["width"] > 0.98 * strip["width"]


def test_a_phone_scrolls_one_way(open_page, tiny_server):
    page = written(open_page(tiny_server.url, 360, 740))
    for panel in PANELS:
        page.tab.get_by_role("tab", name=panel, exact=True).click()
        page.settle()
        wide = page.tab.evaluate("() => document.documentElement.scrollWidth")
        assert wide <= 360, panel


def test_by_keyboard_alone(open_page, tiny_server):
    page = open_page(tiny_server.url)
    page.go(settings={"ignore_eos": True, "max_tokens": 12}, seed="1")  # a text of some tokens
    focused = "() => document.activeElement.innerText || document.activeElement.ariaLabel || ''"

    def tab_to(name):
        for _ in range(80):
            page.press("Tab")
            if name in page.tab.evaluate(focused):
                return
        raise AssertionError(f"{name} cannot be reached")

    tab_to("Chat")
    page.press("ArrowRight")
    page.settle()  # people see the field before they go there
    page.press("Tab")
    page.tab.keyboard.type("ab")
    tab_to("Write")
    page.press("Enter")
    page.wait_for_runs()
    page.press("Home", "ArrowRight")
    page.settle()
    page.press("ArrowDown", "Enter")  # a fork
    page.wait_for_runs(2)
    page.press("Home", "End", "e", "r", "x", "t")
    page.settle()


def test_a_branch_marks_what_it_changed_and_the_view_stays_there(open_page, tiny_server):
    page = written(open_page(tiny_server.url))
    page.fork(5)
    page.settle()
    marks = page.tab.locator("token-strip .chip").evaluate_all(
        "(all) => all.map((chip) => chip.dataset.mark ?? '')"
    )
    assert len(marks) > 12
    assert [at for at, mark in enumerate(marks) if mark] == [5]
    assert page.step == 5


def test_the_most_uncertain_step_is_selected_at_the_end(open_page, tiny_server, tmp_path):
    page = written(open_page(tiny_server.url))
    page.settle()
    steps = page.download_run(tmp_path / "run.jsonl").steps
    assert page.step == min(steps, key=lambda step: step.logprob).index
    assert page.step != len(steps) - 1  # or this would prove nothing
    page.reload()
    page.wait_for_runs()
    assert page.step == min(steps, key=lambda step: step.logprob).index


def test_one_scale_of_colour_at_a_time(open_page, tiny_server):
    page = written(open_page(tiny_server.url, color_scheme="light"))
    surprise = page.tab.get_by_text("surprise: 0 bits")
    background = "(one) => getComputedStyle(one).getPropertyValue('--heat')"
    chip = page.tab.locator("token-strip .chip").last
    assert "217 72 1" in chip.evaluate(background)
    assert surprise.is_visible()
    page.tab.get_by_role("tab", name="Inside").click()
    panel = page.tab.locator("inside-panel")
    panel.locator(".proof .mono").wait_for()
    page.settle()
    assert not surprise.is_visible()
    assert chip.evaluate(background) == "transparent"  # nothing attends to it
    scales = page.tab.locator("token-strip .tint .scale, inside-panel .scale")
    bars = scales.evaluate_all("(all) => all.map((one) => getComputedStyle(one).backgroundImage)")
    assert len(bars) == 2
    assert len(set(bars)) == 1
    assert "a stroke: negative" in panel.inner_text()


def test_large_type_enlarges_the_labels_of_a_drawing_and_their_room(open_page, tiny_server):
    page = written(open_page(tiny_server.url))
    page.tab.get_by_role("tab", name="Timelines").click()
    page.settle()
    names = page.tab.locator("run-timelines .chart .names")
    measure = """(names) => [names.getBoundingClientRect().width,
        Math.max(...[...names.querySelectorAll("text")].map((text) => text.getBBox().height))]"""
    usual = names.evaluate(measure)
    page.press("l")
    page.settle()
    large = names.evaluate(measure)
    assert large[0] == 1.5 * usual[0]
    assert 1.3 < large[1] / usual[1] < 1.7


def test_text_is_only_ever_text(open_page, tiny_server):
    page = open_page(tiny_server.url)
    dialogs = []
    page.tab.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    written(page, HOSTILE)
    page.tab.get_by_role("tab", name="Chat").click()
    page.tab.get_by_label("Your message").fill(HOSTILE)
    page.tab.get_by_label("Your message").press("Enter")
    page.wait_for_runs()
    for panel in PANELS:
        page.tab.get_by_role("tab", name=panel, exact=True).click()
        page.settle()
    assert page.tab.locator("img").count() == 0
    assert page.tab.title() == "cutaway"
    assert not dialogs
    assert "<img src=x" in page.tab.locator("chat-box").inner_text()


def test_a_browser_without_scripts_shows_a_note(open_page, tiny_server):
    page = open_page(tiny_server.url, java_script_enabled=False)
    assert "needs JavaScript" in page.tab.locator("noscript").inner_text()


@pytest.fixture
def guarded(tiny_path):
    """A server with a key. It outlives the page, which asks when it pauses."""
    with serve(LLM(tiny_path, threads=1), ServerSettings(api_key=KEY)) as served:
        yield served


KEY = "Schlüssel’s-😀"


def test_a_key_of_any_letters_is_asked_for_until_it_is_right(guarded, open_page):
    page = open_page(guarded.url)
    page.expected = "401"
    page.tab.get_by_text("this server needs an API key: enter it").wait_for()
    field = page.tab.locator("run-picker input[type=password]")
    for wrong in "wrong", "falsch ’ 😀":
        field.fill(wrong)
        with page.tab.expect_navigation():  # the page loads again
            field.press("Enter")
        page.tab.get_by_text("the API key is wrong").wait_for()
    field.fill(KEY)
    with page.tab.expect_navigation():
        field.press("Enter")
    field.wait_for(state="hidden")
    page.settle()
    assert all("401" in complaint for complaint in page.complaints)
    written(page)


def test_one_file_shows_a_run(open_page, tiny_path, tmp_path, capsys):
    from cutaway.cli.main import main

    folder = tmp_path / "a folder"
    folder.mkdir()
    run, out = folder / "run.jsonl", folder / "run ü.html"
    LLM(tiny_path, threads=1).generate(
        HOSTILE, trace=run, max_tokens=8, ignore_eos=True, temperature=1, seed=2
    )
    assert main(["trace", "export", str(run), "--html", str(out)]) == 0
    page = open_page(out.as_uri())
    assert len(page.tokens) == 8
    page.press("Home", "ArrowRight", "ArrowRight")
    page.settle()
    assert page.step == 2
    assert not page.tab.get_by_label("Another token").is_visible()
    page.reload()
    page.settle()
    assert page.step == 2
    assert page.tab.locator("img").count() == 0
    assert page.requests == [page.requests[0]] * len(page.requests)
    assert json.loads(run.read_text().splitlines()[0])["prompt"] == HOSTILE


def test_one_file_holds_the_inside_of_some_steps(open_page, tiny_path, tmp_path, capsys):
    from cutaway.cli.main import main
    from cutaway.features.inside.look import inside
    from cutaway.trace import Trace

    run, out = tmp_path / "run.jsonl", tmp_path / "run.html"
    llm = LLM(tiny_path, threads=1)
    llm.generate("ab", trace=run, max_tokens=8, ignore_eos=True, temperature=1, seed=2)
    asked = ["trace", "export", str(run), "--html", str(out), "--inside", "2-4,6"]
    assert main([*asked, "-m", str(tiny_path), "-q"]) == 0
    page = open_page(out.as_uri())
    page.tab.get_by_role("tab", name="Inside").click()
    panel = page.tab.locator("inside-panel")
    panel.get_by_text("contains the inside of steps 2 to 4, 6. For other steps, open").wait_for()
    assert panel.locator("canvas").first.is_hidden()
    page.tab.locator("token-strip .tokens").focus()
    page.press("ArrowRight", "ArrowRight")
    look = inside(llm, Trace.read(run), 2)
    panel.get_by_text(f"recomputed bit for bit: row hash {look.row_hash:016x}").wait_for()
    page.settle()
    total = f"in logits: {look.logit_attribution().total:+.3f}".replace("-", "−")
    assert total in panel.inner_text()
    assert page.tab.locator("token-strip .place[data-tint]").count() > 0
    page.press("ArrowDown", "ArrowDown")
    panel.get_by_text("A comparison with another candidate needs the model").wait_for()
    assert total in panel.inner_text()
    assert page.requests == [page.requests[0]] * len(page.requests)
    assert main(["trace", "export", str(run), "--html", str(out)]) == 0
    page.reload()
    panel.get_by_text("The inside of a step needs the model").wait_for()
