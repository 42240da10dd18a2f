"""A run on record."""

import pytest

from support.inside_asked import run_of


@pytest.fixture(scope="session")
def trace(tiny_path, tmp_path_factory):
    """Eight tokens of the tiny model, on record."""
    return run_of(tiny_path, tmp_path_factory.mktemp("runs"))
