"""The page at a sub-path of a proxy that takes the path off, and of one that leaves it."""

import pytest

from cutaway import LLM
from cutaway.server.http.settings import ServerSettings
from support.proxied import ROOT, proxy
from support.served import serve


@pytest.mark.parametrize("takes_off", [True, False], ids=["taken off", "left"])
def test_a_text_is_written_and_looked_into(open_page, tiny_path, takes_off):
    with (
        serve(LLM(tiny_path, threads=1), ServerSettings(root_path=ROOT)) as served,
        proxy(served.url, takes_off=takes_off) as url,
    ):
        page = open_page(f"{url}/")
        page.write("ab")
        assert page.tokens
        page.tab.get_by_role("button", name="Help").first.click()
        help_ = page.tab.get_by_role("dialog", name="Help")
        address = help_.get_by_role("link", name="openapi.json").evaluate("link => link.href")
        assert page.tab.request.get(address).json()["servers"] == [{"url": ROOT}]
        assert all(asked.startswith(url) for asked in page.requests)
