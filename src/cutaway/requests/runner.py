"""One engine for any number of threads: whoever waits for its sequences steps it for all.

Knows threads, and which sequence's events go to whom. Refuses to know models, and prompts as text.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition, Lock, get_ident
from typing import Protocol, TypeVar
from weakref import WeakValueDictionary

from cutaway.engine import Ended, Engine, Event, Request, Sequence
from cutaway.errors import CutawayError, InputError

T = TypeVar("T")


class Reader(Protocol):
    """Whoever hears of a sequence."""

    def receive(self, event: Event) -> None:
        """An event of it, on the thread that steps; raises CutawayError where it cannot go on."""


class EndListener:
    """Hears when a sequence ends, and of nothing else."""

    ended: Ended | None = None

    def receive(self, event: Event) -> None:
        """See ``Reader``."""
        if isinstance(event, Ended):
            self.ended = event


class Runner:
    """The synchronous owner of an engine.

    One thread steps at a time, and what the others ask is done between two steps, so nothing in
    the engine needs a lock of its own.

    steps      so many were made
    draft      the name of the draft model that was loaded for the engine; "": none
    abandoned  ids of sequences whose readers were dropped, to be ended before the next step; a
               reader may be collected in the midst of one
    """

    def __init__(self, engine: Engine) -> None:
        self._engine: Engine | None = engine
        self._lock = Lock()  # guards the next three
        self._stepping: int | None = None  # the thread that does
        self._waiting = 0  # threads that wait for it to become None
        self._free = Condition(self._lock)
        self._steps, self.draft = 0, ""
        self.abandoned: deque[int] = deque()
        self._readers: WeakValueDictionary[int, Reader] = WeakValueDictionary()
        self._sequences: dict[int, Sequence] = {}
        self._closed = ""
        self._pid = os.getpid()

    @property
    def engine(self) -> Engine:
        """The loop; InputError once it is closed or has another owner."""
        if self._engine is None:
            raise InputError(self._closed)
        return self._engine

    @property
    def steps(self) -> int:
        """See the class."""
        return self._steps

    # -- what threads ask --------------------------------------------------------------------

    def call(self, function: Callable[[], T]) -> T:
        """What a function returns or raises that is called between two steps."""
        self._check()
        try:
            self._take()
            engine = self.engine
            self._end_abandoned()
            result = function()
            self._deliver(engine.take_events())
            return result
        finally:
            self._leave()

    def listen(self, sequence: Sequence, reader: Reader) -> None:
        """The reader hears of this sequence; for a function that is called between two steps."""
        self._sequences[sequence.id] = sequence
        self._readers[sequence.id] = reader

    @contextmanager
    def running(self, request: Request, reader: Reader) -> Iterator[Sequence]:
        """The one sequence of a request, which the reader hears of; ended behind the block."""

        def add() -> Sequence:
            [sequence] = self.engine.add(request)
            self.listen(sequence, reader)
            return sequence

        sequence = self.call(add)
        try:
            yield sequence
        finally:
            self.abort(sequence.id)

    def wait(self, ready: Callable[[], object]) -> None:
        """Step, or let another thread step, until something is there.

        Raises what the step of the whole engine failed with.
        """
        while not ready():
            self._check()
            try:
                if self._take(unless=ready):
                    self._step()
            finally:
                self._leave()

    def turn(self) -> None:
        """One step, by this thread or another."""
        before = self.steps
        self.wait(lambda: self.steps != before)

    def abort(self, sequence_id: int) -> None:
        """End a sequence, unless it has ended, and let go of it."""
        if sequence_id in self._sequences:
            self.call(lambda: self._abort(sequence_id))

    def hand_over(self, why: str) -> Engine:
        """Give the engine to another owner; ``why`` is the error of calls from now on."""

        def leave() -> Engine:
            engine = self.engine
            if not engine.is_idle:
                raise InputError("texts are still being written: close their streams first")
            self._engine, self._closed = None, why
            return engine

        return self.call(leave)

    def take_back(self, engine: Engine) -> None:
        """Be its owner again."""
        self._engine = engine

    def close(self, why: str) -> None:
        """End everything; ``why`` is the error of calls from now on."""
        if self._engine is None:
            return
        self.call(self._engine.abort_all)
        self._engine, self._closed = None, why

    # -- between two steps -------------------------------------------------------------------

    def _step(self) -> None:
        self._end_abandoned()
        try:
            self._deliver(self.engine.step())
        finally:
            self._steps += 1

    def _end_abandoned(self) -> None:
        while self.abandoned:
            self._abort(self.abandoned.popleft())

    def _deliver(self, events: list[Event]) -> None:
        for event in events:
            if (reader := self._readers.get(event.id)) is not None:
                try:
                    reader.receive(event)
                except CutawayError as error:  # of this sequence alone: the others go on
                    self.engine.fail(self._sequences[event.id], error)
            if isinstance(event, Ended):
                self._readers.pop(event.id, None)
                self._sequences.pop(event.id, None)

    def _abort(self, sequence_id: int) -> None:
        if sequence := self._sequences.get(sequence_id):
            self.engine.abort(sequence)

    def _check(self) -> None:
        if self._engine is None:
            raise InputError(self._closed)
        if self._pid != os.getpid():
            if self._stepping is not None:
                raise CutawayError(
                    "this process was forked while another thread was writing: load the model "
                    "after the fork"
                )
            self._pid, self._waiting, self._lock = os.getpid(), 0, Lock()
            self._free = Condition(self._lock)
        if self._stepping == get_ident():
            raise InputError(
                "this model is stepping: a processor, or what a step calls, cannot use it"
            )

    # -- the right to step, which one thread has at a time -----------------------------------

    def _take(self, unless: Callable[[], object] = bool) -> bool:
        """Have it; or False, where ``unless`` came true while another thread stepped."""
        with self._lock:
            while self._stepping is not None:
                self._waiting += 1
                try:
                    self._free.wait()
                finally:
                    self._waiting -= 1
                if unless():
                    return False
            self._stepping = get_ident()
            return True

    def _leave(self) -> None:
        """Give it up, if this thread has it."""
        with self._lock:
            if self._stepping == get_ident():
                self._stepping = None
                if self._waiting:
                    self._free.notify_all()
