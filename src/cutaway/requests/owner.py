"""EngineOwner: steps an engine and gives each reader the events of its sequence."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar
from weakref import WeakValueDictionary

from cutaway.engine import Ended, Engine, Event, FinishReason, Request, Sequence, Started
from cutaway.errors import CutawayError

T = TypeVar("T")


class EventReader(Protocol):
    """Receives the events of a sequence."""

    def receive(self, event: Event) -> None:
        """Take an event, on the thread that steps; raising CutawayError ends the sequence."""


class EndListener:
    """Keeps a sequence's Started and Ended events; ``take`` receives the others."""

    def __init__(self) -> None:
        self.started: Started | None = None
        self.ended: Ended | None = None

    def receive(self, event: Event) -> None:
        """See ``EventReader``."""
        if isinstance(event, Started):
            self.started = event
        elif isinstance(event, Ended):
            self.ended = event
        else:
            self.take(event)

    def take(self, event: Event) -> None:
        """Take an event that is neither Started nor Ended."""

    def check(self, what: str) -> None:
        """Raise what ended a prefill-only text before all ``what`` were computed."""
        assert self.ended is not None
        if self.ended.error:
            raise self.ended.error
        if self.ended.reason != FinishReason.SCORED:
            raise CutawayError(f"the model was closed before all {what} were computed")


class EngineOwner(ABC):
    """Steps an engine for the threads that read its sequences.

    abandoned  ids of sequences whose readers were garbage collected, to be aborted before the next
               step; the collector may run during a step
    """

    def __init__(self) -> None:
        self.abandoned: deque[int] = deque()
        self._readers: WeakValueDictionary[int, EventReader] = WeakValueDictionary()
        self._sequences: dict[int, Sequence] = {}

    @property
    @abstractmethod
    def engine(self) -> Engine:
        """The loop; InputError once it is closed or has another owner."""

    @abstractmethod
    def call(self, function: Callable[[], T]) -> T:
        """Call a function between two steps; returns or raises what it does."""

    @abstractmethod
    def wait(self, ready: Callable[[], object]) -> None:
        """Wait until ``ready`` returns true; it is called between steps.

        Raises the error of a step that failed as a whole.
        """

    def listen(self, sequence: Sequence, reader: EventReader) -> None:
        """Deliver this sequence's events to the reader. To be called between steps."""
        self._sequences[sequence.id] = sequence
        self._readers[sequence.id] = reader

    def abort(self, sequence_id: int) -> None:
        """End a sequence, unless it has ended."""
        if sequence_id in self._sequences:
            self.call(lambda: self._abort(sequence_id))

    @contextmanager
    def running(self, request: Request, reader: EventReader) -> Iterator[Sequence]:
        """Add a request of one sequence, for a reader; it is aborted at the end of the block."""

        def add() -> Sequence:
            [sequence] = self.engine.add(request)
            self.listen(sequence, reader)
            return sequence

        sequence = self.call(add)
        try:
            yield sequence
        finally:
            self.abort(sequence.id)

    def turn(self) -> None:
        """Wait for one step, whichever thread makes it."""
        before = self.engine.steps
        self.wait(lambda: self.engine.steps != before)

    # -- between two steps -------------------------------------------------------------------

    def _end_abandoned(self) -> None:
        while self.abandoned:
            self._abort(self.abandoned.popleft())

    def _deliver(self, events: list[Event]) -> None:
        for event in events:
            if (reader := self._readers.get(event.id)) is not None:
                try:
                    reader.receive(event)
                except CutawayError as error:  # of this sequence alone
                    self.engine.fail(self._sequences[event.id], error)
            if isinstance(event, Ended):
                self._readers.pop(event.id, None)
                self._sequences.pop(event.id, None)

    def _abort(self, sequence_id: int) -> None:
        if sequence := self._sequences.get(sequence_id):
            self.engine.abort(sequence)
