"""Models that several of these tests read: written once."""

import pytest

from support.random_llama import write_tiny_llama

WIDE = {"heads": 8, "kv_heads": 4, "head_dim": 16, "hidden": 64, "feed_forward": 96}


@pytest.fixture(scope="session")
def wide_path(tmp_path_factory):
    """In float32, with a context of 512 tokens."""
    return write_tiny_llama(tmp_path_factory.mktemp("wide") / "tiny.gguf", **WIDE, context=512)


@pytest.fixture(scope="session")
def ragged_path(tmp_path_factory):
    """Heads of 20: the values of each have lanes that nothing is stored in."""
    shape = {"heads": 6, "kv_heads": 2, "head_dim": 20, "hidden": 64, "feed_forward": 96}
    path = tmp_path_factory.mktemp("ragged") / "tiny.gguf"
    return write_tiny_llama(path, **shape, layers=3, context=256)


@pytest.fixture(scope="session")
def q8_path(tmp_path_factory):
    """In Q8_0, with a context of 256 tokens."""
    path = tmp_path_factory.mktemp("q8") / "tiny.gguf"
    return write_tiny_llama(path, **WIDE, format="Q8_0", context=256)
