"""The server at a sub-path of a proxy, which takes the path off, or leaves it."""

import re
from urllib.parse import urljoin

import httpx
import pytest

from cutaway import LLM
from cutaway.errors import InputError
from cutaway.server.http.settings import ServerSettings
from support.proxied import ROOT, proxy
from support.served import serve


@pytest.fixture(scope="module")
def llm(tiny_path):
    with LLM(tiny_path, threads=1, progress=False) as llm:
        yield llm


@pytest.fixture(params=[True, False], ids=["taken off", "left"])
def at(request, llm):
    with (
        serve(llm, ServerSettings(root_path=ROOT)) as served,
        proxy(served.url, takes_off=request.param) as url,
    ):
        yield url


def links(url: str, text: str) -> set[str]:
    """What a document, a module or a sheet names, as a browser resolves it."""
    found = re.findall(r'(?:href|src)="([^"#]+)"', text)
    found += re.findall(r'^import .*?"([^"]+)";$', text, re.MULTILINE)
    return {urljoin(url, each) for each in found if not each.startswith(("data:", "http"))}


def test_every_file_of_the_page_is_below_the_path(at):
    seen, wanted = set(), {f"{at}/"}
    while wanted:
        url = wanted.pop()
        seen.add(url)
        answer = httpx.get(url, headers={"accept": "text/html"})
        assert answer.status_code == 200, url
        if answer.headers["content-type"].startswith("text/"):
            wanted |= links(url, answer.text) - seen
    assert len(seen) >= 5 and all(url.startswith(f"{at}/") for url in seen)


def test_the_api_and_its_document(at):
    document = httpx.get(f"{at}/openapi.json", timeout=60).json()
    assert document["servers"] == [{"url": ROOT}]
    base = urljoin(at, document["servers"][0]["url"])
    for path in ("/health", "/ready", "/v1/models", "/page/about", "/metrics"):
        assert httpx.get(base + path).status_code == 200, path
    asked = {"prompt": "ab", "max_tokens": 2, "stream": True}
    answer = httpx.post(f"{base}/v1/completions", json=asked)
    assert answer.text.endswith("data: [DONE]\n\n")


def test_the_path_without_its_slash_leads_to_the_page(llm):
    with serve(llm, ServerSettings(root_path=ROOT)) as served:
        answer = httpx.get(served.url + ROOT, headers={"accept": "text/html"})
        assert (answer.status_code, answer.headers["location"]) == (308, f"{ROOT}/")
        assert httpx.get(f"{served.url}{ROOT}x").status_code == 404


def test_at_the_root_the_document_names_no_server(llm):
    with serve(llm) as served:
        assert "servers" not in httpx.get(f"{served.url}/openapi.json", timeout=60).json()


@pytest.mark.parametrize("root", ["models", "/models/", "/", "//a", "/a b", "/a?b", "http://x/a"])
def test_what_is_no_path_is_refused(root):
    with pytest.raises(InputError, match="root_path must begin with /"):
        ServerSettings(root_path=root)
