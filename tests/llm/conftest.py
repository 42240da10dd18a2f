"""A tiny model, anew in each module."""

import pytest

from cutaway import LLM


@pytest.fixture(scope="module")
def tiny(tiny_path):
    with LLM(tiny_path, progress=False) as llm:
        yield llm
