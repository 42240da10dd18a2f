"""EngineOwner: steps an engine for those that read its sequences.

Knows who may touch an engine: whoever steps it, and calls between two steps. Each reader takes the
events of its sequence itself, on its own thread, from the sequence's outbox.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar
from weakref import ref

from cutaway.engine import (
    Ended,
    Engine,
    Event,
    FinishReason,
    OutboxReader,
    Request,
    Sequence,
    Started,
)
from cutaway.errors import CutawayError

T = TypeVar("T")


class EndListener:
    """Keeps a sequence's Started and Ended events; ``take`` receives the others.

    outbox  where they are read; None where somebody else hands them to ``receive``
    """

    outbox: OutboxReader | None = None

    def __init__(self) -> None:
        self.started: Started | None = None
        self.ended: Ended | None = None

    def receive(self, event: Event) -> None:
        """Note an event."""
        if isinstance(event, Started):
            self.started = event
        elif isinstance(event, Ended):
            self.ended = event
        else:
            self.take(event)

    def has_ended(self) -> bool:
        """Receive what is new; whether the sequence has ended."""
        while self.outbox and (emission := self.outbox.take()):
            self.receive(emission.event)
        return self.ended is not None

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

    abandoned  readers that were garbage collected, whose sequences are to be aborted before the
               next step; the collector may run during a step
    """

    def __init__(self) -> None:
        self.abandoned: deque[ref[OutboxReader]] = deque()
        self._followed: dict[ref[OutboxReader], int] = {}  # sequence ids

    @property
    @abstractmethod
    def engine(self) -> Engine:
        """The loop; InputError once it is closed or has another owner."""

    @abstractmethod
    def call(self, function: Callable[[], T]) -> T:
        """Call a function between two steps; returns or raises what it does."""

    @abstractmethod
    def wait(self, ready: Callable[[], object]) -> None:
        """Wait until ``ready`` returns true; it is called on this thread, or between steps.

        Raises the error of a step that failed as a whole.
        """

    def follow(self, sequence: Sequence) -> OutboxReader:
        """Read a sequence that was just added; once the reader is dropped, it is aborted.

        To be called between steps, in the call that adds it.
        """
        reader = OutboxReader(sequence.outbox)
        # The callback is no Python code, in which an interrupt would be lost ("Exception ignored").
        # The id alone: a sequence that failed leads, by its error's traceback, back to the reader.
        self._followed[ref(reader, self.abandoned.append)] = sequence.id
        return reader

    def abort(self, sequence: Sequence) -> None:
        """End a sequence, unless it has ended."""
        if not sequence.outbox.end:
            self.call(lambda: self.engine.abort(sequence))

    @contextmanager
    def running(self, request: Request, listener: EndListener) -> Iterator[Sequence]:
        """Add a request of one sequence, for a listener; it is aborted at the end of the block."""

        def add() -> Sequence:
            [sequence] = self.engine.add(request)
            listener.outbox = self.follow(sequence)
            return sequence

        sequence = self.call(add)
        try:
            yield sequence
        finally:
            self.abort(sequence)

    def turn(self) -> None:
        """Wait for one step, whichever thread makes it."""
        before = self.engine.steps
        self.wait(lambda: self.engine.steps != before)

    def _end_abandoned(self) -> None:
        """Abort what nobody reads any more. To be called between steps."""
        while self.abandoned:
            reader = self.abandoned[0]
            sequence = self.engine.find(self._followed.get(reader, -1))
            if sequence:
                self.engine.abort(sequence)
            self._followed.pop(reader, None)
            self.abandoned.popleft()  # now, so that an exception before this loses none
