"""A tiny model, and a trace of a text that it wrote."""

import pytest

from cutaway import LLM
from cutaway.trace import Trace
from support.random_llama import write_tiny_llama

SETTINGS = {"max_tokens": 24, "seed": 3, "temperature": 0.9, "top_k": 40, "ignore_eos": True}


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("rerun")


@pytest.fixture(scope="session")
def tiny(folder):
    return LLM(write_tiny_llama(folder / "tiny.gguf"))


@pytest.fixture(scope="session")
def other(folder):
    """The same tokens, other weights."""
    return LLM(write_tiny_llama(folder / "other.gguf", seed=1))


@pytest.fixture(scope="session")
def trace(tiny, folder):
    """Logit bias, penalty and a given beginning, so that all of it must come back from JSON."""
    path = folder / "run.jsonl"
    more = {"logit_bias": {260: 2.0}, "repetition_penalty": 1.2, "forced": (259, 260)}
    tiny.generate("ab", **SETTINGS, **more, trace=path, candidates=3)
    return Trace.read(path)
