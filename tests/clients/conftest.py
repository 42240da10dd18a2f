"""The server that clients are tried with."""

import pytest

from cutaway import LLM
from cutaway.server.http.settings import Settings
from support.served import serve


@pytest.fixture(scope="module")
def smollm2():
    """A server of SmolLM2."""
    with serve(LLM(), Settings(names=["smollm2"])) as served:
        yield served
