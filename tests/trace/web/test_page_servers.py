"""A server behind a page: of several models or adapters, and at a sub-path of a proxy."""

import json
from functools import partial

import pytest

from cutaway import LLM
from cutaway.compute.loading.model import LoadedModel
from cutaway.compute.loading.setup import Setup
from cutaway.server.http.settings import ServerSettings
from cutaway.server.model_cache import ModelCache
from cutaway.server.on_demand import OnDemandLLM
from support.adapters import adapter_of
from support.proxied import ROOT, proxy
from support.random_llama import write_tiny_llama
from support.served import serve, serve_all
from support.waiting import wait_until

SETTINGS = {"max_tokens": 12, "ignore_eos": True}


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {
        name: write_tiny_llama(folder / f"{name}.gguf", context=512, seed=i)
        for i, name in enumerate("ab")
    }


@pytest.fixture(scope="module")
def lora(paths):
    return adapter_of(paths["a"], paths["a"].parent / "poet.gguf")


@pytest.fixture(scope="module")
def server(paths, lora):
    def make():
        cache, setups = ModelCache(), {name: Setup(threads=1) for name in paths}
        setups["a"] = Setup(threads=1, adapters={"poet": lora})
        return {
            name: OnDemandLLM(
                LoadedModel.open(path, setups[name], progress=False, weights=False), cache
            )
            for name, path in paths.items()
        }

    with serve_all(make) as served:
        yield served


def has_counted(server, name, tokens):
    """Whether a model's tokens are so many, which it counts once a text's last event is sent."""
    counted = server.models.named(name).metrics.registry.get_sample_value
    return counted("cutaway_tokens_total", {"kind": "completion"}) == tokens


def test_the_menu_says_who_writes(open_page, server):
    page = open_page(server.url)
    menu = page.tab.get_by_label("Model", exact=True)
    menu.locator("option").nth(1).wait_for(state="attached")
    assert menu.locator("option").all_inner_texts() == ["a", "poet", "b"]
    for name, tokens in (("b", 12), ("a", 12), ("poet", 24)):  # which are counted with the model's
        menu.select_option(name)
        page.tab.wait_for_url(f"**/?model={name}**")
        page.tab.wait_for_function(
            f"() => document.querySelector('[aria-label=Model]').value === '{name}'"
        )
        address = f"{server.url}/?model={name}#kind=completion&seed=1&settings="
        page.tab.goto("about:blank")
        page.tab.goto(address + json.dumps(SETTINGS))
        page.tab.get_by_label("Text to continue").fill("ab")
        page.tab.get_by_role("button", name="Write", exact=True).click()
        page.ended()
        assert f"model={name}" in page.tab.url
        wait_until(partial(has_counted, server, name, tokens))


def test_one_model_has_no_menu(open_page, tiny_server):
    page = open_page(tiny_server.url)
    page.tab.get_by_text("tiny · cutaway").wait_for()
    assert page.tab.get_by_label("Model", exact=True).is_hidden()


# -- a sub-path, which a proxy takes off or leaves ---------------------------------------------


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
