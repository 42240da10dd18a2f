"""The page in a browser: actions of a test, and checks that always hold."""

import json
import os
import shutil
import threading
from contextlib import contextmanager
from functools import cached_property, partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from time import monotonic
from urllib.parse import urlsplit

import pytest

from cutaway.trace import Trace

CHROMIUM = (
    os.environ.get("CHROMIUM")
    or shutil.which("chromium-headless-shell")  # has no windows, and takes two thirds of the time
    or shutil.which("chromium")
)
HOW_TO_HAVE_CHROMIUM = "apt-get install chromium-headless-shell, or set CHROMIUM"
SOFTWARE_GPU = ("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader")
"""Options of a browser whose WebGPU is a program on the processor."""
DEADLINE_MS = 300_000  # for what must happen, on a machine that does much else
PAGE_SLOWNESS = float(os.environ.get("PAGE_SLOWNESS", "1"))  # how many times slower its thread is
COMMAND_DELAY_MS = float(os.environ.get("COMMAND_DELAY_MS", "0"))  # of each of a test's commands
PROMPT = "The capital of France is"
GREEDY = {"temperature": 0, "max_tokens": 24}
LUCKY = {"temperature": 0.8, "max_tokens": 40, "seed": 11}
SEEN = "(element) => element.getBoundingClientRect().bottom <= innerHeight"
"""Whether an element is in the window without scrolling."""
IS_DRAWN = """() => {
  const strip = document.querySelector("token-strip:defined");
  return !strip || strip.isAttached && !strip.store.state.loading && !strip.store.scheduled;
}"""
"""Whether the page knows its model, and its last change is drawn; or this is another document."""
ARE_RUNS_WRITTEN = """(count) => {
  const strip = document.querySelector("token-strip:defined");
  if (!strip?.isAttached || !strip.querySelector(".chip")) return false;
  const { runs, loading } = strip.store.state;
  return !loading && runs.length >= count && !runs.some(({ live }) => live);
}"""
"""Whether there are so many runs of one's own, those of the address too, and all are written."""
NEXT_FRAME = """() => new Promise((drawn) => {
  new ResizeObserver(drawn).observe(document.documentElement);
})"""
"""Waits for the browser's own next frame, before which it tells the page of scrolling and sizes."""
RUNS = """async (asked) => {
  const { $state_api: api } = await import(document.querySelector("script[src]").src);
  const said = [];
  for (const one of asked) {
    const request = { kind: "completion", messages: [], forced: [], ...one };
    let last;
    const { signal } = new AbortController();
    for await (const records of api.records(request, signal)) last = records.at(-1);
    said.push(last.fingerprint);
  }
  return said;
}"""
"""Asks the page's own requests for texts, and returns their fingerprints."""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        """Tests print nothing."""


@contextmanager
def serve_folder(folder):
    """Serve a folder, and nothing else; yield the address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@contextmanager
def start_chromium(*options, **more):
    """Start a browser, beside which no event loop can run; skip the test where there is none."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    if CHROMIUM is None:
        pytest.skip(f"there is no Chromium here: {HOW_TO_HAVE_CHROMIUM}")
    with sync_api.sync_playwright() as playwright:
        browser = launch(playwright.chromium, *options, **more)
        yield browser
        browser.close()


def launch(browser_type, *options, **more):
    """Launch a browser of this type, also on a machine that does much else."""
    args = ["--no-sandbox", *options]
    return browser_type.launch(
        executable_path=CHROMIUM, args=args, timeout=DEADLINE_MS, slow_mo=COMMAND_DELAY_MS, **more
    )


def expect(locator):
    """Return Playwright's assertions about a locator, which wait for what arrives later."""
    from playwright.sync_api import expect  # here, since tests are collected without Playwright

    expect.set_options(timeout=DEADLINE_MS)  # by itself it is 5 s
    return expect(locator)


def repeat_until(has_happened, action):
    """Repeat an action until something has happened."""
    until = monotonic() + DEADLINE_MS / 1000
    while not has_happened():
        assert monotonic() < until, f"not within {DEADLINE_MS / 1000:.0f} s"
        action()


@contextmanager
def hold(tab, pattern):
    """Hold a tab's requests to addresses of a pattern; yield what lets the next of them go on."""
    routes = []

    def keep(route):
        routes.append(route)

    def let_go():
        repeat_until(lambda: routes, lambda: tab.wait_for_timeout(10))  # Playwright tells of them
        routes.pop(0).continue_()

    tab.route(pattern, keep)
    try:
        yield let_go
    finally:
        tab.unroute(pattern)


