"""The servers that tests share: a tiny random model, and SmolLM2; and who asks the tiny one."""

import httpx
import pytest
from openai import OpenAI

from cutaway import LLM
from cutaway.server.http.settings import ServerSettings
from support.inside_asked import run_of
from support.messages_client import Asker
from support.responses_client import client_of
from support.served import BESIDE, ELSEWHERE, PIPED, serve


def pytest_collection_modifyitems(config, items):
    """Of what a server without weights does, the first test of each file, and the first case of
    those marked ``elsewhere``: one for each endpoint.

    ``test_all_without_weights`` has all of it done so.
    """
    second = [item for item in items if _side(item) == ELSEWHERE] if not PIPED else []
    firsts = {(item.path, _marked(item)): item for item in reversed(second)}
    left_out = {id(item) for item in second} - {id(item) for item in firsts.values()}
    config.hook.pytest_deselected(items=[item for item in items if id(item) in left_out])
    items[:] = [item for item in items if id(item) not in left_out]


def _marked(item):
    return item.originalname if item.get_closest_marker("elsewhere") else None


def _side(item):
    return item.callspec.params.get("tiny") if hasattr(item, "callspec") else None


@pytest.fixture(scope="module", params=[BESIDE, ELSEWHERE])
def tiny(tiny_path, request):
    """A server of the tiny model, which says anything; and one that has the weights elsewhere."""
    with serve(LLM(tiny_path, threads=1), piped=request.param != BESIDE) as served:
        yield served


@pytest.fixture(scope="session")
def tiny_alone(tiny_path):
    """The tiny model without a server: what the engine itself writes."""
    return LLM(tiny_path, threads=1, progress=False)


@pytest.fixture(scope="session")
def trace(tiny_path, tmp_path_factory):
    """Eight tokens of the tiny model, on record."""
    return run_of(tiny_path, tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def smollm2():
    """A server of SmolLM2."""
    with serve(LLM(), ServerSettings(names=["smollm2"])) as served:
        yield served


@pytest.fixture(scope="module")
def client(tiny):
    with httpx.Client(base_url=tiny.url, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def openai_client(tiny):
    """OpenAI's own."""
    with OpenAI(base_url=f"{tiny.url}/v1", api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def strict_client(tiny):
    """OpenAI's own, which checks the types of all that it is told."""
    with client_of(tiny) as client:
        yield client


@pytest.fixture(scope="module")
def ask(tiny):
    """What ``Asker`` does, at /v1/messages."""
    with Asker(base_url=tiny.url, timeout=60) as client:
        yield client
