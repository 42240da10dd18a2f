"""CUTAWAY_GPU_RECHECK: steps of a GPU are computed again on the CPU, and a difference is named."""

import numpy as np
import pytest

from cutaway import LLM, InputError
from cutaway.errors import CutawayError
from support.adapters import adapter_of
from support.random_llama import VOCAB, write_tiny_llama
from support.random_qwen35 import write_tiny_qwen35

HOW = {"max_tokens": 9, "temperature": 0.9, "ignore_eos": True, "seed": 3}
PROMPTS = [[1, *np.random.default_rng(i).integers(3, VOCAB, 40).tolist()] for i in range(3)]


@pytest.fixture(autouse=True)
def opened(device, monkeypatch, tmp_path):
    monkeypatch.setenv("CUTAWAY_HOME", str(tmp_path))
    monkeypatch.setattr("cutaway.compute.backends.gpu.open_device", lambda *_: device)


@pytest.fixture(params=["windowed", pytest.param("states", marks=pytest.mark.slow)])
def path(request, tmp_path):
    if request.param == "states":
        return write_tiny_qwen35(tmp_path / "states.gguf")
    window = {"llama.attention.sliding_window": 40}
    return write_tiny_llama(tmp_path / "windowed.gguf", format="Q8_0", head_dim=32, metadata=window)


def count_runs(llm):
    """Count the steps that the CPU beside the GPU computes."""
    cpu, runs = llm.backend.recheck._cpu, []
    run = cpu.run
    cpu.run = lambda batch: (runs.append(len(batch.tokens)), run(batch))[1]
    return runs


def test_texts_stay_the_same_and_one_step_in_n_is_computed_again(path, monkeypatch):
    with LLM(path, threads=1, progress=False) as cpu:
        expected = [text.fingerprint for text in cpu.generate(PROMPTS, **HOW)]
    monkeypatch.setenv("CUTAWAY_GPU_RECHECK", "2")
    llm = LLM(path, backend="gpu", threads=1, progress=False)
    runs = count_runs(llm)
    assert [text.fingerprint for text in llm.generate(PROMPTS, **HOW)] == expected
    assert len(runs) == llm.engine.steps // 2 > 3


def test_steps_with_an_adapter_are_computed_again_with_it(tmp_path, monkeypatch):
    path = write_tiny_llama(tmp_path / "plain.gguf", format="Q8_0", head_dim=32)
    poet = {"adapters": {"poet": str(adapter_of(path, tmp_path / "adapter.gguf"))}}
    with LLM(path, threads=1, progress=False, **poet) as cpu:
        expected = cpu.generate(PROMPTS[0], adapter="poet", **HOW).fingerprint
    monkeypatch.setenv("CUTAWAY_GPU_RECHECK", "1")
    llm = LLM(path, backend="gpu", threads=1, progress=False, **poet)
    adapted = llm.with_adapter("poet")
    runs = count_runs(adapted)
    assert llm.generate(PROMPTS[0], adapter="poet", **HOW).fingerprint == expected
    assert len(runs) == llm.engine.steps == HOW["max_tokens"]


def test_a_difference_ends_the_text_and_names_the_tensor(path, monkeypatch):
    monkeypatch.setenv("CUTAWAY_GPU_RECHECK", "1")
    llm = LLM(path, backend="gpu", threads=1, progress=False)
    panels = llm.backend._panels  # in the GPU's memory, as a fault of it would change them
    stream = llm.stream(PROMPTS[0], **HOW)
    for _ in range(3):
        next(stream)
    weights = panels.device.read(panels.buffers[0], 0, panels.buffers[0].size).copy()
    weights[len(weights) // 3 : len(weights) // 3 + 256] ^= 0x11
    panels.device.write(panels.buffers[0], 0, weights)
    with pytest.raises(CutawayError, match=r"computed a step with other bits .* in .*\(\w+\) of"):
        next(stream)


@pytest.mark.parametrize("number", ["0", "-1", "often", "1.5"])
def test_what_is_no_number_of_steps(monkeypatch, number):
    monkeypatch.setenv("CUTAWAY_GPU_RECHECK", number)
    with pytest.raises(InputError, match="CUTAWAY_GPU_RECHECK must be a whole number from 1 on"):
        LLM("toy-writer", backend="gpu", threads=1, progress=False)
