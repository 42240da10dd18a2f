"""A page's program of each family: recorded by Python, stepped by JavaScript, run by a device."""

import json
import shutil

import numpy as np
import pytest

from cutaway import LLM
from cutaway.base import _native
from cutaway.compute.backends.cpu import new_plan
from cutaway.compute.backends.gpu import pages
from cutaway.compute.backends.gpu.record import BINDING
from cutaway.compute.calls import plain
from cutaway.compute.loading.model import LoadedModel
from cutaway.compute.loading.setup import Setup
from cutaway.errors import OutOfMemoryError
from cutaway.features.page.plan import write_plan
from kit.gpu_replay import Replay
from support import random_models
from support.page_modules import JS, run_node

pytest.importorskip("wgpu", reason="needs wgpu: pip install '.[gpu]'")
pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="there is no node here")
CONTEXT = 96
STEPS = (12, 1, 2, 9, 1, 40, 1)
PROMPTS = ("The sky is", "Once upon a time", "Mr. Darcy")
USUAL = ("llama", "gemma3", "qwen3_5_moe", "granite4-h-moe", "deepseek_v2")
"""Windows, states, experts of both kinds, latents."""
REFUSED = ("gemma4", "gemma3n", "gemma3n-other")
"""A page's core does not run it either (test_wasm_families.py)."""


def list_families():
    """Name all families that a page runs: a few for each run, the others for the slow one."""
    slow = [name for name in (*random_models.FAMILIES, "rwkv7") if name not in (*USUAL, *REFUSED)]
    return [*USUAL, *(pytest.param(name, marks=pytest.mark.slow) for name in slow)]


@pytest.mark.parametrize("family", list_families())
def test_logits_of_a_recorded_program(device, family, tmp_path):
    check(device, family, tmp_path, has_dot=True)


def test_logits_without_a_dot_product_of_the_device(device, tmp_path):
    check(device, "llama", tmp_path, has_dot=False)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_matrices_larger_than_a_buffer_are_cut_between_panels(device, family, tmp_path):
    check(device, family, tmp_path, has_dot=True, binding=1 << 15)


def test_keys_and_values_larger_than_a_buffer_are_refused(tmp_path):
    random_models.save("llama", tmp_path / "model")
    _, packing = pack(tmp_path / "model", tmp_path)
    with pytest.raises(OutOfMemoryError, match="the GPU of a browser has buffers of at most 1024"):
        pages.record_program(packing, CONTEXT, binding=1024)


@pytest.mark.slow
@pytest.mark.model
def test_ten_seeds_of_three_prompts_of_smollm2(device, smollm2_path, tmp_path):
    """Whose rows have equal logits, so that the texts' fingerprints are equal."""
    _, packing = pack(smollm2_path, tmp_path)
    how = {"max_tokens": 3, "temperature": 0.9}
    with LLM(smollm2_path, context=CONTEXT, threads=1, progress=False) as llm:
        texts = [
            [llm.tokenizer.encode(text), *([token] for token in written.token_ids[:-1])]
            for text in PROMPTS
            for written in [llm.generate(text, seed=seed, **how) for seed in range(10)]
        ]
    assert len({str(text) for text in texts}) > 20
    check_texts(device, packing, texts, tmp_path)


def pack(path, tmp_path):
    """Return a model, and its plan with packed weights."""
    model = LoadedModel(path, Setup(), weights=False)
    with model.open_file() as file:
        *_, packing = write_plan(model.graph, file, tmp_path / "weights", CONTEXT)
    return model, packing


def check(device, family, tmp_path, *, has_dot, binding=BINDING):
    """Check a text of a random model of the family."""
    random_models.save(family, tmp_path / "model")
    model, packing = pack(tmp_path / "model", tmp_path)
    rng = np.random.default_rng(5)
    text = [rng.integers(0, model.tokenizer.vocab_size, rows).tolist() for rows in STEPS]
    check_texts(device, packing, [text], tmp_path, has_dot=has_dot, binding=binding)


def check_texts(device, packing, texts, tmp_path, *, has_dot=True, binding=BINDING):
    """Check that the last row of each step of each text has the CPU's logits."""
    pages.record_program(packing, CONTEXT, binding).write(tmp_path, "gpu")
    runner = pages.make_runner(packing, pages.WeightFile(packing, binding), CONTEXT)
    plan = new_plan(_native.Pool(1), -(-CONTEXT // 32), CONTEXT, "f16")
    plan.add(plain(packing.calls), [*packing.packed.values()], [])
    replay = Replay(device.device, tmp_path / "gpu", "int", has_dot=has_dot)
    document = replay.document
    sizes = [document["buffers"][buffer][0] for buffer, _ in document["weights"]]
    assert max(sizes) <= binding
    assert (len(sizes) > 1) == (binding < BINDING)
    weights = np.fromfile(tmp_path / "weights", np.uint8)
    for buffer, pieces in document["weights"]:
        for first, at, count in pieces:
            replay.write(buffer, at, weights[first : first + count])

    asked, right = [], []
    for first, ids in [step for text in texts for step in places(text)]:
        positions = np.arange(first, first + len(ids))
        angles = [a.at(positions.astype(np.int32)).ravel().view(np.int32).tolist()
                  for a in runner._angles]  # fmt: skip
        asked.append({"tokens": ids, "first": first, "angles": angles})
        right.append(plan.run(pages.one_text(positions, np.array(ids), CONTEXT)).tobytes())
    (tmp_path / "steps.json").write_text(json.dumps(asked))
    told = json.loads(
        run_node(JS / "gpu-steps.mjs", tmp_path / "gpu.json", tmp_path / "steps.json")
    )
    for step, logits in zip(told, right, strict=True):
        replay.write(document["step"], 0, np.array(step["step"], np.uint32))
        replay.write(document["lists"], 0, np.array(step["lists"], np.int32))
        replay.launch(step["launches"])
        assert replay.read([document["floats"], *document["output"]]).tobytes() == logits


def places(steps):
    """Yield the steps of a text, each with the position of its first token."""
    first = 0
    for ids in steps:
        yield first, ids
        first += len(ids)
