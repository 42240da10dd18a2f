"""The text on arrival, its ghosts, its end and its branches, in a browser."""

import pytest

ARRIVING = "token-strip.arriving"
UNCERTAIN = 23
"""The step of the recording at which an unlikely token was drawn."""


@pytest.fixture
def arriving(open_page, tiny_server):
    page = open_page(f"{tiny_server.url}/?arrival")
    page.tab.locator(ARRIVING).wait_for(state="attached")
    return page


def unwritten(page):
    return page.tab.locator("token-strip .chip.unwritten").count()


def ended(page):
    page.tab.locator(ARRIVING).wait_for(state="detached")
    page.settle()
    assert unwritten(page) == 0
    assert page.step == UNCERTAIN
    assert page.address == ""
    return True


def test_the_recording_writes_itself_up_to_its_most_uncertain_step(arriving):
    clock = arriving.tab.clock
    assert arriving.tab.get_by_role("button", name="Skip").is_visible()
    clock.pause_at(arriving.tab.evaluate("() => Date.now() / 1000 + 0.1"))
    before = unwritten(arriving)
    clock.run_for(1000)
    assert before - unwritten(arriving) == 6  # tokens a second
    clock.run_for(3000)
    assert arriving.tab.locator(".falling .held .measured").first.text_content() == "make"
    clock.run_for(3100)
    clock.resume()
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
        arriving.tab.get_by_role("button", name="Skip").click()
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
    page.settle()
    assert page.tab.locator(ARRIVING).count() == 0  # a test, and nobody asked
    page.tab.get_by_role("button", name="Write it again").click()
    page.tab.locator(ARRIVING).wait_for(state="attached")
    assert page.address == ""
    page.press("Escape")
    assert ended(page)


def test_no_motion_where_it_is_not_wanted(open_page, tiny_server):
    page = open_page(f"{tiny_server.url}", reduced_motion="reduce")
    page.tab.add_init_script("Object.defineProperty(navigator, 'webdriver', { get: () => false })")
    page.tab.reload()
    page.wait_for_runs()
    page.settle()
    assert page.step == UNCERTAIN
    assert page.tab.locator(ARRIVING).count() == 0
    assert page.tab.get_by_role("button", name="Why did it win?").is_visible()


def test_a_link_to_a_step_does_not_wait(open_page, tiny_server):
    page = open_page(f"{tiny_server.url}/?arrival#step=2")
    page.wait_for_runs()
    page.settle()
    assert page.step == 2
    assert page.tab.locator(ARRIVING).count() == 0
