"""Stream yields one sequence's steps as they are made; LogitsReader gathers its prompt's logits."""

from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from time import perf_counter
from weakref import finalize

import numpy as np

from cutaway.compute.backends import Logits
from cutaway.compute.loading.model import LoadedModel
from cutaway.engine import Event, Pass, Scored, Step
from cutaway.engine import Sequence as EngineSequence
from cutaway.requests.completion import Completion
from cutaway.requests.generation import Generation
from cutaway.requests.owner import EndListener, EngineOwner
from cutaway.requests.prepared import Prepared


class Stream(Generation, Iterator[Step]):
    """Yields each Step of one sequence; ``completion()`` when they have ended.

    Closing it (or leaving its ``with`` block, or dropping it) early ends the sequence as
    "aborted"; ``held_text`` is the text that such an end releases. An error of this sequence
    alone, such as one in the caller's own processor, is raised to its reader.
    """

    def __init__(
        self,
        owner: EngineOwner,
        sequence: EngineSequence,
        prepared: Prepared,
        model: LoadedModel,
        asked: float,
    ) -> None:
        """To be called between steps, for a sequence that was just added."""
        super().__init__(sequence.id, prepared, model, asked)
        self.stop_asked = False
        self._owner = owner
        self._unread: deque[Step | Pass] = deque()
        owner.listen(sequence, self)
        finalize(self, owner.abandoned.append, sequence.id).atexit = False

    def receive(self, event: Event) -> None:
        """See ``EventReader``."""
        self.arrived(event, perf_counter())
        if isinstance(event, Step | Pass):
            self._unread.append(event)

    def __next__(self) -> Step:
        while isinstance(event := self._next(), Pass):
            pass
        return event

    def events(self) -> Iterator[Step | Pass]:
        """Yield each step, and each pass of a canvas, as they are made."""
        with suppress(StopIteration):
            while True:
                yield self._next()

    def _next(self) -> Step | Pass:
        if not (self._unread or self.stop_asked or self._closed):
            self._owner.wait(self._has_news)
        if not self._unread or self._closed:
            self.close()
            if self.error:
                raise self.error
            raise StopIteration
        event = self._unread.popleft()
        if isinstance(event, Step):
            self.steps.append(event)
        else:
            self.passes.append(event)
        return event

    @property
    def num_arrived(self) -> int:
        """Tokens written so far, read or not."""
        return len(self.steps) + sum(isinstance(event, Step) for event in [*self._unread])

    def _has_news(self) -> bool:
        return bool(self._unread) or self.ended is not None or self.stop_asked

    def stop(self) -> None:
        """Begin no further step; steps that were made can still be read.

        Safe in a signal handler.
        """
        self.stop_asked = True

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the sequence if it has not ended, and free its blocks."""
        if not self._closed:
            self._owner.abort(self.id)
            self.abort()

    def finish(self) -> Completion:
        """Run to the end and return the completion; raises the sequence's error."""
        for _ in self:
            pass
        return self.completion()


class LogitsReader(EndListener):
    """Gathers the logits of a scored sequence, from position ``start`` on."""

    def __init__(self, rows: int, vocab: int, start: int) -> None:
        super().__init__()
        self._start = start
        self._logits = np.empty((rows, vocab), np.float32)

    def take(self, event: Event) -> None:
        """See ``EndListener``."""
        if isinstance(event, Scored) and event.logits is not None:
            at = event.position - 1 - self._start
            self._logits[at : at + len(event.logits)] = event.logits

    def logits(self) -> Logits:
        """Float32 (rows, vocab), once it has ended; raises the sequence's error."""
        self.check("logits")
        return self._logits
