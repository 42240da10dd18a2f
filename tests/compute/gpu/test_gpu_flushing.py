"""On a device that flushes denormals, a step that this may have changed is the CPU's."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cutaway.compute import backends, calls
from cutaway.compute.backends import Batch
from cutaway.compute.backends.gpu import GpuBackend
from cutaway.compute.backends.gpu.flushing import FlushingRunner
from cutaway.compute.loading.model import LoadedModel
from cutaway.compute.loading.setup import Setup
from support import random_models
from support.gpu_plans import assert_same, rows_apart, run_both
from support.native_plans import table
from support.random_qwen35 import write_tiny_qwen35

STEPS = (20, 1, 2, 40, 1)
FAMILIES = (
    "llama", "gemma3", "qwen3", "qwen3_5", "gpt_oss", "lfm2", "olmoe", "phimoe", "deepseek_v2",
    "granite4-h-moe", "phi3", "gemma2", "mistral", "gpt2",
)  # fmt: skip
SWIFTSHADER = Path(os.environ.get("SWIFTSHADER") or "/usr/lib/chromium/libvk_swiftshader.so")


@pytest.fixture
def flushing(device, monkeypatch):
    """A device that fuses and flushes, as D3D12 and Metal do."""
    monkeypatch.setattr(device, "fused", "flush")
    monkeypatch.setattr(device, "flushes", True)
    return device


def product_of_tiny(scale):
    """A plan of a matrix and of rows whose sums are denormals if the scale is small."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal((48, 64)).astype(np.float32) * scale for _ in range(2))
    plan = [
        calls.AddBuffer(64, False), calls.AddBuffer(48, False), calls.EmbedRows(0, (0, 0), "token"),
        calls.LinearCall(
            False, calls.Places((0, 0)), calls.Finish(), [calls.LinearPart(1, (1, 0))]
        ),
        calls.SetOutput((1, 0)),
    ]  # fmt: skip
    return plan, [("F32", table(x)), ("F32", table(w))]


@pytest.mark.parametrize("rows", [1, 40])
def test_a_sum_that_is_flushed_is_computed_again(flushing, rows):
    plan, matrices = product_of_tiny(1e-21)
    [(on_cpu, on_gpu)] = run_both(flushing, plan, matrices, [rows_apart(rows)])
    assert 0 < np.abs(on_cpu).max() < np.finfo(np.float32).tiny
    assert_same([(on_cpu, on_gpu)])


def test_what_is_not_hurt_is_not_computed_again(flushing, monkeypatch):
    monkeypatch.setattr(FlushingRunner, "_run_again", None)
    plan, matrices = product_of_tiny(1.0)
    assert_same(run_both(flushing, plan, matrices, [rows_apart(40)]))


@pytest.mark.parametrize("name", ["gemma3", "qwen3_5"])
def test_steps_of_both_follow_each_other(flushing, monkeypatch, name, tmp_path):
    """Keys, values, windows and states go to the CPU and back, whichever step was hurt."""
    pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
    pytest.importorskip("transformers", reason="needs transformers")
    monkeypatch.setenv("CUTAWAY_HOME", str(tmp_path / "home"))
    random_models.save(name, tmp_path / "model")
    model = LoadedModel.open(str(tmp_path / "model"), Setup(), weights=False)
    options = {"kv_blocks": 24, "context": 64, "threads": 1}
    with model.open_file() as file:
        cpu = backends.load("cpu", model.graph, file, **options)
        gpu = GpuBackend(model.graph, file, device=flushing, **options)
    again = []
    run_again = FlushingRunner._run_again
    monkeypatch.setattr(
        FlushingRunner, "_run_again", lambda *args: again.append(1) or run_again(*args)
    )
    start, rng = 0, np.random.default_rng(5)
    for i, count in enumerate(STEPS):
        tokens = rng.integers(0, model.tokenizer.vocab_size, count).astype(np.int32)
        positions = np.arange(start, start + count, dtype=np.int32)
        rows = np.unique([0, count - 1]).astype(np.int32)
        batch = Batch(
            tokens, positions, np.zeros(count, np.int32), np.array([[7, 3]], np.int32), rows
        )
        monkeypatch.setattr(FlushingRunner, "_is_hurt", lambda *_, i=i: i % 2 == 0)
        assert cpu.run(batch).tobytes() == gpu.run(batch).tobytes(), f"{count} rows at {start}"
        start += count
    assert len(again) == 3


def test_a_batch_that_names_no_position_is_refused_before_states_are_read(flushing, tmp_path):
    model = LoadedModel.open(
        str(write_tiny_qwen35(tmp_path / "states.gguf")), Setup(), weights=False
    )
    with model.open_file() as file:
        gpu = GpuBackend(model.graph, file, device=flushing, kv_blocks=4, context=64, threads=1)
    zero, table = np.zeros(1, np.int32), np.zeros((1, 1), np.int32)
    with pytest.raises(ValueError, match="batch: a position is outside"):
        gpu.run(Batch(zero, zero + 40, zero, table, zero))


@pytest.mark.slow
def test_families_on_swiftshader(tmp_path):
    """A driver that flushes denormals, of another maker and with another compiler."""
    pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
    if not SWIFTSHADER.exists():
        pytest.skip("no SwiftShader: apt-get install chromium, or set SWIFTSHADER to its library")
    driver = tmp_path / "swiftshader.json"
    icd = {"library_path": str(SWIFTSHADER), "api_version": "1.0.5"}
    driver.write_text(json.dumps({"file_format_version": "1.0.0", "ICD": icd}), "utf-8")
    tests = str(Path(__file__).parents[2])
    path = os.pathsep.join([tests, *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "support.gpu_families", *FAMILIES],
        env=os.environ | {"VK_ICD_FILENAMES": str(driver), "PYTHONPATH": path},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "flushes True" in done.stdout
    assert done.stdout.count(": 5 of 5 steps") == len(FAMILIES)
