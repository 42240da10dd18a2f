"""The inside of a step, computed by the modules of a page without a server: norms, biases, scales,
positions and matrices behind heads as families have them."""

import base64
import json
import shutil
from pathlib import Path

import pytest

from cutaway import LLM
from cutaway.compute.loading.model import LoadedModel
from cutaway.compute.loading.setup import Setup
from cutaway.lab.page_folder import write_page_folder
from cutaway.trace import Trace
from support.inside_files import asked, check_same
from support.wasm import NEEDS, cores, run

pytest.importorskip("ziglang", reason=NEEDS)
pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
pytest.importorskip("transformers", reason="needs transformers: pip install '.[test-transformers]'")
from support import random_models

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="there is no node here")
SCRIPT = Path(__file__).parent / "js/local-inside.mjs"
CONTEXT = 128


def exported(name, folder):
    """A family's random model, and its page; what is not in it."""
    random_models.save(name, folder / "model")
    model = LoadedModel(folder / "model", Setup(), weights=False)
    return write_page_folder(model, folder / "page", context=CONTEXT, cores=cores())


@pytest.mark.parametrize("name", ["gpt2", "granite", "olmo2", "cohere", "qwen3"])
def test_it_is_that_of_this_engine(name, tmp_path):
    assert not [one for one in exported(name, tmp_path) if "inside" in one]
    prompt, path, step = random_models.IDS[:37], tmp_path / "run.jsonl", 3
    with LLM(tmp_path / "model", threads=1, context=CONTEXT, progress=False) as llm:
        how = {"temperature": 0.9, "presence_penalty": 0.5, "ignore_eos": True}
        llm.generate(prompt, seed=3, max_tokens=step + 1, trace=str(path), **how)
        trace = Trace.read(path)
        (tmp_path / "asked.json").write_text(json.dumps([asked(trace, step)]))
        said = run("node", "--no-warnings", SCRIPT, tmp_path / "page", tmp_path / "asked.json")
        check_same(base64.b64decode(said), llm, trace, step)


@pytest.mark.parametrize(
    ("name", "said"),
    [("lfm2", "its layers do not all attend"), ("mistral-window", "its layers have windows")],
)
def test_the_export_says_where_a_page_cannot_look(name, said, tmp_path):
    [sentence] = [one for one in exported(name, tmp_path) if "inside" in one]
    assert sentence.startswith(f"the page has no inside of a step: {said}")
    about = json.loads((tmp_path / "page/model/about.json").read_text())
    assert about["local"]["inside"] is False
