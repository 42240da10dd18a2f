"""Waits that end, by their condition or by a failure."""

import asyncio
import time
from collections.abc import Callable


async def poll_until(is_true: Callable[[], object], seconds: float = 300) -> None:
    """Let other tasks run until something is true."""
    async with asyncio.timeout(seconds):
        while not is_true():
            await asyncio.sleep(0)


def wait_until(is_true: Callable[[], object], seconds: float = 300) -> None:
    """Let other threads run until something is true."""
    latest = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < latest, "it did not come true in time"
        time.sleep(0.001)
