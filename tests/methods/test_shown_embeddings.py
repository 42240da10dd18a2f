"""Embeddings in a notebook: how they were made, and the cosines of the first texts."""

import re

import numpy as np

from cutaway.methods.embedding import Embeddings


def embeddings(count):
    vectors = np.random.default_rng(1).normal(size=(count, 4)).astype(np.float32)
    return Embeddings(vectors, (3,) * count, "mean", True, ("files", "files"))


def test_its_repr_has_no_numbers_of_the_vectors():
    expected = "Embeddings(3 texts, 4 dimensions, mean, normalized)"
    assert repr(embeddings(3)) == expected


def test_a_notebook_shows_the_cosines_of_the_first_twelve():
    shown = embeddings(20)._repr_html_()
    cells = [float(cell) for cell in re.findall(r"<td[^>]*>([-\d.]+)</td>", shown)]
    expected = embeddings(20).similarities()[:12, :12]
    assert np.allclose(np.reshape(cells, (12, 12)), expected, atol=0.0051)
    assert "20 texts" in shown
