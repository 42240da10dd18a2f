"""The text on arrival, its ghosts, its end and its branches, in a browser."""

import gzip
import json
from importlib.resources import files

import pytest

from support.browser import expect, repeat_until

_WEB = files("cutaway.trace.web")

ARRIVING = "token-strip.arriving"
UNCERTAIN = 23
"""The step of the recording at which an unlikely token was drawn."""


@pytest.fixture
def arriving(open_page, tiny_server):
    """A page whose recording has begun to be written; its clock stands still."""
    page = open_page(f"{tiny_server.url}/?arrival")
    page.stop_clock()
    run_until_arriving(page)
    return page


def run_until_arriving(page):
    repeat_until(page.tab.locator(ARRIVING).count, lambda: page.tab.clock.run_for(20))


def unwritten(page):
    return page.tab.locator("token-strip .chip.unwritten").count()


def ended(page):
    page.tab.clock.resume()
    page.tab.locator(ARRIVING).wait_for(state="detached")
    page.settle()
    assert unwritten(page) == 0
    assert page.step == UNCERTAIN
    assert page.address == ""
    return True


def test_the_recording_writes_itself_up_to_its_most_uncertain_step(arriving):
    clock = arriving.tab.clock
    assert arriving.tab.get_by_role("button", name="Skip", exact=True).is_visible()
    begun = unwritten(arriving)
    repeat_until(lambda: unwritten(arriving) < begun, lambda: clock.run_for(10))
    before = unwritten(arriving)  # one has just been written
    clock.run_for(1080)  # a second, and half of a token's time
    assert before - unwritten(arriving) == 6
    clock.run_for(3000)
    assert arriving.tab.locator(".falling .held .measured").first.text_content() == "make"
    clock.run_for(3100)
    assert ended(arriving)
    assert arriving.tab.locator(".falling svg").count() == 0
    question = arriving.tab.get_by_role("button", name="choose: 0.1%. Why did it win?")
    question.click()
    arriving.settle()
    assert "The highest sum is drawn." in arriving.tab.locator("first-look").inner_text()
    chosen = arriving.tab.locator("step-waterfall tr.chosen[aria-current]")
    assert "choose" in chosen.inner_text()


@pytest.mark.parametrize("way", ["Skip", "Escape", "a click", "a key"])
def test_it_ends_when_somebody_does_something(arriving, way):
    if way == "Skip":
        arriving.tab.get_by_role("button", name="Skip", exact=True).click()
    elif way == "a click":
        arriving.tab.locator("h1").click()
    else:
        arriving.press("Escape" if way == "Escape" else "Shift")
        if way == "a key":
            assert arriving.tab.locator(ARRIVING).count() or unwritten(arriving) == 0
            arriving.press("ArrowUp")
    assert ended(arriving)


def test_it_is_written_again_on_request(open_page, tiny_server):
    page = open_page(tiny_server.url)
    page.wait_for_runs()
    assert page.tab.locator(ARRIVING).count() == 0  # a test, and nobody asked
    page.stop_clock()
    page.tab.get_by_role("button", name="Write it again").click()
    run_until_arriving(page)
    assert page.address == ""
    page.press("Escape")
    assert ended(page)


def test_no_motion_where_it_is_not_wanted(open_page, tiny_server):
    page = open_page(f"{tiny_server.url}", reduced_motion="reduce")
    page.tab.add_init_script("Object.defineProperty(navigator, 'webdriver', { get: () => false })")
    page.reload()
    page.wait_for_runs()
    assert page.step == UNCERTAIN
    assert page.tab.locator(ARRIVING).count() == 0
    assert page.tab.get_by_role("button", name="Why did it win?").is_visible()


def test_a_link_to_a_step_does_not_wait(open_page, tiny_server):
    page = open_page(f"{tiny_server.url}/?arrival#step=2")
    page.wait_for_runs()
    assert page.step == 2
    assert page.tab.locator(ARRIVING).count() == 0


# -- ghosts ----------------------------------------------------------------------------------------


