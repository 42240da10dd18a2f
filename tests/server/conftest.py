"""The servers that tests share: a tiny random model, and SmolLM2."""

import pytest

from cutaway import LLM
from cutaway.server.http.settings import Settings
from support.served import BESIDE, serve


@pytest.fixture(scope="module", params=[BESIDE, "without weights"])
def tiny(tiny_path, request):
    """A server of the tiny model, which says anything; and one that has the weights elsewhere."""
    with serve(LLM(tiny_path, threads=1), piped=request.param != BESIDE) as served:
        yield served


@pytest.fixture(scope="session")
def tiny_alone(tiny_path):
    """The tiny model without a server: what the engine itself writes."""
    return LLM(tiny_path, threads=1, progress=False)


@pytest.fixture(scope="module")
def smollm2():
    """A server of SmolLM2."""
    with serve(LLM(), Settings(names=["smollm2"])) as served:
        yield served
