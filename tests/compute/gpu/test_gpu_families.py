"""Families on a GPU have the bits of the CPU, in steps of any size."""

import numpy as np
import pytest

from cutaway.compute import backends
from cutaway.compute.backends import Batch
from cutaway.compute.backends.gpu import GpuBackend
from cutaway.compute.backends.gpu.weights import DeviceWeights
from cutaway.compute.loading.model import LoadedModel
from cutaway.compute.loading.setup import Setup

pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
pytest.importorskip("transformers", reason="needs transformers: pip install '.[test-transformers]'")
from support import random_models, tiny_rwkv

USUAL = (
    "llama",
    "gemma3",
    "gpt_oss",
    "deepseek_v2",
    "qwen3_5",
    "granite4-h-moe",
    "lfm2",
    "phimoe",
    "rwkv7",
    "inkling2",
)
"""Windows, biases, sinks, latents, states of all kinds, ways to choose experts."""
STEPS = (20, 1, 2, 40, 1)


@pytest.mark.parametrize(
    ("name", "quantize"),
    [
        pytest.param(name, None, marks=[] if name in USUAL else pytest.mark.slow)
        for name in (*random_models.FAMILIES, *tiny_rwkv.CONFIGS)
    ]
    + [("olmoe", "q4_0")],  # many rows' experts are sorted where matrices are quantised
)
def test_its_logits_are_those_of_the_cpu(device, monkeypatch, name, quantize, tmp_path):
    compare(device, monkeypatch, name, quantize, tmp_path)


def test_a_prompt_that_is_read_to_both_sides(device, monkeypatch, tmp_path):
    """The rows of the first step attend to its end, those of the others to what is before."""
    compare(device, monkeypatch, "hrm_text", None, tmp_path, prompt=STEPS[0])


def test_experts_lie_in_several_buffers(device, monkeypatch, tmp_path):
    """And each kernel computes the items of those in its own, alone."""
    put = DeviceWeights._put

    def put_into_small_buffers(*arguments):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(device, "binding", 1 << 15)
            return put(*arguments)

    monkeypatch.setattr(DeviceWeights, "_put", put_into_small_buffers)
    gpu = compare(device, monkeypatch, "olmoe", "q4_0", tmp_path)
    experts = {
        d.weights for d in gpu.program.dispatches if ("EXPERTS", "true") in d.kernel.constants
    }
    assert len(experts) > 1


def compare(device, monkeypatch, name, quantize, tmp_path, prompt=0):
    """Compute STEPS on both; return the backend of the GPU.

    prompt: how many first tokens attend to each other
    """
    monkeypatch.setenv("CUTAWAY_HOME", str(tmp_path / "home"))
    random_models.save(name, tmp_path / "model")
    model = LoadedModel.open(str(tmp_path / "model"), Setup(quantize=quantize), weights=False)
    options = {"kv_blocks": 24, "context": 64, "threads": 1}
    with model.open_file() as file:
        cpu = backends.load("cpu", model.graph, file, **options)
        gpu = GpuBackend(model.graph, file, device=device, **options)
    start, rng = 0, np.random.default_rng(5)
    for count in STEPS:
        tokens = rng.integers(0, model.tokenizer.vocab_size, count).astype(np.int32)
        positions = np.arange(start, start + count, dtype=np.int32)
        rows = np.unique([0, count // 2, count - 1]).astype(np.int32)
        one, table = np.zeros(count, np.int32), np.array([[7, 3]], np.int32)
        limits = np.maximum(positions, prompt - 1) if prompt else None
        batch = Batch(tokens, positions, one, table, rows, limits)
        assert cpu.run(batch).tobytes() == gpu.run(batch).tobytes(), f"{count} rows at {start}"
        start = 0 if name.endswith("deberta") else start + count  # which reads a text in one step
    return gpu
