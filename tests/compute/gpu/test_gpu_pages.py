"""A page's program of each family: recorded by Python, stepped by JavaScript, run by a device."""

import json
import shutil

import numpy as np
import pytest

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
USUAL = ("llama", "gemma3", "qwen3_5_moe", "granite4-h-moe", "deepseek_v2")
"""Windows, states, experts of both kinds, latents."""
REFUSED = ("gemma4",)
"""A page's core does not run it either (test_wasm_families.py)."""


def list_families():
    """Name all families that a page runs: a few for each run, the others for the slow one."""
    slow = [name for name in random_models.FAMILIES if name not in (*USUAL, *REFUSED)]
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
    _, packing = pack("llama", tmp_path)
    with pytest.raises(OutOfMemoryError, match="the GPU of a browser has buffers of at most 1024"):
        pages.record_program(packing, CONTEXT, binding=1024)


def pack(family, tmp_path):
    """Return a random model of the family, and its plan with packed weights."""
    random_models.save(family, tmp_path / "model")
    model = LoadedModel(tmp_path / "model", Setup(), weights=False)
    with model.open_file() as file:
        *_, packing = write_plan(model.graph, file, tmp_path / "weights", CONTEXT)
    return model, packing


def check(device, family, tmp_path, *, has_dot, binding=BINDING):
    model, packing = pack(family, tmp_path)
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

    asked, right, first, rng = [], [], 0, np.random.default_rng(5)
    for rows in STEPS:
        ids = rng.integers(0, model.tokenizer.vocab_size, rows)
        positions = np.arange(first, first + rows)
        angles = [a.at(positions.astype(np.int32)).ravel().view(np.int32).tolist()
                  for a in runner._angles]  # fmt: skip
        asked.append({"tokens": ids.tolist(), "first": first, "angles": angles})
        right.append(plan.run(pages.one_text(positions, ids, CONTEXT)).tobytes())
        first += rows
    (tmp_path / "steps.json").write_text(json.dumps(asked))
    told = json.loads(
        run_node(JS / "gpu-steps.mjs", tmp_path / "gpu.json", tmp_path / "steps.json")
    )
    for step, logits in zip(told, right, strict=True):
        replay.write(document["step"], 0, np.array(step["step"], np.uint32))
        replay.write(document["lists"], 0, np.array(step["lists"], np.int32))
        replay.launch(step["launches"])
        assert replay.read([document["floats"], *document["output"]]).tobytes() == logits
