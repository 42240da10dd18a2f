"""A model that is measured in a moment."""

import pytest

from support.random_llama import write_tiny_llama


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory):
    return write_tiny_llama(tmp_path_factory.mktemp("bench") / "tiny.gguf")
