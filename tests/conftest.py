"""What every test may use: models, coroutines as tests, and hypothesis without a clock."""

import asyncio
import os
import signal
import ssl
from collections.abc import Iterator
from functools import cache
from inspect import iscoroutinefunction
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings

# Read when NumPy and torch are imported: by nothing above. Matrices of tiny models are multiplied
# sooner than threads meet, and beside other tests threads that wait for each other take most of the
# time.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# Every client reads the certificates of all authorities, which takes longer than most of what tests
# ask for: 40 ms, and for each proxy again. Here all clients share what the first has read.
ssl.create_default_context = cache(ssl.create_default_context)

settings.register_profile(  # a stall is not a failure
    "whole", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("usual", settings.get_profile("whole"), max_examples=40)


def _is_usual(config: pytest.Config) -> bool:
    return "not slow" in config.option.markexpr


def pytest_configure(config: pytest.Config) -> None:
    """Where slow tests run, hypothesis draws as many examples as it does by itself."""
    settings.load_profile("usual" if _is_usual(config) else "whole")


# A shell starts what it puts into the background with Ctrl-C ignored, and children inherit that;
# the tests that interrupt one would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)


_MOST_S = 900  # of one test, on a machine that does much else


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """What would hang fails."""
    if not hasattr(signal, "SIGALRM"):  # Windows
        return (yield)

    def late(*_: object) -> None:
        raise TimeoutError(f"{item.nodeid} takes more than {_MOST_S} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(_MOST_S)
    try:
        return (yield)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine runs in an event loop of its own."""
    test, names = pyfuncitem.obj, pyfuncitem._fixtureinfo.argnames
    if iscoroutinefunction(test):
        asyncio.run(test(**{name: pyfuncitem.funcargs[name] for name in names}))
        return True
    return None


@pytest.fixture
def each_tier(request, monkeypatch) -> Iterator[str]:
    """Yield instruction sets, each while models are loaded for it.

    The two without instructions of their own take ten times as long as any other. Usual runs deal
    one of them to each test; slow runs have both.
    """
    from cutaway.compute.backends.cpu import tiers

    left_out = ("generic", "amx-plain")[crc32(request.node.name.encode()) % 2]

    def load_for_each() -> Iterator[str]:
        for tier in tiers():
            if tier != left_out or not _is_usual(request.config):
                monkeypatch.setenv("CUTAWAY_ISA", tier)
                yield tier

    return load_for_each()


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The default model's file: fetched once into the user's own cache, then found there."""
    from cutaway.files import hub

    return hub.resolve("smollm2", progress=False)


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory) -> Path:
    """A tiny random model that converses."""
    from support.random_llama import write_tiny_llama
    from support.served import TEMPLATE

    metadata = {"tokenizer.chat_template": TEMPLATE}
    folder = tmp_path_factory.mktemp("served")
    return write_tiny_llama(folder / "tiny.gguf", context=512, metadata=metadata)


@pytest.fixture(scope="session")
def tiny_diffusion_path(tmp_path_factory) -> Path:
    """A tiny random model that reveals canvases, and converses."""
    from support.random_llama import write_tiny_llama
    from support.served import TEMPLATE

    metadata = {
        "tokenizer.chat_template": TEMPLATE, "tokenizer.ggml.mask_token_id": 0,
        "llada.attention.causal": False,
    }  # fmt: skip
    folder = tmp_path_factory.mktemp("diffusion")
    return write_tiny_llama(
        folder / "diffusion.gguf", architecture="llada", context=512, metadata=metadata
    )


@pytest.fixture(scope="session")
def tiny_encoder(tmp_path_factory) -> Path:
    """A tiny random BERT, whose vectors are means."""
    pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
    from support.random_models import save
    from support.tiny_tokenizers import wordpiece

    path = tmp_path_factory.mktemp("encoder")
    save("bert", path, tokenizer=wordpiece).base_model.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def tiny(tiny_path):
    """The tiny random model, opened anew in each module."""
    from cutaway import LLM

    with LLM(tiny_path, progress=False) as llm:
        yield llm
