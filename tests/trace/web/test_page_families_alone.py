"""Families' models in a page without a server: prompts, texts, records, the inside of a step."""

import base64
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
from support.inside_files import check_same, make_request
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


# -- the inside of a step ----------------------------------------------------------------------
# Norms, biases, scales, positions, windows, convolutions and matrices behind heads.

pytest.importorskip("ziglang", reason=NEEDS)
pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
pytest.importorskip("transformers", reason="needs transformers: pip install '.[test-transformers]'")

INSIDE_SCRIPT = Path(__file__).parent / "js/local-inside.mjs"
NAMES = (
    "gpt2", "granite", "olmo2", "cohere", "qwen3", "gemma2", "gemma3", "mistral-window",
    "phi3-window", "lfm2", "lfm2-last", "helium", "qwen3_moe", "gpt_oss", "lfm2_moe",
)  # fmt: skip


def exported(name, folder, context):
    """A family's random model, and its page; what is not in it."""
    random_models.save(name, folder / "model")
    random_models.edit(folder / "model/config.json", max_position_embeddings=1024)
    model = LoadedModel(folder / "model", Setup(), weights=False)
    return write_page_folder(model, folder / "page", context=context, cores=cores())


def check_inside(name, folder, prompt, steps, context=128):
    """The page looks into these steps, one after the other."""
    assert not [one for one in exported(name, folder, context) if "inside" in one]
    path = folder / "run.jsonl"
    with LLM(folder / "model", threads=1, context=context, progress=False) as llm:
        how = {"temperature": 0.9, "presence_penalty": 0.5, "ignore_eos": True}
        llm.generate(prompt, seed=3, max_tokens=max(steps) + 1, trace=str(path), **how)
        trace = Trace.read(path)
        (folder / "asked.json").write_text(
            json.dumps([make_request(trace, step) for step in steps])
        )
        said = run(
            "node",
            "--no-warnings",
            INSIDE_SCRIPT,
            folder / "page",
            folder / "asked.json",
        )
        for answer, step in zip(said.split(), steps, strict=True):
            check_same(base64.b64decode(answer), llm, trace, step)


@pytest.mark.parametrize("name", NAMES)
def test_it_is_that_of_this_engine(name, tmp_path):
    check_inside(name, tmp_path, random_models.IDS[:37], (3,))


@pytest.mark.parametrize("name", ["gemma3", "lfm2", "lfm2-last"])
def test_steps_in_any_order(name, tmp_path):
    """Of texts that begin shorter than a window, and than what a convolution reads."""
    check_inside(name, tmp_path, random_models.IDS[:1], (0, 1, 9, 9, 4, 5))


def test_a_text_too_long_to_tell_what_a_convolution_takes_of_each_token(tmp_path):
    check_inside("lfm2", tmp_path, [*random_models.IDS[:30]] * 17, (0, 1, 2, 3), context=640)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("llama4", "its layers see chunks"),
        ("gemma4-moe", "each of its layers multiplies all of its stream"),
        ("deepseek_v2", "its layers see chunks, latents"),
        ("qwen3_5", "its layers have delta nets"),
        ("granite4-h", "its layers have Mamba 2"),
    ],
)
def test_the_export_says_where_a_page_cannot_look(name, said, tmp_path):
    [sentence] = [one for one in exported(name, tmp_path, 64) if "inside" in one]
    assert sentence.startswith("the page has no inside of a step: ")
    assert said in sentence
    about = json.loads((tmp_path / "page/model/about.json").read_text())
    assert about["local"]["inside"] is False
