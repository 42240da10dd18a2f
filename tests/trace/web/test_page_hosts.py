"""A page alone on hosts as they are: slow, over plain http, none, with damaged files."""

import json
import re
import shutil
import threading
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from support.browser import DEADLINE_MS, Page, expect, hold, launch, wait_for_model
from support.wasm import NEEDS

pytest.importorskip("ziglang", reason=NEEDS)
CLASSROOM = "classroom.example"


@pytest.fixture
def far_away(chromium):
    """A browser to which the servers here are those of another machine."""
    rules = f"--host-resolver-rules=MAP {CLASSROOM} 127.0.0.1"
    browser = launch(chromium.browser_type, "--disable-gpu", rules)
    yield browser
    browser.close()


def test_over_http_from_another_machine_it_writes_the_same_text(
    far_away, hosted, toy_folder, toy_alone, tmp_path
):
    """Browsers have no SHA-256, no cache and no threads there."""
    page = Page(far_away.new_context(), hosted(toy_folder).replace("127.0.0.1", CLASSROOM))
    wait_for_model(page)
    assert not page.tab.evaluate("() => isSecureContext || globalThis.caches || crypto.subtle")
    page.write("Mr. Darcy", temperature=0, max_tokens=4)
    trace = page.download_run(tmp_path / "page.jsonl")
    here = toy_alone.generate("Mr. Darcy", temperature=0, max_tokens=4)
    assert (trace.head.threads, trace.end.fingerprint) == (1, here.fingerprint)
    page.close()


def test_from_disk_it_says_how_it_is_opened(open_page, toy_folder):
    page = open_page(f"file://{toy_folder}/index.html")
    page.expected = ""  # the browser says why the script does not run
    page.tab.locator("#unopened").get_by_text("python -m http.server 8000").wait_for()


@pytest.fixture(scope="module")
def copied(toy_folder, tmp_path_factory):
    """A copy of the page, whose files tests damage one after the other."""
    return shutil.copytree(toy_folder, tmp_path_factory.mktemp("damaged") / "page")


@contextmanager
def damaged(path, data):
    """The file with other contents."""
    whole = path.read_bytes()
    path.write_bytes(data(whole))
    yield
    path.write_bytes(whole)


def flip(data):
    return data[:1000] + bytes([data[1000] ^ 1]) + data[1001:]


WAYS = {
    "one byte": flip,
    "its end": lambda data: data[: len(data) // 2],
    "a page": lambda _: b"<p>",
}


@pytest.mark.each_choice
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "name",
    ["about.json", "core-relaxed.wasm", "inside.json", "model.json", "plan.json", "tokenizer.json",
     "weights-000.bin"],
)  # fmt: skip
def test_a_damaged_file_is_named(open_page, hosted, copied, name, way):
    for path in (copied / "model").glob(name):  # without isolation it fetches one core
        with damaged(path, WAYS[way]):
            page = open_page(hosted(copied))
            said = re.compile(re.escape(path.name) + " was damaged on its way")
            page.tab.locator("#notice").get_by_text(said).wait_for()


def test_damaged_exercises_are_named_where_they_are_opened(open_page, hosted, copied):
    with damaged(copied / "model/practice.json", flip):
        page = wait_for_model(open_page(hosted(copied)))
        page.tab.get_by_role("tab", name="Practice", exact=True).click()
        page.tab.get_by_text("practice.json was damaged on its way").first.wait_for()


@pytest.mark.parametrize("name", ["page.js", "page.css", "first-run.jsonl.gz"])
def test_a_damaged_file_of_the_page_itself_is_not_used(open_page, hosted, copied, name):
    [path] = (copied / "static").rglob(name)
    with damaged(path, lambda data: data + b" "):
        page = open_page(hosted(copied))
        page.expected = ""  # the browser names the file
        said = "a file of the page is missing" if name == "page.js" else "Write"
        page.tab.get_by_text(said, exact=name != "page.js").first.wait_for()
        assert name == "first-run.jsonl.gz" or any("integrity" in one for one in page.complaints)


@pytest.fixture
def slow(toy_folder):
    """A host that sends half of the weights, and the rest when it is told to."""
    go_on = threading.Event()

    class Slow(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            """Tests print nothing."""

        def copyfile(self, source, outputfile):
            data = source.read()
            half = len(data) // 2 if "weights" in self.path else len(data)
            outputfile.write(data[:half])
            outputfile.flush()
            if half < len(data):
                go_on.wait(DEADLINE_MS / 1000)
                outputfile.write(data[half:])

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Slow, directory=toy_folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/", go_on
    go_on.set()
    server.shutdown()
    server.server_close()


def test_on_a_slow_line_a_bar_says_how_much_has_come_and_a_text_waits(open_page, slow, toy_folder):
    address, go_on = slow
    page = open_page(address)
    weights = json.loads((toy_folder / "model/plan.json").read_text())["bytes"]
    bar = page.tab.get_by_role("progressbar", name="loading the model")
    page.tab.wait_for_function(
        f"() => {{ const bar = document.querySelector('#loading progress');"
        f" return bar && bar.max > {weights} && bar.max - bar.value === {weights} / 2; }}"
    )
    assert re.fullmatch(
        r"loading the model: [\d.]+ of [\d.]+ MB", bar.locator("..").inner_text().strip()
    )
    page.tab.get_by_role("tab", name="Completion").click()  # the model's settings are known
    page.tab.get_by_label("Text to continue").fill("Mr. Darcy")
    page.tab.get_by_role("button", name="Write", exact=True).click()
    assert not page.barriers()
    go_on.set()
    page.wait_for_runs()
    page.tab.locator("#loading").wait_for(state="detached")


def test_before_the_page_knows_its_model_nothing_is_sent(open_page, tiny_server):
    tab = open_page(tiny_server.url).tab
    with hold(tab, "**/page/about") as let_go:
        tab.reload()
        field = tab.get_by_label("Your message")
        field.fill("Hello")
        field.press("Enter")
        send = tab.get_by_role("button", name="Send", exact=True)
        expect(send).to_be_disabled()
        let_go()
        expect(send).to_be_enabled()
        expect(field).to_have_value("Hello")
