"""bench/gpu.py counts what the backend submits, and measures what it says."""

from collections import Counter
from pathlib import Path

import pytest

import gpu
from cutaway.compute.backends.gpu.launches import StepSize, launches
from gpu_counts import count
from shapes import SHAPES


def test_counts_on_paper_are_those_of_a_loaded_model(device):
    on_paper = count("toy-writer")
    with gpu.loaded("toy-writer", device) as (backend, _, _):
        program = backend.program
    kernels = [launch.dispatch.kernel.name for launch in launches(program, StepSize(1, 1))]
    assert on_paper.kernels == Counter(kernels)
    embedding, *multiplied = program.matrices
    assert on_paper.products == sum(m.rows * m.cols for m in multiplied)
    assert on_paper.weights == sum(
        4 * p.count * m.panel_words for m in multiplied for p in m.pieces
    )
    assert embedding.rows == 1024


def test_of_experts_only_those_are_counted_that_compute_a_token():
    counts, shape = count("olmoe-7b"), SHAPES["olmoe-7b"]
    experts = shape.layers * 3 * shape.hidden * shape.ffn
    few, many = (counts.products - n * experts for n in shape.experts[::-1])
    assert few > 0 > many


@pytest.mark.slow
def test_all_that_is_measured_is_measured(device):
    """On a software driver, of which these are no figures of speed."""
    with gpu.loaded("toy-writer", device) as (backend, vocab, _):
        steps = gpu.Steps(backend, 8, 16, vocab)
        figures = gpu.figures_of(device, steps, count("toy-writer"), None)
    assert min(figures.values()) > 0
    assert 0 < figures["decode / copying"] < 1
    assert 0 < figures["prompt / dp4a"] < 1


def test_llama_cpp_is_left_out_with_a_reason(tmp_path):
    other = tmp_path / "llama-bench"
    assert "there is no llama-bench" in gpu.Llama.find(str(other), Path("x.gguf"))
    other.write_text('#!/bin/sh\necho \'[{"backends": "CUDA"}]\'\n')
    other.chmod(0o755)
    assert "a build for CUDA, not for Vulkan" in gpu.Llama.find(str(other), Path("x.gguf"))
    other.write_text('#!/bin/sh\necho \'[{"backends": "Vulkan", "avg_ts": 20.0}]\'\n')
    assert gpu.Llama.find(str(other), Path("x.gguf")).rates(8)["llama decode"] == 20.0
