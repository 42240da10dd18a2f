"""An AsyncLLM that must be empty at the end."""

import gc
from contextlib import asynccontextmanager

from cutaway import LLM, AsyncLLM

LONG = {"max_tokens": 100, "temperature": 0, "ignore_eos": True}


@asynccontextmanager
async def open_llm(path, more=None, **options):
    """Yield an AsyncLLM of its own; at the end its engine must be empty."""
    llm = AsyncLLM(LLM(path, threads=1, progress=False, **(more or {})), **options)
    async with llm:
        yield llm
        gc.collect()
        if llm.engine.alive:
            await llm.engine.call(int)
    engine = llm.engine.engine
    assert not (engine.running or engine.waiting)
    assert engine.blocks.free == engine.blocks.count
