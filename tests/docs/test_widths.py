"""Code on the pages fits: at most 80 columns, and on the site no block is cut at 1400 pixels."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from support.browser import CHROMIUM, HOW_TO_HAVE_CHROMIUM
from support.doc_pages import PAGES, ROOT, blocks

COLUMNS = 80
"""Of what is typed; an output is as wide as it is."""
DRAWN = 125
"""Of drawings and tables, which have smaller type."""


@pytest.mark.parametrize("page", [page for page in PAGES if page != "README.md"])
def test_code_is_no_wider_than_a_page(page):
    for block in blocks(page):
        typed = block.script if block.kind == "console" else block.code
        limit = DRAWN if block.kind == "" else COLUMNS
        if block.kind not in ("json", "{eval-rst}"):
            long = [line for line in typed.splitlines() if len(line) > limit]
            assert long == [], f"{page}, line {block.line}"


CUT = """() => [
  document.scrollingElement.scrollWidth - document.scrollingElement.clientWidth,
  [...document.querySelectorAll("pre")].filter((pre) => pre.scrollWidth > pre.clientWidth)
    .map((pre) => pre.innerText.slice(0, 80))]"""


@pytest.fixture
def site(tmp_path):
    needed = ("sphinx", "furo", "myst_nb", "matplotlib", "sphinx_copybutton", "playwright")
    if missing := [name for name in needed if find_spec(name) is None]:
        pytest.skip(f"not installed, of the extras docs and test: {', '.join(missing)}")
    if CHROMIUM is None:
        pytest.skip(f"there is no Chromium here: {HOW_TO_HAVE_CHROMIUM}")
    build = [sys.executable, "-m", "sphinx", "-W", "-D", "nb_execution_mode=off"]
    subprocess.run(
        [*build, "-c", ROOT / "docs/site", "-d", tmp_path / "doctrees", ROOT / "docs", tmp_path],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=True, timeout=900,
    )  # fmt: skip
    return tmp_path


@pytest.mark.slow
def test_no_block_is_cut_and_no_page_scrolls_sideways(site):
    from playwright.sync_api import sync_playwright

    pages = [page for page in site.rglob("*.html") if "_static" not in page.parts]
    assert len(pages) > 30
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"],
            ignore_default_args=["--hide-scrollbars"],  # a window's width is less by one
        )  # fmt: skip
        for width in (1920, 1600, 1400, 1366, 390):
            tab = browser.new_page(viewport={"width": width, "height": 900})
            for page in pages:
                tab.goto(page.as_uri())
                sideways, cut = tab.evaluate(CUT)
                assert sideways <= 0, (page.name, width)
                assert width < 1400 or cut == [], page.name
        browser.close()
