"""The texts of one request, for one reader in an event loop."""

from typing import Self

from cutaway.engine import Arrival, ArrivalReader, Event, Pass, Route, Step
from cutaway.requests.completion import Completion
from cutaway.requests.generation import Generation


class NoReader:
    """The ``ArrivalReader`` of texts that have ended."""

    route, load_s = None, 0.0

    async def read(self) -> list[Arrival]:
        """Nothing is new."""
        return []

    def close(self) -> None:
        """Nothing runs."""


class Generations:
    """The samples of one or several prompts while they are written, for one reader.

    Leaving its ``with`` block, or closing it, ends those that have not ended as "aborted".
    each  the n samples of the first prompt, then those of the second, …
    """

    def __init__(self, reader: ArrivalReader, each: list[Generation]) -> None:
        self._reader, self.each = reader, each

    @property
    def route(self) -> Route | None:
        """Where they are written; None where that is in this process."""
        return self._reader.route

    @property
    def load_s(self) -> float:
        """Seconds for which they waited until their model was there."""
        return self._reader.load_s

    async def read(self) -> list[tuple[int, Event]]:
        """(which of ``each``, its event) of all that is new, once there is any; [] at the end.

        Raises what one of them failed with. May be cancelled, and called again.
        """
        news = await self._reader.read()
        for which, event, made, speculation in news:
            generation = self.each[which]
            generation.speculation = speculation
            if isinstance(event, Step):
                generation.steps.append(event)
            elif isinstance(event, Pass):
                generation.passes.append(event)
            generation.arrived(event, made)
        return [(one.which, one.event) for one in news]

    def close(self) -> None:
        """End what has not ended; nothing more is read."""
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
