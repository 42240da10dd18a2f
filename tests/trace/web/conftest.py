"""A real browser on a real server: Debian's Chromium, driven by Playwright."""

import pytest

from cutaway import LLM
from support.browser import CHROMIUM, HOW_TO_HAVE_CHROMIUM, Page
from support.served import serve


@pytest.fixture(scope="module")
def chromium():
    """One browser for a module's tests; while Playwright runs, no other event loop can."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    if CHROMIUM is None:
        pytest.skip(f"there is no Chromium here: {HOW_TO_HAVE_CHROMIUM}")
    with sync_api.sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=options)
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium):
    """Opens an address; an error of the page, or a request to another origin, fails the test."""
    opened = []

    def open_one(url, width=1400, height=1000, **context):
        viewport = {"width": width, "height": height}
        opened.append(Page(chromium.new_context(viewport=viewport, **context), url))
        return opened[-1]

    yield open_one
    for page in opened:
        page.close()


@pytest.fixture(scope="session")
def tiny_server(tiny_path):
    """A server of a small random model."""
    with serve(LLM(tiny_path, threads=1)) as served:
        yield served


@pytest.fixture(scope="session")
def smollm2(smollm2_path):
    """A server of SmolLM2."""
    with serve(LLM(smollm2_path, threads=1)) as served:
        yield served


@pytest.fixture(scope="session")
def smollm2_alone(smollm2_path):
    """The same model without a server."""
    return LLM(smollm2_path, threads=1, progress=False)


@pytest.fixture
def page(open_page, smollm2):
    """The page on the server of SmolLM2."""
    return open_page(smollm2.url)
