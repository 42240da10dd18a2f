"""Gemma 3 270M in a page without a server, where it is in the cache: its 262,144 pieces, its
windows of 512 tokens, its texts."""

import base64
import json
import shutil
from pathlib import Path

import pytest

from cutaway import LLM
from cutaway.compute.loading.model import LoadedModel
from cutaway.compute.loading.setup import Setup
from cutaway.features.page.folder import write_page_folder
from cutaway.files.hub import find_local
from cutaway.files.hub.catalog import find
from cutaway.trace import Trace
from support.inside_files import check_same, make_request
from support.many_scripts import lines
from support.page_tokenizer import check_cuts_alike
from support.wasm import NEEDS, cores, run

pytest.importorskip("ziglang", reason=NEEDS)
PATH = find_local(find("gemma3-270m"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PATH is None, reason="needs the model: cutaway pull gemma3-270m"),
    pytest.mark.skipif(shutil.which("node") is None, reason="there is no node here"),
]
JS, CONTEXT = Path(__file__).parent / "js", 640
HOW = {"max_tokens": 4, "temperature": 0.8}


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gemma") / "page"
    said = write_page_folder(
        LoadedModel(PATH, Setup(), weights=False), folder, context=CONTEXT, cores=cores()
    )
    assert said == ["the page has no chat: the model has no chat template"]
    return folder


@pytest.fixture(scope="module")
def gemma():
    with LLM(PATH, context=CONTEXT, progress=False) as llm:
        yield llm


def test_its_tokenizer_cuts_texts_as_ours_does(page, gemma, tmp_path):
    texts = [*lines(20_000), "", "<start_of_turn>user\n\n\n  <b>x</b>\t\t<unused7>", "▁ ▁▁ a"]
    vocabulary = json.loads((page / "model/tokenizer.json").read_text())
    check_cuts_alike(vocabulary, gemma.tokenizer, texts, tmp_path)


def test_its_texts_are_ours(page, gemma, tmp_path):
    prompts = ("The capital of France is", "Größe:  1, 2, 3,\n\n")
    of = [{"prompt": one, "settings": HOW, "seed": "7"} for one in prompts]
    (tmp_path / "asked.json").write_text(json.dumps(of))
    said = run("node", "--no-warnings", JS / "local-text.mjs", page, tmp_path / "asked.json")
    ends = [json.loads(line)[-1]["fingerprint"] for line in said.splitlines()]
    assert ends == [gemma.generate(one, seed=7, **HOW).fingerprint for one in prompts]


def test_the_inside_of_a_step_beyond_its_windows_is_ours(page, gemma, tmp_path):
    prompt = gemma.tokenizer.encode("Ann met Bob. Then Bob saw a light in the sky. " * 45)
    assert len(prompt) > 520
    gemma.generate(prompt, seed=7, trace=str(tmp_path / "run.jsonl"), **HOW)
    trace = Trace.read(tmp_path / "run.jsonl")
    (tmp_path / "asked.json").write_text(json.dumps([make_request(trace, 2)]))
    said = run("node", "--no-warnings", JS / "local-inside.mjs", page, tmp_path / "asked.json")
    check_same(base64.b64decode(said), gemma, trace, 2)
