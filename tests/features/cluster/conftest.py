"""A tiny model for as many replicas as there are, and what it writes alone."""

import asyncio

import pytest

from cutaway import AsyncLLM
from support.replicas import Models
from support.resumed import LONG, write


@pytest.fixture(scope="module")
def models(tiny_path):
    return Models(tiny_path)


@pytest.fixture(scope="module")
def expected(models):
    async def main():
        async with AsyncLLM(models.take(1)[0]) as alone:
            return await write(alone, LONG)

    return asyncio.run(main())
