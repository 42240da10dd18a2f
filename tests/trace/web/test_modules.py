"""The page's modules: tests in Node of those that need no document, and rules for all of them."""

import json
import re
import shutil
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from cutaway import LLM
from cutaway.compute.model.anatomy import LayerRun
from cutaway.features.inside import summary
from cutaway.features.inside.inside_tables import _describe_settling
from cutaway.features.inside.look import Look, inside
from cutaway.features.inside.summary import heads, places
from cutaway.files.weights.safetensors import write_safetensors
from cutaway.trace import Trace
from cutaway.trace.page import catalogue
from cutaway.trace.web import __file__ as web
from support.page_modules import JS, run_node
from support.random_llama import write_tiny_llama
from support.random_qwen35 import write_tiny_qwen35

MODULES = sorted((Path(web).parent / "js").rglob("*.js"))
COMPUTED = {"temperature", "top_k"}
"""Stages whose arithmetic the page does: what a logit is divided by, and ranks up to k."""
ENDS = {"constraint"}
"""Stages whose name is also that of an end."""


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node here")
def test_in_node():
    all_in_one_process = "for (const file of process.argv.slice(1)) await import(file);"
    files = sorted(JS.glob("*.test.mjs"))
    options = ("--test-reporter=tap", "--input-type=module", "--eval", all_in_one_process)
    [passed] = re.findall("^# pass ([0-9]+)$", run_node(*options, *files), re.MULTILINE)
    written = sum(len(re.findall(r"^ *test\(", file.read_text(), re.MULTILINE)) for file in files)
    assert int(passed) >= written  # one in a loop is several


def test_every_module_is_explained():
    for path in MODULES:
        assert path.read_text().startswith("/**"), path.name


def test_nothing_becomes_markup_and_nothing_is_fetched_elsewhere():
    for path in MODULES:
        text = path.read_text()
        for forbidden in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
        ):
            assert forbidden not in text, (path.name, forbidden)
        assert "https://" not in text


def test_no_module_names_a_stage():
    """They come from Python with their letters, settings and orders, so a new stage is no work."""
    stages = catalogue()["stages"]
    named = {name for s in stages for name in (s["name"], *(p["name"] for p in s["params"]))}
    words = re.compile(rf"[\"'{{.\s]({'|'.join(named - COMPUTED - ENDS)})[\"'\]:]")
    for path in MODULES:
        code = re.sub(r"/\*.*?\*/|//[^\n]*", "", path.read_text(), flags=re.DOTALL)
        assert not words.findall(code), path.name


# -- inside figures --------------------------------------------------------------------------------

# Every figure of the panel Inside equals that of ``cutaway.features.inside``, as float32.


SHAPE = {"heads": 4, "kv_heads": 2, "head_dim": 16, "hidden": 64, "feed_forward": 96}
STEP, HEAD = 14, (1, 2)
MOST = 8


@pytest.fixture(scope="module")
def look(tmp_path_factory):
    folder = tmp_path_factory.mktemp("looks")
    metadata = {"llama.attention.sliding_window": 12, "llama.attention.sliding_window_pattern": 2}
    llm = LLM(
        write_tiny_llama(folder / "tiny.gguf", **SHAPE, format="Q8_0", context=128,
                         metadata=metadata), threads=1,
    )  # fmt: skip
    options = {"max_tokens": 20, "seed": 3, "ignore_eos": True, "temperature": 0.8}
    llm.generate("ab a\x1b aba", trace=folder / "run.jsonl", **options)
    return inside(llm, Trace.read(folder / "run.jsonl"), STEP)


def write_file(look, folder):
    """Write the file that a page reads."""
    found, lens = look.logit_attribution(), look.lens(1)
    about = summary.page_header(look, found, lens, str, trace="", model="tiny") | {"as_run": "true"}
    write_safetensors(folder / "look.safetensors", summary.page_arrays(look, found, lens), about)
    return folder / "look.safetensors"


