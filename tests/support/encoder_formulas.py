"""The parts of encoders, in float64, and checks for encoders that transformers lacks."""

from math import erf

import numpy as np

from cutaway import LLM
from cutaway.compute.loading.open import open_model
from cutaway.files.weights.gguf_writer import write_gguf

gelu = np.vectorize(lambda v: v * (1 + erf(v / np.sqrt(2))) / 2)


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def layers_of(weights, eps):
    """Return a layer norm and a linear layer, both (x, name of the weights) -> x."""

    def norm(x, name):
        centred = x - x.mean(axis=-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps)
        return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def linear(x, name):
        return x @ weights[f"{name}.weight"].T.astype(float) + weights.get(f"{name}.bias", 0)

    return norm, linear


def attend(q, k, v, bias=0.0):
    """(heads, tokens, size) each -> (tokens, heads · size). bias: added to scaled scores"""
    weights = softmax(q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1]) + bias)
    return (weights @ v).swapaxes(0, 1).reshape(q.shape[1], -1)


def assert_vectors(path, ids, expected, cosine):
    """Check vectors: of `reference` within 1e-4, of `cpu` in their direction."""
    vector = LLM(path, backend="reference").embed(ids, normalize=False).vectors[0]
    assert np.abs(vector - expected).max() < 1e-4
    native = LLM(path).embed(ids, normalize=False).vectors[0].astype(float)
    assert native @ expected / np.linalg.norm(native) / np.linalg.norm(expected) > cosine


def assert_same_bits(path, texts, each_tier, place):
    """Check equal bits alone and in a batch, and over threads, tiers and file formats."""
    with LLM(path, threads=2) as llm:
        expected = np.concatenate([llm.embed([text]).vectors for text in texts])
    with open_model(path) as folder:
        write_gguf(place / "one.gguf", folder)
    for tier in each_tier:
        with LLM(place / "one.gguf", threads=1) as llm:
            assert np.array_equal(llm.embed(texts).vectors, expected), tier
