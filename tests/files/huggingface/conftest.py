"""What several tests of folders use."""

import tracemalloc
from contextlib import contextmanager
from functools import partial

import pytest


@pytest.fixture
def peak_memory():
    """A context that may take so many bytes at once."""

    @contextmanager
    def at_most(size):
        tracemalloc.start()
        try:
            yield
            assert tracemalloc.get_traced_memory()[1] < size
        finally:
            tracemalloc.stop()

    return at_most


@pytest.fixture(scope="session")
def random_model(tmp_path_factory):
    """By name of any table: a model's folder, and transformers' logits as a function of ids."""
    pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
    from support import diffusion_models, random_models

    made = {}

    def model(name):
        if name not in made:
            table = diffusion_models if name in diffusion_models.DIFFUSION else random_models
            path = tmp_path_factory.mktemp(name)
            made[name] = path, partial(table.logits, table.save(name, path))
        return made[name]

    return model
