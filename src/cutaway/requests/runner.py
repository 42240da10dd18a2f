"""One engine for any number of threads: one of those that wait steps it for all.

Knows the order: calls have their turns (``Turns``) in the order in which they came, and a step is a
turn like any other, so whoever asks is served before the next step. Of the threads that wait for
events one has the stepper's ticket; the others wait until it has left, and look again:

    wait ─► is it ready? ──yes──► go on
                │ no
                ├─ nobody steps: take the stepper's ticket ─► join the line ─► step ─► leave ─┐
                └─ somebody does: wait until that thread has left ───────────────────────────┤
                ▲                                                                            │
                └────────────────────────────────────────────────────────────────────────────┘

An exception, such as a KeyboardInterrupt, may come at any bytecode. The turn is then over, since a
ticket is released by the interpreter, and the next turn finds a change that was begun and not
ended, which the engine puts right first (``Engine.begin``).
"""

import os
from _thread import RLock
from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import TypeVar
from weakref import WeakSet

from cutaway.engine import Engine
from cutaway.errors import CutawayError, InputError
from cutaway.requests.owner import EngineOwner
from cutaway.requests.turns import Turns, pass_through

T = TypeVar("T")


class Runner(EngineOwner):
    """The synchronous owner of an engine.

    One thread steps at a time, and the others' calls run between steps, so the engine needs no
    locks.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self._engine: Engine | None = engine
        self._closed = ""
        self._turns = Turns()
        self._stepper: RLock | None = None  # the ticket of who steps next, or did last
        self._choosing = Lock()  # guards the ticket, for a line
        _RUNNERS.add(self)

    @property
    def engine(self) -> Engine:
        """See ``EngineOwner``."""
        if self._engine is None:
            raise InputError(self._closed)
        return self._engine

    # -- what threads ask --------------------------------------------------------------------

    # fmt: off
    def call(self, function: Callable[[], T]) -> T:
        """See ``EngineOwner``."""
        self._check()
        ticket = RLock()
        with ticket: return self._turns.take(partial(self._between, function), ticket)  # noqa: E701

    def wait(self, ready: Callable[[], object]) -> None:
        """See ``EngineOwner``. Steps, or lets another thread step."""
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
        """Step, if no other thread is about to; the ticket of who did, or will."""
        with self._choosing: self._stepper = ticket if self._stepper is left else self._stepper  # noqa: E701
        if (stepper := self._stepper) is ticket:
            self._turns.take(partial(self._step, ready), ticket)
        return stepper
    # fmt: on

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
        """Own the engine again."""
        self._engine = engine

    def close(self, why: str) -> None:
        """End everything; ``why`` is the error of calls from now on, and of unfinished texts."""
        if self._engine is not None:
            self.call(partial(self._end_all, why))

    # -- between two steps -------------------------------------------------------------------

    def _between(self, function: Callable[[], T]) -> T:
        engine = self.engine
        engine.begin()
        self._end_abandoned()
        try:
            result = function()
        except CutawayError:  # a refusal, which has changed nothing
            engine.end()
            raise
        engine.take_events()  # each reader has its own
        engine.end()
        return result

    def _step(self, ready: Callable[[], object]) -> None:
        """Step, unless a turn before this one has made it needless."""
        if not ready():
            if self.abandoned:
                self._between(bool)  # which ends them
            self.engine.step()
        self._stepper = None  # before the ticket is released, so that the next need not wait

    def _end_all(self, why: str) -> None:
        if self._engine is not None:
            self._engine.abort_all(InputError(why))
            self._engine, self._closed = None, why

    def _check(self) -> None:
        if self._engine is None:
            raise InputError(self._closed)
        if self._turns.is_mine:
            raise InputError(
                "this model is stepping: a processor, or what a step calls, cannot use it"
            )

    def after_fork(self) -> None:
        """Begin anew in a forked child, where this thread is the only one."""
        if self._turns.belong_to_another():
            self._engine = None
            self._closed = (
                "this process was forked while another thread was writing: load the model after "
                "the fork"
            )
        self._turns, self._stepper, self._choosing = Turns(), None, Lock()


_RUNNERS: "WeakSet[Runner]" = WeakSet()


def _after_fork() -> None:
    for runner in _RUNNERS:
        runner.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
