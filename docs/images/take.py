"""Takes the README's pictures of the page, in light and in dark colours, from a server that runs.

    cutaway serve                                    # SmolLM2; one core writes it as well as many
    python docs/images/take.py [http://127.0.0.1:8000] [--chromium chromium]

Writes page-light.png and page-dark.png beside itself. Needs Playwright (PyPI) and a Chromium. The
seed is fixed: only the step's times differ between two runs.
"""

import shutil
from argparse import ArgumentParser
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

PROMPT, SEED, STEP = "The old lighthouse keeper", 8, 27
SETTINGS = '{"temperature": 0.9, "max_tokens": 120}'
SIZE = {"width": 1360, "height": 1310}


def show(page: Page, url: str) -> None:
    """A text, and the step of it that has much to tell."""
    page.goto(f"{url}/#kind=completion&seed={SEED}&settings={SETTINGS}")
    page.get_by_label("Text to continue").fill(PROMPT)
    page.get_by_role("button", name="Write", exact=True).click()
    page.locator("token-strip .chip").first.wait_for()
    page.get_by_role("button", name="Stop").first.wait_for(state="hidden")
    for key in ("Home", *["ArrowRight"] * STEP):
        page.keyboard.press(key)
    page.get_by_text(f"step {STEP + 1} of").first.wait_for()
    page.get_by_text("one (2.1%)").wait_for()  # the river follows keys ten times a second
    page.evaluate("() => document.activeElement.blur()")


def main() -> None:
    """Take both."""
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:8000")
    parser.add_argument("--chromium", default=shutil.which("chromium"))
    asked = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=asked.chromium, args=["--no-sandbox"])
        for colours in ("light", "dark"):
            page = browser.new_page(viewport=SIZE, color_scheme=colours)
            page.set_default_timeout(120_000)
            show(page, asked.url)
            page.screenshot(path=Path(__file__).with_name(f"page-{colours}.png"))
        browser.close()


if __name__ == "__main__":
    main()
