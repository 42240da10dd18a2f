"""all-MiniLM-L6-v2 beside sentence-transformers: what that made of some texts, in its own file.

``tests/data/minilm_golden.json`` has vectors of sentence-transformers 6.2 with torch 2.13 on a CPU,
rounded to six digits; ``bench/embeddings.py`` compares a few hundred texts.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from cutaway import LLM
from cutaway.files import hub

pytestmark = pytest.mark.model

GOLDEN = json.loads(
    Path(__file__).parents[1].joinpath("data", "minilm_golden.json").read_text("utf-8")
)
TEXTS = [one["text"] for one in GOLDEN]
VECTORS = np.array([one["vector"] for one in GOLDEN])


@pytest.fixture(scope="module")
def path():
    return hub.resolve("minilm", progress=False)


def cosines(vectors):
    return (vectors * VECTORS).sum(axis=1) / np.linalg.norm(vectors, axis=1)


def test_the_reference_has_the_vectors_of_sentence_transformers(path):
    with LLM(path, backend="reference") as llm:
        short = [i for i, text in enumerate(TEXTS) if len(text) < 300]
        found = llm.embed([TEXTS[i] for i in short])
        assert np.abs(found.vectors - VECTORS[short]).max() < 2e-6
        assert found.says == ("files", "files")
        assert (found.pooling, found.normalized) == ("mean", True)


def test_the_native_backend_is_close(path):
    with LLM(path) as llm:
        found = llm.embed(TEXTS, truncate=True).vectors.astype(np.float64)
        assert np.abs(found - VECTORS).max() < 1e-4
        one_by_one = [llm.embed(text, truncate=True).vectors[0] for text in TEXTS]
        assert np.array_equal(found.astype(np.float32), one_by_one)


def test_in_eight_bits_it_is_about_as_close_as_the_weights_allow(path):
    """Rounded weights alone take the cosine to 0.9998."""
    with LLM(path, quantize="q8_0") as llm:
        found = llm.embed(TEXTS, truncate=True).vectors.astype(np.float64)
        assert cosines(found).min() > 0.998
        assert np.median(cosines(found)) > 0.9995