@pytest.fixture(scope="module")
def file(look, tmp_path_factory):
    return write_file(look, tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module")
def page(file):
    """What the page finds, of all heads together and of one."""
    one = ",".join(map(str, HEAD))
    return {key: json.loads(run_node(JS / "step-inside.mjs", file, *arg))
            for key, arg in (("all", ()), ("one", (one,)))}  # fmt: skip


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node here")
def test_every_mark_of_the_inside_is_a_figure_of_the_file(file, monkeypatch):
    monkeypatch.setenv("INSIDE", str(file))
    run_node("--test", JS / "inside-drawings.mjs")


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node here")
def test_the_bands_of_states_are_figures_of_the_file(tmp_path, monkeypatch):
    llm = LLM(write_tiny_qwen35(tmp_path / "tiny.gguf"), threads=1)
    options = {"max_tokens": 3, "ignore_eos": True, "temperature": 0}
    llm.generate([9, 8, 7, 30, 31], trace=tmp_path / "run.jsonl", **options)
    look = inside(llm, Trace.read(tmp_path / "run.jsonl"), 2)
    assert [*look.states] == [0, 2]
    monkeypatch.setenv("INSIDE", str(write_file(look, tmp_path)))
    run_node("--test", JS / "inside-drawings.mjs")


def near(got, expected):
    """Equal as float32."""
    assert np.float32(got) == np.float32(expected)


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node here")
def test_heads(look, page):
    expected = heads(look, look.logit_attribution())
    for got, head in zip(page["all"]["heads"], expected, strict=True):
        assert got.keys() == asdict(head).keys()
        for name, value in asdict(head).items():
            near(got[name], value)
    best = sorted(expected, key=lambda h: -abs(h.attribution))[:MOST]
    assert page["all"]["byAttribution"] == [[h.layer, h.head] for h in best]


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node here")
def test_places(look, page):
    expected = places(look, look.logit_attribution(), str)
    for got, place in zip(page["all"]["places"], expected, strict=True):
        assert got["position"] == place.position
        near(got["weight"], place.weight)
        near(got["attribution"], place.attribution)
    best = sorted(expected, key=lambda p: -p.weight)[:MOST]
    assert [p["position"] for p in page["all"]["looked"]] == [p.position for p in best]


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node here")
@pytest.mark.parametrize(("order", "of"), [("looked", "weights"), ("attributed", "attributions")])
def test_places_of_one_head(look, page, order, of):
    weights, attributions = look.weights[HEAD], look.logit_attribution().positions[HEAD]
    by = weights if of == "weights" else np.abs(attributions)
    told = page["one"][order]
    assert [p["position"] for p in told] == np.argsort(-by, kind="stable")[:MOST].tolist()
    for place in told:
        near(place["weight"], weights[place["position"]])
        near(place["attribution"], attributions[place["position"]])


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node here")
def test_tints_are_square_roots(look, page):
    for key, weight in (("all", look.weights.mean(axis=(0, 1))), ("one", look.weights[HEAD])):
        levels = 16 * np.sqrt(weight)
        assert np.abs(np.array(page[key]["tints"]) - levels).max() <= 0.5 + 16 / 255
    attributions = look.logit_attribution().positions.sum(axis=(0, 1))
    shades = 16 * np.sign(attributions) * np.sqrt(np.abs(attributions) / np.abs(attributions).max())
    assert np.abs(np.array(page["all"]["attributionTints"]) - shades).max() <= 0.51
    entropy = np.array([16 * np.sqrt(h.entropy) for h in heads(look, look.logit_attribution())])
    assert np.abs(np.array(page["all"]["cells"]) - entropy).max() <= 0.51


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node here")
def test_the_lens(look, page):
    lens = look.lens(1)
    for got, row in zip(page["all"]["lens"], lens.rows(str), strict=True):
        assert (got["layer"], got["id"], got["rank"]) == (row.layer, row.token_id, row.rank)
        assert got["drawnId"] == row.drawn
        assert got["probability"] == pytest.approx(row.probability, rel=1e-5)
    assert page["all"]["lensSentence"] == _describe_settling(look, lens, "it")


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node here")
def test_a_layer_that_runs_again_is_named_with_its_run(look, tmp_path, monkeypatch):
    last = look.layers - 1
    runs = [LayerRun(0, i + 1) for i in range(look.layers)]
    monkeypatch.setattr(Look, "runs", runs)
    page = json.loads(run_node(JS / "step-inside.mjs", write_file(look, tmp_path)))
    assert f"L{last}.H3, of layer 0 in its run {last + 1}: attribution" in page["headSentence"]
    lens = look.lens(1)
    assert f"layer 0 in its run {lens.settled}, L{lens.settled - 1} on" in page["lensSentence"]
    assert page["lensSentence"] == _describe_settling(look, lens, "it")


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node here")
def test_attributions_add_up(look, page):
    found, told = look.logit_attribution(), page["all"]
    assert [p["name"] for p in told["components"]] == [*found.parts, "rounding"]
    for part, attribution in zip(
        told["components"], [*found.parts.values(), found.rounding], strict=True
    ):
        near(part["attribution"], attribution)
    assert told["total"] == found.total
    assert sum(p["attribution"] for p in told["components"]) == pytest.approx(found.total, abs=1e-5)
    assert (told["token"], told["rival"], told["asRun"]) == (found.token, found.rival, True)
