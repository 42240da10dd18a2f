"""An AsyncLLM of which nothing may be left."""

import gc
from contextlib import asynccontextmanager

from cutaway import LLM, AsyncLLM

LONG = {"max_tokens": 100, "temperature": 0, "ignore_eos": True}


@asynccontextmanager
async def opened(path, more=None, **options):
    """A model of its own; nothing may be left in it."""
    llm = AsyncLLM(LLM(path, threads=1, progress=False, **(more or {})), **options)
    async with llm:
        yield llm
        gc.collect()
        if llm.engine.alive:
            await llm.engine.call(int)
    engine = llm.engine.engine
    assert not (engine.running or engine.waiting)
    assert engine.blocks.free == engine.blocks.count
