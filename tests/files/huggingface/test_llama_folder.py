"""A folder of a llama gives the logits that transformers gives."""

import numpy as np
import pytest

from cutaway import LLM

pytest.importorskip("torch", reason="transformers is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

from support.random_models import VOCAB, logits, save

IDS = np.random.default_rng(1).integers(3, VOCAB, 40).tolist()
LLAMAS = ["llama", "llama-tied", "llama-biased", "llama3-rope", "llama-linear-rope", "mistral"]


@pytest.mark.parametrize("name", LLAMAS)
def test_logits_are_those_of_transformers(name, tmp_path):
    model = save(name, tmp_path)
    ours = LLM(tmp_path, backend="reference").logits(IDS)
    assert np.abs(ours - logits(model, IDS)).max() < 1e-3


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_numbers_stay_what_they_are(dtype, tmp_path):
    model = save("llama", tmp_path, dtype=dtype)
    ours = LLM(tmp_path, backend="reference")
    assert np.abs(ours.logits(IDS) - logits(model, IDS)).max() < 1e-3


def test_shards_are_one_model(tmp_path):
    model = save("llama", tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    ours = LLM(tmp_path, backend="reference").logits(IDS)
    assert np.abs(ours - logits(model, IDS)).max() < 1e-3