def test_ghosts_take_no_room(open_page, tiny_server):
    page = open_page(tiny_server.url)
    page.wait_for_runs()
    ghosts = page.tab.locator("token-strip .ghost")
    assert ghosts.count() > 10
    assert ghosts.nth(6).get_attribute("aria-label") == "the model wanted ␣make, 25.7%"
    box = page.tab.locator("token-strip .tokens")
    assert "make " not in box.inner_text()  # nor in what is copied
    sizes = "(box) => [box.scrollHeight, box.clientHeight, box.clientWidth]"
    for width in (1400, 390):
        page.resize(width, 900)
        before = box.evaluate(sizes)
        under = ghosts.evaluate_all(
            "(all) => all.map((one) => [one, one.parentNode].map((b) => b.getBoundingClientRect()))"
        )
        assert all(abs(low["top"] - word["bottom"]) < 3 for low, word in under)
        assert all(low["left"] == word["left"] for low, word in under)
        ghosts.evaluate_all("(all) => all.forEach((one) => { one.style.display = 'none'; })")
        assert box.evaluate(sizes) == before
        ghosts.evaluate_all("(all) => all.forEach((one) => { one.style.display = ''; })")


def test_a_click_on_a_ghost_branches_there(open_page, tiny_server):
    page = open_page(tiny_server.url)
    page.write("ab", max_tokens=24, ignore_eos=True, seed=1, temperature=1.5)
    page.settle()
    ghost = page.tab.locator("token-strip .ghost").first
    word = ghost.get_attribute("data-word")
    step = ghost.evaluate(
        "(one) => [...document.querySelectorAll('.chip')].indexOf(one.closest('.chip'))"
    )
    ghost.click()
    page.wait_for_runs(2)
    assert page.step == step
    facts = page.tab.locator("step-facts").inner_text()
    assert f"{word}" in facts and "forced" in facts
    option = page.tab.locator("run-picker option").last
    assert f"at {step + 1}" in option.inner_text()


# -- the end ---------------------------------------------------------------------------------------


def test_the_line_under_the_text_leads_to_why_it_ended(open_page, tiny_server):
    page = open_page(tiny_server.url)
    page.wait_for_runs()
    line = page.tab.get_by_role("button", name="The end by step: the end token came at step 49")
    assert line.locator("svg").bounding_box()["width"] == line.bounding_box()["width"]
    line.locator(".flag text").click()
    page.settle()
    assert page.step == 7
    panel = page.tab.get_by_role("tabpanel", name="Why it ended", exact=True)
    assert "step 8: " in panel.locator(".moments").inner_text()
    page.tab.get_by_role("tab", name="Timelines").click()
    page.settle()
    assert "P(end)" not in page.tab.locator("run-timelines").inner_text()  # it stands once


# -- branches --------------------------------------------------------------------------------------


@pytest.fixture
def forked(open_page, tiny_server):
    page = open_page(tiny_server.url)
    page.write("ab", max_tokens=24, ignore_eos=True, seed=1)
    page.settle()
    page.fork(5)
    page.settle()
    return page


def texts(page, kind):
    return page.tab.locator(f"token-strip .row-of.{kind}").evaluate_all(
        "(rows) => rows.map((row) => [...row.querySelectorAll('.chip, .aside')].length)"
    )


def test_a_fork_splits_the_text(forked):
    joined, apart = texts(forked, "joined"), texts(forked, "apart")
    assert joined[0] == 5
    assert len(forked.tokens) == sum(joined) + sum(apart[1::2])  # the fork is selected, and below
    forks = forked.tab.locator("token-strip .station.named")
    assert forks.count() == 2
    assert forks.nth(0).inner_text() == "original"
    assert "at 6" in forks.nth(1).inner_text()
    assert forks.nth(1).get_attribute("aria-pressed") == "true"
    tops = [forks.nth(i).bounding_box()["y"] for i in range(2)]
    assert tops[0] < tops[1]
    assert not forked.barriers("token-strip")


def test_the_lines_are_reached_by_keyboard_and_pointer(forked):
    fork = forked.tokens
    forked.tab.locator("token-strip .station.named").first.focus()
    forked.press("Enter")
    forked.settle()
    assert forked.tab.locator("run-picker option").count() == 2  # and nothing was forked
    assert forked.tokens != fork
    assert len(forked.tokens) == 24
    assert forked.step == 5
    forked.tab.locator("token-strip .aside").nth(2).click()
    forked.settle()
    assert forked.tokens == fork
    assert forked.step == 7
    forked.press("t")
    forked.settle()
    assert forked.tokens != fork


