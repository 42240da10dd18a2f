"""Every family, as a folder of transformers: the same logits, close ones from the native backend,
and there the same bits whatever runs beside."""

import os

import numpy as np
import pytest

from cutaway import LLM
from cutaway.compute.backends.cpu import tiers
from cutaway.compute.loading.open import open_model
from cutaway.files.weights.gguf_writer import write_gguf

pytest.importorskip("torch", reason="torch is not installed: pip install '.[test-transformers]'")
pytest.importorskip("transformers", reason="transformers is not installed")

from support.random_models import FAMILIES, VOCAB, context, logits, save

IDS = np.random.default_rng(1).integers(3, VOCAB, 80).tolist()
FORMATS = (None, "q8_0")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """By family: its folder, and transformers' logits of the first 40 tokens and of all."""
    made = {}

    def folder(name):
        if name not in made:
            path = tmp_path_factory.mktemp(name)
            model = save(name, path)
            made[name] = path, logits(model, IDS[:40]), logits(model, IDS)
        return made[name]

    return folder


@pytest.mark.parametrize("name", FAMILIES)
def test_the_reference_s_logits_are_those_of_transformers(folders, name):
    path, theirs, _ = folders(name)
    ours = LLM(path, backend="reference", context=context(name)).logits(IDS[:40])
    assert np.abs(ours - theirs).max() < 1e-3


@pytest.mark.parametrize("name", [n for n in FAMILIES if "rope" in n or "window" in n])
def test_texts_longer_than_the_first_training_s(folders, name):
    """Longer than 64 tokens, from where on stretched positions are in force."""
    path, _, theirs = folders(name)
    ours = LLM(path, backend="reference").logits(IDS)
    assert np.abs(ours - theirs).max() < 1e-3


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", FAMILIES)
def test_the_native_backend_is_close(folders, name, format):
    """Keys and values have 11 bits there; activations 8 where weights are quantised."""
    path, *_ = folders(name)
    exact, ours = (
        LLM(path, backend=backend, context=context(name), quantize=format).logits(IDS[:40])
        for backend in ("reference", "cpu")
    )
    error = np.sqrt(np.mean((ours - exact) ** 2) / np.mean(exact**2))
    assert error < (0.004 if format is None else 0.12)


def fingerprints(path, format, **more):
    """Of three texts that are written together."""
    llm = LLM(path, context=128, quantize=format, **more)
    prompts = [IDS[:33], IDS[5:12], IDS[20:60]]
    texts = llm.generate(prompts, temperature=0.8, seed=3, max_tokens=16, ignore_eos=True)
    return llm, prompts, [text.fingerprint for text in texts]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", FAMILIES)
def test_fingerprints_are_the_same_in_every_way(folders, name, format, monkeypatch):
    path, *_ = folders(name)
    llm, prompts, expected = fingerprints(path, format, threads=2)
    assert len({*expected}) == 3
    options = {"temperature": 0.8, "seed": 3, "max_tokens": 16, "ignore_eos": True}
    for way in ({}, {"kv_cache": False}, {"speculate": "ngram"}):
        alone = [llm.generate(p, **options, **way).fingerprint for p in prompts]
        assert alone == expected, way
    assert fingerprints(path, format, threads=3, prefix_cache=False)[2] == expected
    for tier in tiers():
        monkeypatch.setitem(os.environ, "CUTAWAY_ISA", tier)
        assert fingerprints(path, format, threads=1)[2] == expected, tier


@pytest.mark.parametrize("name", FAMILIES)
def test_a_folder_written_as_one_file_is_the_same_model(folders, name, tmp_path):
    path, *_ = folders(name)
    with open_model(path) as folder:
        write_gguf(tmp_path / "one.gguf", folder)
    assert fingerprints(tmp_path / "one.gguf", None)[2] == fingerprints(path, None)[2]
