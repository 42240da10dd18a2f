"""What leaves the page: a picture of a step, and a page of paper."""

import struct


def shown(open_page, server):
    page = open_page(server.url, reduced_motion="reduce")
    page.wait_for_runs()
    return page


def test_a_step_is_saved_as_a_picture(open_page, tiny_server, tmp_path):
    page = shown(open_page, tiny_server)
    with page.tab.expect_download() as download:
        page.tab.get_by_role("button", name="Picture").click()
    download.value.save_as(tmp_path / "step.png")
    data = (tmp_path / "step.png").read_bytes()
    assert data.startswith(b"\x89PNG")
    assert struct.unpack(">II", data[16:24]) == (1200, 630)
    assert len(data) > 20_000  # a blank one has 4,000
    assert page.tab.locator("river-view").count() == 1


def test_paper_has_the_text_its_river_and_the_table_and_no_button(open_page, tiny_server):
    page = shown(open_page, tiny_server)
    page.resize(690, 1000)  # of A4
    page.tab.emulate_media(media="print")
    page.tab.evaluate("() => dispatchEvent(new Event('beforeprint'))")
    page.settle()
    for part in ("token-strip .chip", "river-view svg", "table.candidates"):
        assert page.tab.locator(part).first.is_visible()
    tint = page.tab.locator("token-strip .chip").first
    assert tint.evaluate("(e) => getComputedStyle(e).printColorAdjust") == "exact"
    shown_buttons = (
        "(all) => all.filter((one) => one.checkVisibility()).map((one) => one.outerHTML)"
    )
    buttons = page.tab.locator("button:not(.ghost, end-line button)").evaluate_all(shown_buttons)
    assert not buttons
    assert "seed 12 · step 24 of 49 · fingerprint " in page.tab.locator("copy-link").inner_text()
    assert page.tab.evaluate("() => document.documentElement.scrollWidth") <= 690
