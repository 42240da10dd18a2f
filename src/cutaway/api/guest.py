"""A model that an event loop serves, for one thread beside it: all that an ``LLM`` can do.

Knows that what it asks is done on the engine's thread, between two steps of all others, and that it
may be unwanted before it is done. Refuses to know event loops, and whose thread it is.
"""

from collections.abc import Callable
from threading import Event as Flag
from typing import TypeVar

from cutaway.api.llm import LLM
from cutaway.api.runner import Reader, Runner
from cutaway.engine import AsyncEngine, Event, Sequence
from cutaway.errors import CutawayError
from cutaway.loading.model import LoadedModel

T = TypeVar("T")


class GuestRunner(Runner):
    """Asks the thread that owns the engine, and steps nothing itself."""

    def __init__(self, engine: AsyncEngine, unwanted: Flag) -> None:
        super().__init__(engine.engine)
        self._host, self._unwanted = engine, unwanted

    def call(self, function: Callable[[], T]) -> T:
        """What a function returns or raises that is called between two steps."""
        if self._unwanted.is_set():
            raise CutawayError("nobody waits for this any more")
        return self._asked(function)

    def listen(self, sequence: Sequence, reader: Reader) -> None:
        """The reader hears of this sequence; for a function that is called between two steps."""
        super().listen(sequence, reader)
        self._host.listen(sequence, self._hear)

    def wait(self, ready: Callable[[], object]) -> None:
        """Until something is there, which is looked for between any two steps."""
        while not self.call(ready):
            pass

    def turn(self) -> None:
        """One step."""
        self.call(bool)

    def abort(self, sequence_id: int) -> None:
        """End a sequence, unless it has ended; also where nobody waits any more."""
        if sequence_id in self._sequences:
            self._asked(lambda: self._abort(sequence_id))

    def _asked(self, function: Callable[[], T]) -> T:
        def between() -> T:
            self._end_abandoned()
            return function()

        return self._host.ask(between).result()

    def _hear(self, event: Event) -> None:
        self._deliver([event])


class Guest(LLM):
    """Made by ``AsyncLLM.guest``. Closing it closes nothing."""

    def __init__(self, model: LoadedModel, engine: AsyncEngine, unwanted: Flag) -> None:
        super(LLM, self).__init__(model, progress=False)
        self._runner: Runner = GuestRunner(engine, unwanted)

    def load_draft(self, name: str) -> None:
        """The one that there is was loaded by whom the model belongs to."""

    def close(self) -> None:
        """The model is another's."""
