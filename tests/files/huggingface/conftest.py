"""What several tests of folders use."""

import tracemalloc
from contextlib import contextmanager

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
