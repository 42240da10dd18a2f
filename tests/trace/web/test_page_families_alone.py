"""Families' models in a page without a server: prompts, texts and records."""

import json
import shutil
from pathlib import Path

import pytest

from cutaway import LLM
from cutaway.compute.loading.model import LoadedModel
from cutaway.compute.loading.setup import Setup
from cutaway.features.page.folder import write_page_folder
from cutaway.trace import Trace
from support import tiny_tokenizers
from support.wasm import NEEDS, cores, run

pytest.importorskip("ziglang", reason=NEEDS)
pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
pytest.importorskip("transformers", reason="needs transformers: pip install '.[test-transformers]'")
from support import random_models

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="there is no node here")
SCRIPT = Path(__file__).parent / "js/local-text.mjs"

PROMPTS = (" the  quick", "déjà\n日本 ½ 🙂", "</s>def f", "")


def check(family, folder, prompts=PROMPTS, **made):
    """What a page writes and notes after each of the prompts, one after the other, is ours."""
    random_models.save(family, folder / "model", **made)
    loaded = LoadedModel(folder / "model", Setup(), weights=False)
    write_page_folder(loaded, folder / "page", context=128, cores=cores())
    how = {"max_tokens": 24, "ignore_eos": True}
    asked = [{"prompt": one, "settings": how, "seed": "7"} for one in prompts]
    (folder / "asked.json").write_text(json.dumps(asked))
    said = run("node", "--no-warnings", SCRIPT, folder / "page", folder / "asked.json")
    with LLM(folder / "model", threads=1, context=128, progress=False) as llm:
        for prompt, records in zip(prompts, map(json.loads, said.splitlines()), strict=True):
            (path := folder / "run.jsonl").unlink(missing_ok=True)
            llm.generate(prompt, seed=7, trace=str(path), **how)
            here = Trace.read(path)
            text = "".join(one["text"] for one in records if one["kind"] in ("step", "end"))
            assert (records[-1]["fingerprint"], text) == (here.end.fingerprint, here.text)
            tokens = {one["id"]: one for one in records if one["kind"] == "tok"}
            assert tokens == {i: token.to_json() for i, token in here.tokens.items()}


@pytest.mark.parametrize(
    ("family", "prefix"), [("gemma3", "none"), ("llama", "every"), ("mistral-window", "first")]
)
def test_a_model_with_pieces_writes_in_a_page_what_it_writes_here(family, prefix, tmp_path):
    made = tiny_tokenizers.with_begin(tiny_tokenizers.sentencepiece(prefix, 384))
    check(family, tmp_path, tokenizer=lambda: made)


@pytest.mark.parametrize("family", ["qwen3_5_moe", "granite4-h-moe"])
def test_a_model_with_states_and_experts_writes_in_a_page_what_it_writes_here(family, tmp_path):
    check(family, tmp_path, PROMPTS[:-1])
