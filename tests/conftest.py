"""What every test may use: models, coroutines as tests, and hypothesis without a clock."""

import asyncio
import gc
import os
import signal
import ssl
from collections import Counter
from collections.abc import Iterator
from functools import cache
from inspect import iscoroutinefunction, signature
from math import inf
from pathlib import Path
from zlib import crc32

import httpx
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

# A client that names no timeout waits 5 s by itself; other tests may hold a machine up for longer.
for name in ("connect", "read", "write", "pool"):
    setattr(signature(httpx.get).parameters["timeout"].default, name, 300)

# A stall is not a failure, and examples may share a function's fixtures. A test's own list would
# take the place of this one.
_UNMINDED = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
settings.register_profile("whole", deadline=None, suppress_health_check=_UNMINDED)
_EXAMPLES = 40
settings.register_profile(  # a commit that has passed passes again; slow runs draw new examples
    "usual", settings.get_profile("whole"), max_examples=_EXAMPLES, derandomize=True
)


def _is_usual(config: pytest.Config) -> bool:
    return config.option.markexpr.startswith("not slow")  # "slow or not slow" has all


def pytest_configure(config: pytest.Config) -> None:
    """Where slow tests run, hypothesis draws as many examples as it does by itself."""
    settings.load_profile("usual" if _is_usual(config) else "whole")


def pytest_itemcollected(item: pytest.Item) -> None:
    """In usual runs no test draws more examples than that, though it asks for more."""
    test = getattr(item, "obj", None)
    test = getattr(test, "__func__", test)
    asked = getattr(test, "_hypothesis_internal_use_settings", None)  # there is no public name
    if asked is not None and _is_usual(item.config) and asked.max_examples > _EXAMPLES:
        test._hypothesis_internal_use_settings = settings(asked, max_examples=_EXAMPLES)


@pytest.hookimpl(tryfirst=True)  # before slow tests are left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a test marked ``each_choice`` the other combinations are slow."""
    cases: dict[str, list[pytest.Function]] = {}
    for item in items:
        if item.get_closest_marker("each_choice") and not item.get_closest_marker("slow"):
            assert isinstance(item, pytest.Function)
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for combinations in cases.values():
        usual = _each_choice([{*map(repr, case.callspec.params.items())} for case in combinations])
        for i, case in enumerate(combinations):
            if i not in usual:
                case.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """What was imported and collected stays: it need not be looked through for garbage."""
    gc.collect()
    gc.freeze()


def _each_choice(combinations: list[set[str]]) -> set[int]:
    """Return places of a few combinations in which each value of each parameter comes once."""
    new, chosen, times = [*combinations], set[int](), Counter[str]()

    def most_new(i: int) -> tuple[int, int]:  # and of these with values that came least
        return len(new[i]), -sum(times[value] for value in combinations[i])

    while any(new):
        best = max(range(len(new)), key=most_new)
        chosen.add(best)
        times.update(combinations[best])
        new = [values - combinations[best] for values in new]
    return chosen


# A shell starts what it puts into the background with Ctrl-C ignored, and children inherit that;
# the tests that interrupt one would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)

# So it is with nohup and SIGHUP. A function is no part of what children inherit, and this process
# still goes on.
if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)


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


@pytest.fixture(scope="session", autouse=True)
def unmeasured_drafts() -> Iterator[float]:
    """Let draft tokens cost what they are guessed to, so that no test's drafts depend on its time.

    Yields the seconds from which steps are measured elsewhere.
    """
    from cutaway.engine.speculation import length

    with pytest.MonkeyPatch.context() as patch:
        usual = length.MEASURABLE_S
        patch.setattr(length, "MEASURABLE_S", inf)
        yield usual


@pytest.fixture(scope="module")
def measured_drafts(unmeasured_drafts: float) -> Iterator[None]:
    """Measure what draft tokens cost, as elsewhere."""
    from cutaway.engine.speculation import length

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(length, "MEASURABLE_S", unmeasured_drafts)
        yield


@pytest.fixture(scope="module")
def free_drafts() -> Iterator[None]:
    """Let draft tokens cost nothing, so that they come even where they would not pay."""
    from cutaway.engine.speculation.length import MAX_DRAFT, StepCosts

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StepCosts, "draft_costs", lambda *_: (0.0,) * (MAX_DRAFT + 1))
        patch.setattr(StepCosts, "reading_cost", lambda *_: 0.0)
        yield


@pytest.fixture
def failing_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let jobs fail after one step, however many steps have come by then."""
    from cutaway.errors import CutawayError
    from cutaway.server.job import TextJob

    arrivals, read = [], TextJob.read

    async def fail(job):
        if arrivals:
            raise CutawayError("the text has failed")
        arrivals.extend(await read(job))
        return arrivals[:1]

    monkeypatch.setattr(TextJob, "read", fail)


@pytest.fixture
def each_tier(request, monkeypatch) -> Iterator[str]:
    """Yield instruction sets, each while models are loaded for it.

    Usual runs deal one of them to each test, beside the best, which is there by itself: two take
    ten times as long as any other, and families are many. Slow runs have all.
    """
    from cutaway.compute.backends.cpu import tiers

    here = tiers()
    if _is_usual(request.config):
        others = here[1:] or here
        here = (others[crc32(request.node.name.encode()) % len(others)],)

    def load_for_each() -> Iterator[str]:
        for tier in here:
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
