"""Models for the cache of models; the test controls their loading and unloading."""

import asyncio

from cutaway import CutawayError
from cutaway.server.model_cache import ModelCache

LIMIT = 10


class Fake:
    """A model whose loading and unloading a test controls; it asserts valid transitions."""

    def __init__(self, name, memory):
        self.name, self.memory = name, memory
        self.doing: asyncio.Future[None] | None = None
        self.there = False
        self.users = self.loads = 0
        self.gives_up = False

    @property
    def memory_in_use(self):
        return self.memory * (self.there or self.doing is not None)

    async def load(self):
        assert not self.there
        assert self.doing is None
        self.loads += 1
        await self._wait_for_stop()
        self.there = True

    async def unload(self):
        assert self.there
        assert self.doing is None
        assert self.users == 0
        await self._wait_for_stop()
        self.there = False

    def give_up(self):
        self.gives_up = True
        assert self.doing
        self.doing.set_exception(CutawayError("given up"))

    async def _wait_for_stop(self):
        self.doing = asyncio.get_running_loop().create_future()
        try:
            await self.doing
        finally:
            self.doing = None


class Clock(asyncio.SelectorEventLoop):
    """An event loop whose time only the test advances."""

    now = 0.0

    def time(self):
        return self.now


async def turns(count=10):
    for _ in range(count):
        await asyncio.sleep(0)


async def asks(slot):
    """Start a task that waits for the use of a slot."""
    task = asyncio.ensure_future(slot.use())
    await turns()
    return task


async def goes_on(slot):
    """End the slot's load or unload."""
    slot.model.doing.set_result(None)
    await turns()


async def used(slot):
    """Use a slot, and load its model if necessary."""
    task = await asks(slot)
    while slot.model.doing:
        await goes_on(slot)
    await task


def cache_of(*sizes, limit=LIMIT, **more):
    cache = ModelCache(limit, **more)
    return cache, [cache.add(Fake(str(i), size)) for i, size in enumerate(sizes)]
