"""A model without weights before one that has them, in one process: all that passes is pickled."""

import pickle
from typing import Any

from cutaway import AsyncLLM
from cutaway.api.async_model import AsyncModel
from cutaway.loading.model import LoadedModel


def sent(thing: Any) -> Any:
    """As it arrives in another process."""
    return pickle.loads(pickle.dumps(thing))


class Piped(AsyncModel):
    """What ``behind`` does, asked as from another process."""

    def __init__(self, behind: AsyncLLM) -> None:
        own = behind.model
        model = LoadedModel(own._path, own._setup, weights=False)
        super().__init__(model, sent(behind.options), progress=False)
        model.elsewhere = sent(own.computer)
        self.behind = behind

    @property
    def engine(self):
        return self.behind.engine

    async def queue(self, asked):
        try:
            return PipedReader(await self.behind.queue(sent(asked)))
        except Exception as error:
            raise sent(error) from None

    async def aside(self, function, *args, **kwargs):
        function, args, kwargs = sent((function, args, kwargs))
        try:
            return sent(await self.behind.aside(function, *args, **kwargs))
        except Exception as error:
            raise sent(error) from None

    def state(self):
        return sent(self.behind.state())

    @property
    def alive(self):
        return self.behind.alive

    def close(self):
        self.behind.close()

    async def aclose(self):
        await self.behind.aclose()
        self.end_compiling()

    async def drain(self, timeout=None):
        ended = await self.behind.drain(timeout)
        self.end_compiling()
        return ended


class PipedReader:
    """What arrives of a reader elsewhere."""

    route = None

    def __init__(self, reader) -> None:
        self._reader, self.close = reader, reader.close

    async def read(self):
        try:
            return sent(await self._reader.read())
        except Exception as error:
            raise sent(error) from None
