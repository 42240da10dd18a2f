"""bench/page_alone.py: a browser that says much, or nothing, holds up no one for ever."""

import os
import sys

import pytest

pytest.importorskip("cutaway.base._native", reason="the native backend was not built")
pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

import page_alone

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the browser is a script with #!")


@pytest.fixture
def opened(tmp_path, monkeypatch):
    """Open a page in a program in the place of Chromium, which this source is."""

    def open_page(source):
        program = tmp_path / "chromium"
        program.write_text(f"#!{sys.executable}\nimport sys, time\n{source}")
        program.chmod(0o755)
        monkeypatch.setenv("CHROMIUM", str(program))
        return page_alone.browsing("http://127.0.0.1/", tmp_path)

    return open_page


def test_a_browser_may_log_more_than_a_pipe_holds(opened):
    told = "print('DevTools listening on ws://there', file=sys.stderr)"
    more = "[print('noise' * 20, file=sys.stderr) for _ in range(9999)]"
    with opened(f"{told}\n{more}\n") as address:
        assert address == "ws://there"


def test_a_browser_that_says_nothing_is_ended_with_a_sentence(opened, monkeypatch):
    monkeypatch.setattr(page_alone, "VISIT_SECONDS", 0.3)
    waiting = opened("time.sleep(600)")
    with pytest.raises(SystemExit, match=r"^after 0\.3 s Chromium has not said where to attach$"):
        waiting.__enter__()
