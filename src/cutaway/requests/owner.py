"""EngineOwner steps an engine for the readers of its sequences; nothing else may touch it.

Other calls to the engine run between two steps. Each reader takes the events of its sequence
itself, on its own thread, from the sequence's outbox. ``Runner`` is the owner for threads; the
owner for event loops is in ``api/async_llm.py``.
"""

import atexit
import os
from _thread import RLock
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from threading import Lock
from typing import TypeVar
from weakref import WeakSet, ref

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
from cutaway.errors import CutawayError, InputError

T = TypeVar("T")


class EndListener:
    """Keeps a sequence's Started and Ended events; ``take`` receives the other events.

    outbox  the events to read; None if another object passes them to ``receive``
    """

    outbox: OutboxReader | None = None

    def __init__(self) -> None:
        self.started: Started | None = None
        self.end: Ended | None = None

    def receive(self, event: Event) -> None:
        """Note an event."""
        if isinstance(event, Started):
            self.started = event
        elif isinstance(event, Ended):
            self.end = event
        else:
            self.take(event)

    def has_ended(self) -> bool:
        """Receive new events; return whether the sequence has ended."""
        while self.outbox and (emission := self.outbox.take()):
            self.receive(emission.event)
        return self.end is not None

    def take(self, event: Event) -> None:
        """Take an event that is neither Started nor Ended."""

    def check(self, results: str) -> None:
        """Raise the error of a prefill-only text that ended without all its results.

        results: the name of the results in the error
        """
        assert self.end is not None
        if self.end.error:
            raise self.end.error
        if self.end.reason != FinishReason.SCORED:
            raise CutawayError(f"the model was closed before all {results} were computed")


class EngineOwner(ABC):
    """Steps an engine for the threads that read its sequences.

    abandoned  readers that the garbage collector found; their sequences are aborted before the
               next step, since the collector may run during a step
    """

    def __init__(self) -> None:
        self.abandoned: deque[ref[OutboxReader]] = deque()
        self._sequence_ids: dict[ref[OutboxReader], int] = {}  # of the readers' sequences

    @property
    @abstractmethod
    def engine(self) -> Engine:
        """The engine; InputError once it is closed or has another owner."""

    @abstractmethod
    def call(self, function: Callable[[], T]) -> T:
        """Call a function between two steps; return or raise as it does."""

    @abstractmethod
    def wait(self, ready: Callable[[], object]) -> None:
        """Wait until ``ready`` returns true; it is called on this thread, or between steps.

        Raises the error of a step that failed as a whole.
        """

    def follow(self, sequence: Sequence) -> OutboxReader:
        """Make a reader of a sequence that was just added; dropping the reader aborts the sequence.

        Call this between steps, in the call that adds the sequence.
        """
        reader = OutboxReader(sequence.outbox)
        # The callback is no Python code, in which an interrupt would be lost ("Exception ignored").
        # It has the id alone: a failed sequence's error leads, by its traceback, to the reader.
        self._sequence_ids[ref(reader, self.abandoned.append)] = sequence.id
        return reader

    def abort(self, sequence: Sequence) -> None:
        """End a sequence, unless it has ended."""
        if not sequence.outbox.end:
            self.call(lambda: self.engine.abort(sequence))

    @contextmanager
    def running(self, request: Request, listener: EndListener) -> Iterator[Sequence]:
        """Add a request of one sequence for a listener; abort it at the end of the block."""

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
        """Wait for one step, made by any thread."""
        before = self.engine.steps
        self.wait(lambda: self.engine.steps != before)

    def _end_abandoned(self) -> None:
        """Abort sequences without a reader. Call this between steps."""
        while self.abandoned:
            reader = self.abandoned[0]
            sequence = self.engine.find(self._sequence_ids.get(reader, -1))
            if sequence:
                self.engine.abort(sequence)
            self._sequence_ids.pop(reader, None)
            self.abandoned.popleft()  # only now: an exception before this loses no reader


