"""Real models on a GPU: the texts and vectors of the CPU."""

import pytest

from cutaway import LLM

pytestmark = [pytest.mark.slow, pytest.mark.model]


@pytest.fixture
def opened(device, monkeypatch):
    monkeypatch.setattr("cutaway.compute.backends.gpu.open_device", lambda *_: device)


def both(model):
    return [
        LLM(model, backend=name, context=512, threads=1, progress=False) for name in ("cpu", "gpu")
    ]


def test_smollm2_writes_the_same_texts(opened):
    prompts = ["The old house by the sea", "def add(a, b):"]
    told = [
        [text.fingerprint for text in llm.generate(prompts, seed=3, max_tokens=8)]
        for llm in both("smollm2")
    ]
    assert told[0] == told[1]


def test_minilm_has_the_same_vectors(opened):
    texts = ["The old house by the sea", "A ship", "w " * 60]
    cpu, gpu = (llm.embed(texts).vectors for llm in both("minilm"))
    assert cpu.tobytes() == gpu.tobytes()
