"""The server that clients are tried with: a process of its own; and the model without it."""

import gc
import warnings

import pytest

from cutaway import LLM
from support.page_sections import blocks
from support.server_processes import server


@pytest.fixture(scope="session")
def url():
    """Where ``cutaway serve`` serves SmolLM2."""
    with server("smollm2") as (_, url):
        yield url


@pytest.fixture(scope="session")
def llm():
    """The same model in this process: what it writes is what every client is to get."""
    return LLM("smollm2", progress=False)


@pytest.fixture
def run_section(url):
    """Runs the Python of a section of docs/integrations.md; the names that it leaves behind."""
    known = {}

    def run(title):
        for number, block in enumerate(blocks("integrations.md", title, "python", url), 1):
            exec(compile(block, f"{title}, example {number}", "exec"), known)
        return known

    yield run
    with warnings.catch_warnings(action="ignore"):  # programs leave their connections to the end
        known.clear()
        gc.collect()
