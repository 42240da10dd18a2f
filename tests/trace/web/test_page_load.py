"""What the page fetches when it is opened: few files, compressed, and once."""

import gzip
from urllib.parse import urlsplit

import httpx
import pytest

MOST_REQUESTS = 15
MOST_BYTES = 250_000


def visit(open_page, url):
    """Open the page; return it, and the paths that it asked the network for."""
    page = open_page(url)
    page.wait_for_runs()
    page.tab.wait_for_load_state("networkidle")
    return page, [urlsplit(request).path for request in page.requests]


def test_the_first_visit_is_small_and_the_second_fetches_two_answers(open_page, tiny_server):
    _, paths = visit(open_page, tiny_server.url)
    assert len(paths) <= MOST_REQUESTS
    answers = [httpx.head(tiny_server.url + path) for path in paths]
    assert sum(int(answer.headers["content-length"]) for answer in answers) <= MOST_BYTES
    kept = [a for a in answers if "immutable" in a.headers.get("cache-control", "")]
    assert {*paths} - {urlsplit(str(answer.url)).path for answer in kept} <= {"/", "/page/about"}


def test_a_file_is_the_same_for_clients_without_gzip(tiny_server):
    """And an address of other contents has none of it."""
    document = httpx.get(tiny_server.url, headers={"accept": "text/html"})
    script = document.text.split('src="')[1].split('"')[0]
    packed, plain = (
        httpx.get(f"{tiny_server.url}/{script}", headers={"accept-encoding": encoding})
        for encoding in ("gzip", "identity")
    )
    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert packed.content == plain.content
    assert {one.headers["vary"] for one in (packed, plain, document)} == {"accept-encoding"}
    folder = script.split("/")[1]
    other = httpx.get(f"{tiny_server.url}/{script}".replace(folder, "0" * len(folder)))
    assert other.status_code == 404


def test_for_work_on_the_page_its_modules_are_fetched_one_by_one(open_page, tiny_server):
    page, paths = visit(open_page, f"{tiny_server.url}/?modules")
    assert "/static/js/parts/strip.js" in paths
    assert page.tokens


def test_an_exported_page_is_small_too(open_page, hosted, toy_folder):
    page, paths = visit(open_page, hosted(toy_folder))
    files = [toy_folder / (path.strip("/") or "index.html") for path in paths]
    own = {file for file in files if (toy_folder / "model") not in file.parents}
    assert (
        toy_folder
        / page.tab.evaluate("() => document.querySelector('script[src]').getAttribute('src')")
        in own
    )
    assert len(own) <= MOST_REQUESTS
    assert sum(len(gzip.compress(file.read_bytes())) for file in own) <= MOST_BYTES


SHIFTS = """window.shifts = [];
new PerformanceObserver((list) => shifts.push(...list.getEntries().map(({ value }) => value)))
  .observe({ type: "layout-shift", buffered: true });"""


def shifts(page):
    """The sum of layout shifts until the run is shown."""
    page.context.add_init_script(SHIFTS)
    page.wait_for_runs()
    return sum(page.tab.evaluate("shifts"))


@pytest.mark.parametrize("size", [(1400, 900), (390, 844)], ids=["window", "phone"])
def test_nothing_moves_while_it_loads(open_page, tiny_server, size):
    assert shifts(open_page(tiny_server.url, *size)) < 0.05


@pytest.mark.parametrize("address", ["softmax", "causal-mask", "canvas#point=3"])
def test_nothing_moves_while_a_lesson_comes_to_a_phone(open_page, tiny_server, address):
    """Its script comes later than its text, and then its runs are read."""
    page = open_page(f"{tiny_server.url}/lessons/{address}", 390, 844)
    page.slow_down()
    assert shifts(page) < 0.05


def test_nothing_moves_while_an_exported_page_loads(open_page, hosted, toy_folder):
    assert shifts(open_page(hosted(toy_folder))) < 0.05