# -- turns: threads have them one at a time, in the order in which they came -------------------
# Turns knows only tickets. A ticket is a lock that its thread holds from before it joins the line
# until it has left, so what frees the next thread is that lock's release, which no exception can
# skip:
#
#     take a ticket ─► join the line ─► wait for those ahead ─► have the turn ─► leave
#           │                │                  │                     │            │
#           └────────────────┴─── an exception, at any of these ──────┴────────────┘
#                                      releases the ticket
#
# A thread that an exception threw out while it waited leaves its ticket in the line, released; the
# next thread passes it and drops it.


class Turns:
    """A line of threads, which have their turns one after the other."""

    def __init__(self) -> None:
        self._line: deque[RLock] = deque()
        self._holder: RLock | None = None  # of the last turn, which may be over

    def take(self, function: Callable[[], T], ticket: RLock) -> T:
        """Call a function once all threads that came before have left the line.

        ticket: a new lock, which this thread holds until the call is over
        """
        self._line.append(ticket)
        if self._line[0] is not ticket:
            self._wait_for_turn(ticket)
        self._holder = ticket
        try:
            return function()
        finally:
            self._holder = None
            self._line.remove(ticket)

    def _wait_for_turn(self, ticket: RLock) -> None:
        for ahead in reversed(self._ahead(ticket)):
            pass_through(ahead)
            with suppress(ValueError):  # it left the line itself, or another thread dropped it
                self._line.remove(ahead)

    @property
    def is_mine(self) -> bool:
        """Whether this thread has its turn now."""
        holder = self._holder
        return holder is not None and holder._is_owned()  # type: ignore[attr-defined]

    def belong_to_another(self) -> bool:
        """Whether it is another thread's turn.

        Ask this only once, and only while no other thread runs.
        """
        holder = self._holder
        return holder is not None and not holder.acquire(blocking=False)

    def _ahead(self, ticket: RLock) -> list[RLock]:
        line = list(self._line)
        return line[: line.index(ticket)]


# Each "with" below that holds a ticket is on one line with its body: between the body's last
# bytecode and the lock's release, no line begins on which an exception could come.
# fmt: off
def pass_through(ticket: RLock) -> None:
    """Wait until the thread that holds the ticket has left."""
    with ticket: pass  # noqa: E701
# fmt: on


# -- one engine for any number of threads: one of those that wait steps it ---------------------
# Runner sets the order: calls have their turns in the order in which they came, and a step is a
# turn like any other, so every call is served before the next step. Of the threads that wait for
# events, one holds the stepper's ticket; the others wait until it has left, and look again:
#
#     wait ─► is it ready? ──yes──► go on
#                 │ no
#                 ├─ nobody steps: take the stepper's ticket ─► join the line ─► step ─► leave ─┐
#                 └─ somebody does: wait until that thread has left ───────────────────────────┤
#                 ▲                                                                            │
#                 └────────────────────────────────────────────────────────────────────────────┘
#
# An exception, such as a KeyboardInterrupt, may come at any bytecode. The turn is then over, since
# a ticket is released by the interpreter, and the next turn finds a change that was begun and not
# ended, which the engine undoes first (``Engine.begin_change``).


