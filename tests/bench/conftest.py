"""Makes bench/, which is no package, importable, and a model that is measured in a moment."""

import sys
from pathlib import Path

import pytest

from random_llama import write_tiny_llama

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory):
    return write_tiny_llama(tmp_path_factory.mktemp("bench") / "tiny.gguf")
