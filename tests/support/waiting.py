"""Waiting that ends: in what is awaited, or in a failure."""

import asyncio
from collections.abc import Callable


async def until(is_true: Callable[[], object], seconds: float = 60) -> None:
    """Let other tasks run until something is true."""
    async with asyncio.timeout(seconds):
        while not is_true():
            await asyncio.sleep(0)
