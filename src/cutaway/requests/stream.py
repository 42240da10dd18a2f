"""Stream yields one sequence's steps as they are made; LogitsReader gathers its prompt's logits."""

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from threading import Lock

import numpy as np

from cutaway.compute.backends import Logits
from cutaway.compute.loading.model import LoadedModel
from cutaway.engine import Ended, Event, Pass, Scored, Step
from cutaway.engine import Sequence as EngineSequence
from cutaway.errors import CutawayError
from cutaway.requests.completion import Completion
from cutaway.requests.generation import Generation
from cutaway.requests.owner import EndListener, EngineOwner
from cutaway.requests.prepared import Prepared


class Stream(Generation, Iterator[Step]):
    """Yields each Step of one sequence; ``completion()`` when they have ended.

    Closing it (or leaving its ``with`` block, or dropping it) early ends the sequence as
    "aborted", as does an interrupt (KeyboardInterrupt) of who waits for a step; ``held_text`` is
    the text that such an end releases. An error of this sequence alone, such as one in the caller's
    own processor, is raised to its reader.
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
        self._owner, self._sequence = owner, sequence
        self._outbox = owner.follow(sequence)
        self._reading = Lock()  # one stream may be read by several threads

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
        try:
            return self._wait_for_next()
        except Exception:
            raise
        except BaseException:  # an interrupt ends the text: a notebook keeps the traceback, and us
            self.close()
            raise

    def _wait_for_next(self) -> Step | Pass:
        while not self._closed:
            if self._outbox.has_news:
                if (event := self._read()) is not None:
                    return event
            elif self.stop_asked or self._ended:
                break
            else:
                self._owner.wait(self._has_news)
        self.close()
        if self.error:
            raise self.error
        raise StopIteration

    # fmt: off
    def _read(self) -> Step | Pass | None:  # on one line each: see turns.py
        with self._reading: return self._take()  # noqa: E701

    def _read_unseen(self) -> None:
        with self._reading: self._note_all()  # noqa: E701
    # fmt: on

    def _note_all(self) -> None:
        """Note the events that nobody read."""
        while self._noted() is not None:
            pass

    def _take(self) -> Step | Pass | None:
        """Take events up to the next step or pass; None where it has not come."""
        while (event := self._noted()) is not None:
            if isinstance(event, Step):
                self.steps.append(event)
                return event
            if isinstance(event, Pass):
                self.passes.append(event)
                return event
        return None

    def _noted(self) -> Event | None:
        """Take the next event and note it; None where it has not come."""
        if (emission := self._outbox.take()) is None:
            return None
        self.speculation = emission.speculation
        try:
            self.arrived(emission.event, emission.made)
        except CutawayError as error:  # of this sequence alone: its trace cannot be written
            self._owner.call(partial(self._owner.engine.fail, self._sequence, error))
        return emission.event

    @property
    def ended(self) -> Ended | None:
        """The last event, as soon as it is there: also where steps before it are not read."""
        return self._ended or self._outbox.end

    @ended.setter
    def ended(self, ended: Ended | None) -> None:
        self._ended = ended

    @property
    def num_arrived(self) -> int:
        """Tokens written so far, read or not."""
        return len(self.steps) + sum(isinstance(event, Step) for event in self._outbox.news)

    def _has_news(self) -> bool:
        return self._outbox.has_news or self._closed or self.stop_asked

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
            self._owner.abort(self._sequence)
            self._read_unseen()  # a trace has them
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
