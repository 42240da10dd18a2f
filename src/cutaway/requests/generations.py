"""The texts of one request, for one reader in an event loop."""

from typing import Self

from cutaway.engine import Arrival, ArrivalReader, Pass, Route, Step
from cutaway.requests.completion import Completion
from cutaway.requests.generation import Generation


class NoReader:
    """An ``ArrivalReader`` of texts that have all ended."""

    route, load_s = None, 0.0

    async def read(self) -> list[Arrival]:
        """Nothing is new."""
        return []

    def close(self) -> None:
        """Nothing runs."""


class Generations:
    """The samples of one or several prompts while they are written, for one reader.

    Leaving its ``with`` block, or closing it, aborts the texts that have not ended.
    each  the n samples of the first prompt, then those of the second, …
    """

    def __init__(self, reader: ArrivalReader, each: list[Generation]) -> None:
        self._reader, self.each = reader, each

    @property
    def route(self) -> Route | None:
        """Which replicas write them; None where this process does."""
        return self._reader.route

    @property
    def load_s(self) -> float:
        """Seconds that they waited for their model to be loaded."""
        return self._reader.load_s

    async def read(self) -> list[Arrival]:
        """Wait for new events of texts, by their index in ``each``; [] once all have ended.

        Raises the error of a text that failed. May be cancelled and called again.
        """
        news = await self._reader.read()
        for which, (event, made, speculation) in news:
            generation = self.each[which]
            generation.speculation = speculation
            if isinstance(event, Step):
                generation.steps.append(event)
            elif isinstance(event, Pass):
                generation.passes.append(event)
            generation.arrived(event, made)
        return news

    def close(self) -> None:
        """Abort the texts that have not ended; no more events are read."""
        self._reader.close()
        for generation in self.each:
            generation.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def finish(self) -> list[Completion]:
        """Read to the end."""
        with self:
            while await self.read():
                pass
        return [generation.completion() for generation in self.each]
