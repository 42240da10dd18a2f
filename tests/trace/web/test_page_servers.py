"""A server behind a page: of several models or adapters, and at a sub-path of a proxy."""

import json
import shutil
from functools import partial
from importlib.resources import files
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from cutaway import LLM
from cutaway.compute.loading.model import LoadedModel
from cutaway.compute.loading.setup import Setup
from cutaway.server.http.settings import ServerSettings
from cutaway.server.model_cache import ModelCache
from cutaway.server.on_demand import OnDemandLLM
from cutaway.trace import Parent, Trace, diff_texts
from cutaway.trace.check import VERSION, to_current
from support.adapters import adapter_of
from support.browser import expect
from support.page_modules import run_node
from support.proxied import ROOT, proxy
from support.random_llama import write_tiny_llama
from support.served import serve, serve_all
from support.waiting import wait_until
from support.web_data import DATA, FIGURES

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
    counted = server.models.resolve(name).metrics.registry.get_sample_value
    return counted("cutaway_tokens_total", {"kind": "completion"}) == tokens


def test_the_menu_says_who_writes(open_page, server):
    page = open_page(server.url)
    menu = page.tab.get_by_label("Model", exact=True)
    menu.locator("option").nth(1).wait_for(state="attached")
    expect(menu.locator("option")).to_have_text(["a", "poet", "b"])
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
        page.wait_for_runs(1)
        assert f"model={name}" in page.tab.url
        wait_until(partial(has_counted, server, name, tokens))


def test_one_model_has_no_menu(open_page, tiny_server):
    page = open_page(tiny_server.url)
    page.tab.get_by_text("tiny · cutaway").wait_for()
    expect(page.tab.get_by_label("Model", exact=True)).to_be_hidden()


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


# -- page files ------------------------------------------------------------------------------------

# The files that the page saves are valid traces, and its figures equal Python's.
#
# The page's modules are tested against the same files of ``data/`` in tests/trace/web/js/.


NAMES = ("first.jsonl", "six.jsonl")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with both runs as the page saves them."""
    if shutil.which("node") is None:
        pytest.skip("there is no node here")
    folder = tmp_path_factory.mktemp("page")
    run_node(Path(__file__).parent / "js" / "save.mjs", folder)
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_survives_the_page(name, saved):
    before, after = (Trace.read(folder / name) for folder in (DATA, saved))
    assert after.steps == before.steps
    assert (after.end, after.tokens) == (before.end, before.tokens)
    assert (after.head.params, after.head.seed) == (before.head.params, 2**64 - 1)
    assert (DATA / name).read_bytes() != (saved / name).read_bytes()  # 1 is not 1.0


@pytest.mark.parametrize("name", NAMES)
def test_every_line_is_of_the_schema(name, saved):
    schema = json.loads(files("cutaway.trace").joinpath("schema.json").read_text())
    validator = Draft202012Validator(schema)
    head, *others = map(json.loads, (saved / name).read_text().splitlines())
    version = head["version"]  # that of the file that the page opened
    validator.validate(to_current(head, version) | {"version": VERSION})
    for line in others:
        validator.validate(to_current(line, version))


def test_a_fork_that_the_page_saved_names_its_parent(saved):
    first, six = (Trace.read(saved / name) for name in NAMES)
    assert diff_texts(first, six).is_fork
    assert six.head.parent == Parent(first.sha256, 2, six.steps[2].token_id)
    assert not diff_texts(six, first).is_fork


@pytest.mark.parametrize("name", FIGURES)
def test_what_the_page_is_held_against_is_what_python_finds(name):
    assert json.loads((DATA / f"{name}.json").read_text()) == FIGURES[name]()
