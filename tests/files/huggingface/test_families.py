"""Every model as a folder of transformers: the same logits, close ones from the native backend,
and there the same bits in every way."""

import os

import numpy as np
import pytest

from cutaway import LLM
from cutaway.compute.backends.cpu import tiers
from cutaway.compute.loading.open import open_model
from cutaway.files.weights.gguf_writer import write_gguf

pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
pytest.importorskip("transformers", reason="needs transformers: pip install '.[test-transformers]'")

from support.diffusion_models import DIFFUSION
from support.families.encoders import ENCODERS
from support.families.recurrent import RECURRENT
from support.families.row import VOCAB
from support.random_models import FAMILIES, FORMULAS, IDS, context, logits, save

FORMATS = (None, "q8_0")
WRITERS = [*FAMILIES, *FORMULAS]
MODELS = [*WRITERS, *ENCODERS, *DIFFUSION]


def dealt(names, first=0):
    """Each model with one of the formats in turn; slow, with the other, too."""
    return [
        pytest.param(name, format, marks=() if j == (i + first) % 2 else pytest.mark.slow)
        for i, name in enumerate(names)
        for j, format in enumerate(FORMATS)
    ]


@pytest.mark.parametrize("name", MODELS)
def test_the_reference_s_logits_are_those_of_transformers(random_model, name):
    (path, theirs), ids = random_model(name), IDS[: context(name)]
    llm = LLM(path, backend="reference", context=context(name))
    assert np.abs(llm.logits(ids) - theirs(ids)).max() < 1e-3
    # NumPy's BLAS may round a matrix of fewer rows otherwise; the contract is the cpu backend's.
    few = np.abs(llm.logits(ids, 50) - llm.logits(ids)[50:]).max()
    assert few < (1e-4 if name in WRITERS else 1e-5)


def test_a_text_longer_than_the_first_training_s(random_model):
    """Longer than 64 tokens, where other factors stretch the positions."""
    path, theirs = random_model("phi3-longrope")
    assert np.abs(LLM(path, backend="reference").logits(IDS) - theirs(IDS)).max() < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("name", RECURRENT)
def test_a_state_is_that_of_transformers_after_200_tokens(random_model, name):
    """The native backend has halves of 11 bits for keys and values, so its mean error counts."""
    path, theirs = random_model(name)
    ids = np.random.default_rng(1).integers(6, VOCAB, 200).tolist()
    exact = theirs(ids)
    assert np.abs(LLM(path, backend="reference").logits(ids) - exact).max() < 1e-3
    errors = LLM(path).logits(ids)[100:] - exact[100:]
    assert np.sqrt(np.mean(errors**2)) < 1e-3


@pytest.mark.parametrize(("name", "format"), dealt(MODELS))
def test_the_native_backend_is_close(random_model, name, format):
    """Keys and values have 11 bits there; activations 8 where weights are quantised.

    Of most rows: one whose scores of experts are nearly equal may go to others.
    """
    (path, _), ids = random_model(name), IDS[:40] if name in WRITERS else IDS
    models = [
        LLM(path, backend=backend, context=context(name), quantize=format)
        for backend in ("reference", "cpu")
    ]
    exact, ours = (llm.logits(ids) for llm in models)
    is_mixture = any(op.kind == "experts" for op in models[0].graph.ops)
    errors = np.mean((ours - exact) ** 2, axis=1) / np.mean(exact**2)
    error = np.sqrt((np.median if is_mixture else np.mean)(errors))
    assert error < (0.004 if format is None else 0.12)


@pytest.mark.parametrize(
    ("name", "format"),
    [(n, format) for n in ENCODERS for format in FORMATS] + [(n, None) for n in DIFFUSION],
)
def test_bits_are_the_same_over_threads_tiers_and_files(
    random_model, name, format, monkeypatch, tmp_path
):
    path, _ = random_model(name)
    expected = LLM(path, threads=2, quantize=format).logits(IDS)
    assert np.array_equal(LLM(path, threads=3, quantize=format).logits(IDS), expected)
    with open_model(path) as folder:
        write_gguf(tmp_path / "one.gguf", folder)
    assert np.array_equal(LLM(tmp_path / "one.gguf", quantize=format).logits(IDS), expected)
    for tier in tiers():
        monkeypatch.setitem(os.environ, "CUTAWAY_ISA", tier)
        assert np.array_equal(LLM(path, threads=1, quantize=format).logits(IDS), expected), tier


def fingerprints(path, format, **more):
    """Of three texts that are written together."""
    llm = LLM(path, context=128, quantize=format, **more)
    prompts = [IDS[:33], IDS[5:12], IDS[20:60]]
    texts = llm.generate(prompts, temperature=0.8, seed=3, max_tokens=16, ignore_eos=True)
    return llm, prompts, [text.fingerprint for text in texts]


@pytest.mark.parametrize(("name", "format"), dealt(WRITERS, 1))  # with the other one than above
def test_fingerprints_are_the_same_in_every_way(random_model, name, format, monkeypatch):
    path, _ = random_model(name)
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


@pytest.mark.parametrize("name", WRITERS)
def test_a_folder_written_as_one_file_is_the_same_model(random_model, name, tmp_path):
    path, _ = random_model(name)
    with open_model(path) as folder:
        write_gguf(tmp_path / "one.gguf", folder)
    assert fingerprints(tmp_path / "one.gguf", None)[2] == fingerprints(path, None)[2]


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