def test_earlier_addresses_of_two_runs_open_branches(open_page, tiny_server):
    page = open_page(tiny_server.url)
    page.go(panel="compare")
    page.wait_for_runs()
    opened = page.tab.get_by_role("tab", name="Branches")
    assert opened.get_attribute("aria-selected") == "true"
    assert page.address == "panel=tree"
    assert not page.tab.locator("run-compare").is_visible()  # there is one run


def test_any_other_run_is_compared(open_page, tiny_server):
    page = open_page(tiny_server.url)
    page.write("ab", max_tokens=24, ignore_eos=True, seed=1)
    page.write("ba")
    page.settle()
    assert not page.tab.locator("token-strip .row-of").count()  # they are not related
    page.tab.get_by_role("tab", name="Branches").click()
    page.tab.get_by_label("Compare the selected run with").select_option(index=0)
    page.settle()
    assert "The prompts differ" in page.tab.locator("run-compare").inner_text()
    assert page.tab.locator("token-strip .row-of.apart").count() >= 2


# -- for those who hear the page, and for long texts -----------------------------------------------


def test_arrow_keys_are_heard_in_one_sentence(open_page, tiny_server):
    page = open_page(tiny_server.url)
    page.wait_for_runs()
    heard = page.tab.locator("key-help [role=status]")
    expect(heard).to_have_text("")
    page.press("ArrowLeft", "ArrowRight")
    expect(heard).to_have_text("Step 24 of 49: choose, 0.1%, rank 104; make was likelier")
    page.press("ArrowDown")
    expect(heard).to_have_text("see, 5.8%, rank 2, 7.5% after the chain")
    page.press("ArrowUp")
    expect(heard).to_contain_text("make, 25.7%, rank 1")


@pytest.fixture
def open_long(open_page, tiny_server, recorded_text, tmp_path):
    """Open a recorded text of so many tokens."""

    def open_text(tokens):
        path = tmp_path / "long.jsonl"
        path.write_text(recorded_text(tokens))
        page = open_page(tiny_server.url)
        page.open_file(path)
        return page

    return open_text


def test_a_text_of_many_frames_is_whole(open_long):
    page = open_long(1100)
    page.press("End")
    page.settle()
    assert page.step == 1099
    assert page.tab.locator("token-strip .chunk").count() >= 5
    assert page.tab.locator("#notice").inner_text() == ""


@pytest.fixture
def recorded_text():
    """The package's recording, its steps repeated up to a number."""
    lines = gzip.decompress(_WEB.joinpath("first-run.jsonl.gz").read_bytes()).decode().splitlines()
    records = [json.loads(line) for line in lines]
    steps = [record for record in records if record["kind"] == "step"]

    def text(count):
        before = [record for record in records if record["kind"] in ("head", "tok")]
        more = [{**steps[i % (len(steps) - 1)], "index": i} for i in range(count)]
        return "".join(json.dumps(record) + "\n" for record in [*before, *more])

    return text


def test_a_jump_lays_out_what_is_around_it_and_more_at_rest(open_long):
    page = open_long(4400)
    laid_out = """() => [...document.querySelectorAll("token-strip .chunk")].flatMap((chunk, i) =>
      (chunk.querySelector(".chip").checkVisibility({ contentVisibilityAuto: true }) ? i : []))"""
    before_the_rest = f"""async () => {{
      const later = window.setTimeout, held = [];
      window.setTimeout = (call) => held.push(call);
      document.body.dispatchEvent(new KeyboardEvent("keydown", {{ key: "End", bubbles: true }}));
      await new Promise(requestAnimationFrame);
      const first = ({laid_out})();
      window.setTimeout = later;
      for (const call of held) call();
      return first;
    }}"""
    last = page.tab.locator("token-strip .chunk").count() - 1
    assert page.tab.evaluate(before_the_rest) == [last - 1, last]
    page.settle()
    page.tab.wait_for_function(f"() => ({laid_out})().length > 3")
    assert 0 not in page.tab.evaluate(laid_out)