class Page:
    """One tab of a context, which opens its address at the first use of ``tab``."""

    def __init__(self, context, url):
        self.context, self.url = context, url
        self._tab = context.new_page()
        self._tab.set_default_timeout(DEADLINE_MS)
        self._tab.clock.install()
        self.complaints: list[str] = []
        self.expected = "\0"  # complaints that contain this are allowed
        self.stands_still = False  # then nothing is drawn
        self.requests: list[str] = []
        self._tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        self._tab.on("console", self._note_complaint)
        self._tab.on("request", lambda request: self.requests.append(request.url))
        if PAGE_SLOWNESS > 1:
            tools = self.context.new_cdp_session(self._tab)
            tools.send("Emulation.setCPUThrottlingRate", {"rate": PAGE_SLOWNESS})
        self.origin = "{0.scheme}://{0.netloc}".format(urlsplit(url))

    @cached_property
    def tab(self):
        """The browser's tab, at the address."""
        self._open(self.url)
        return self._tab

    def _open(self, address):
        self._tab.goto(address)
        self._wait_until_open()

    def _wait_until_open(self):
        if not self.stands_still:
            self._tab.wait_for_function(IS_DRAWN)

    def stop_clock(self):
        """Let the page's time stand still, in a minute: later than any pause of the test's."""
        self.stands_still = True
        self._tab.clock.pause_at(self._tab.evaluate("() => Date.now() / 1000 + 60"))

    def slow_down(self):
        """Put a slow line before the page: 1.6 Mbit/s, and 150 ms there and back."""
        line = {"latency": 150, "downloadThroughput": 1.6e6 / 8, "uploadThroughput": 0.75e6 / 8}
        tools = self.context.new_cdp_session(self._tab)
        tools.send("Network.enable")
        tools.send("Network.emulateNetworkConditions", {"offline": False, **line})

    def _note_complaint(self, message):
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def close(self):
        """Check that the tab was used, had no error and sent no request to another origin."""
        self._tab.clock.resume()  # it is the context's, and the next page's
        assert "tab" in vars(self)
        elsewhere = [u for u in self.requests if not u.startswith((self.origin, "data:", "blob:"))]
        self._tab.close()  # and with it all that the page keeps
        self.context.clear_permissions()
        self.context.set_offline(False)
        assert not elsewhere
        unexpected = [complaint for complaint in self.complaints if self.expected not in complaint]
        assert not unexpected, unexpected

    # -- what people do ----------------------------------------------------------------------

    def write(self, prompt, **settings):
        """Generate a completion to its end."""
        seed = settings.pop("seed", "")
        if settings:
            self.go(kind="completion", settings=settings, seed=str(seed))
        self.open_form()
        self.tab.get_by_role("tab", name="Completion").click()
        self.tab.get_by_label("Text to continue").fill(prompt)
        self.tab.get_by_role("button", name="Write", exact=True).click()
        self.wait_for_runs()

    def open_form(self):
        """Open the form, which a phone and large type hide."""
        more = self.tab.get_by_role("button", name="The whole form, and its settings")
        if more.is_visible() and more.get_attribute("aria-expanded") == "false":
            more.click()
        form = self.tab.get_by_role("button", name="New text")
        if form.is_visible() and not self.tab.locator(".write").is_visible():
            form.click()

    def fork(self, step):
        """Fork at a step, with the likeliest other token."""
        self.wait_for_runs()
        self.press("Home", *["ArrowRight"] * step)
        self.settle()
        self.tab.locator("step-waterfall tbody tr:not(.chosen)").first.click()
        self.tab.locator("step-waterfall tbody").get_by_role("button", name="Branch").click()
        self.wait_for_runs()

    def download_run(self, path):
        """Download the selected run as a trace, and return it."""
        with self.tab.expect_download() as download:
            self.tab.get_by_role("button", name="Download").click()
        download.value.save_as(path)
        return Trace.read(path)

    def go(self, **state):
        """Open the page, or open it again, in this state."""
        fragment = "&".join(
            f"{name}={value if isinstance(value, str) else json.dumps(value)}"
            for name, value in state.items()
        )
        self._tab.goto("about:blank")
        self._open(f"{self.origin}/#{fragment}")
        self.tab = self._tab

    def reload(self):
        """Load the page again, as far as it knows its model."""
        self.tab.reload()
        self._wait_until_open()

    def wait_for_runs(self, count=0):
        """Wait until there are so many runs of one's own, every run has ended, and all is drawn."""
        self.tab.wait_for_function(ARE_RUNS_WRITTEN, arg=count)
        self.settle()

    def open_file(self, path):
        """Open a trace on the page, and wait until it is a run."""
        runs = "document.querySelector('token-strip').store.state.runs.length"
        count = self.tab.evaluate(f"() => {runs}")
        self.tab.locator("input[type=file]").set_input_files(path)
        self.tab.wait_for_function(f"(count) => {runs} > count", arg=count)
        self.settle()

    def resize(self, width, height):
        """Give the window another size."""
        self.tab.set_viewport_size({"width": width, "height": height})
        self.tab.evaluate(NEXT_FRAME)
        self.settle()

    def press(self, *keys):
        """Press keys on the page."""
        for key in keys:
            self.tab.keyboard.press(key)

    def settle(self):
        """Wait until changes are drawn, and the address is written."""
        self.tab.clock.run_for(350)  # the page's timers
        self.tab.wait_for_function(IS_DRAWN)

    def barriers(self, context=None):
        """Return (rule, elements) of each violation that axe calls serious or critical."""
        axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is missing")
        options = {"resultTypes": ["violations"]}
        tool = axe.Axe("null") if self.tab.evaluate("() => 'axe' in window") else axe.Axe()
        violations = tool.run(self.tab, context, options).response["violations"]
        serious = [v for v in violations if v["impact"] in ("serious", "critical")]
        return [(v["id"], [n["html"][:200] for n in v["nodes"][:3]]) for v in serious]

    # -- what people see ---------------------------------------------------------------------

    @property
    def tokens(self):
        """The text's tokens as shown."""
        return self.tab.locator("token-strip .chip").all_inner_texts()

    @property
    def step(self):
        """The index of the marked token."""
        chips = "[...document.querySelectorAll('token-strip .chip')]"
        return self.tab.evaluate(f"() => {chips}.findIndex(c => c.hasAttribute('aria-current'))")

    @property
    def address(self):
        """The fragment of the address."""
        return self.tab.evaluate("() => location.hash.slice(1)")


def wait_for_model(page, timeout=DEADLINE_MS):
    """Wait until the model of a page without a server answers."""
    page.tab.set_default_timeout(timeout)
    page.tab.get_by_text("SmolLM2").filter(visible=True).last.wait_for()
    page.tab.evaluate(
        "async () => (await import(document.querySelector('script[src]').src))"
        ".$state_api.whenReady()"
    )
    return page