class Runner(EngineOwner):
    """The synchronous owner of an engine.

    One thread steps at a time, and the other threads' calls run between steps, so the engine
    needs no locks.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self._engine: Engine | None = engine
        self._closed = ""
        self._turns = Turns()
        self._stepper: RLock | None = None  # the ticket of the thread that steps next, or did last
        self._choosing = Lock()  # guards the ticket, for a line
        _RUNNERS.add(self)
        if engine.store:
            engine.store.serve(self.call)
            _register_flush()

    @property
    def engine(self) -> Engine:
        """See ``EngineOwner``."""
        if self._engine is None:
            raise InputError(self._closed)
        return self._engine

    # -- calls from threads ------------------------------------------------------------------

    # fmt: off
    def call(self, function: Callable[[], T]) -> T:
        """See ``EngineOwner``."""
        self._check()
        ticket = RLock()
        with ticket: return self._turns.take(partial(self._call_between_steps, function), ticket)  # noqa: E701

    def wait(self, ready: Callable[[], object]) -> None:
        """See ``EngineOwner``. This thread steps, or lets another thread step."""
        left: RLock | None = None  # the stepper that this thread has seen leave
        while not ready():
            self._check()
            ticket = RLock()
            with ticket: left = self._step_or_follow(ready, left, ticket)  # noqa: E701
            if left is not None and left is not ticket:
                pass_through(left)

    def _step_or_follow(
        self, ready: Callable[[], object], left: RLock | None, ticket: RLock
    ) -> RLock | None:
        """Step, unless another thread is about to; return the ticket of the thread that does."""
        with self._choosing: self._stepper = ticket if self._stepper is left else self._stepper  # noqa: E701
        if (stepper := self._stepper) is ticket:
            self._turns.take(partial(self._step, ready), ticket)
        return stepper
    # fmt: on

    def hand_over(self, reason: str) -> Engine:
        """Give the engine to another owner; ``reason`` is the error of calls from now on."""

        def leave() -> Engine:
            engine = self.engine
            if not engine.is_idle:
                raise InputError("texts are still being written: close their streams first")
            self._engine, self._closed = None, reason
            return engine

        return self.call(leave)

    def take_back(self, engine: Engine) -> None:
        """Own the engine again."""
        self._engine = engine
        if engine.store:
            engine.store.serve(self.call)

    def close(self, reason: str) -> None:
        """End all sequences; ``reason`` is the error of these sequences and of all later calls."""
        if (engine := self._engine) is not None:
            self.call(partial(self._end_all, reason))
            if engine.store:
                engine.store.flush()

    def flush_at_exit(self) -> None:
        """Write what the prefix cache's store lacks, unless the engine has another owner."""
        if (engine := self._engine) is not None and engine.store:
            engine.store.flush_at_exit()

    # -- between two steps -------------------------------------------------------------------

    def _call_between_steps(self, function: Callable[[], T]) -> T:
        engine = self.engine
        engine.begin_change()
        self._end_abandoned()
        try:
            result = function()
        except CutawayError:  # a refused call has changed nothing
            engine.end_change()
            raise
        engine.take_events()  # drop them: each reader takes its own from its outbox
        engine.end_change()
        return result

    def _step(self, ready: Callable[[], object]) -> None:
        """Step, unless an earlier turn has made it needless."""
        if not ready():
            if self.abandoned:
                self._call_between_steps(bool)  # aborts them
            self.engine.step()
        self._stepper = None  # before the ticket is released, so that the next need not wait

    def _end_all(self, reason: str) -> None:
        if self._engine is not None:
            self._engine.abort_all(InputError(reason))
            self._engine, self._closed = None, reason

    def _check(self) -> None:
        if self._engine is None:
            raise InputError(self._closed)
        if self._turns.is_mine:
            raise InputError(
                "this model is stepping: a processor, or what a step calls, cannot use it"
            )

    def reset_after_fork(self) -> None:
        """Begin anew in a forked child, where this thread is the only one."""
        if self._turns.belong_to_another():
            self._engine = None
            self._closed = (
                "this process was forked while another thread was writing: load the model after "
                "the fork"
            )
        self._turns, self._stepper, self._choosing = Turns(), None, Lock()


_RUNNERS: "WeakSet[Runner]" = WeakSet()


@cache
def _register_flush() -> None:
    """Register the function below for the end of Python, once for all models."""
    atexit.register(_flush_at_exit)


def _flush_at_exit() -> None:
    for runner in list(_RUNNERS):
        runner.flush_at_exit()


def _reset_after_fork() -> None:
    for runner in _RUNNERS:
        runner.reset_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
