"""A small model of several heads, which the tests of the inside look into; and servers."""

import pytest

from cutaway.cli.main import main
from fixtures.servers import *  # noqa: F403
from support.random_llama import write_tiny_llama

SHAPE = {"heads": 4, "kv_heads": 2, "head_dim": 16, "hidden": 64, "feed_forward": 96}


@pytest.fixture(scope="session")
def small_path(tmp_path_factory):
    """Its file."""
    path = tmp_path_factory.mktemp("inside") / "tiny.gguf"
    return str(write_tiny_llama(path, **SHAPE, format="Q8_0", context=256))


@pytest.fixture
def said(capsys):
    """Runs a command; what it prints."""

    def run(*arguments):
        assert main([*arguments]) == 0
        return capsys.readouterr().out

    return run
