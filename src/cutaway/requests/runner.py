"""One engine for any number of threads: one of those that wait steps it for all."""

import os
from collections.abc import Callable
from threading import Condition, Lock, get_ident
from typing import TypeVar

from cutaway.engine import Engine
from cutaway.errors import CutawayError, InputError
from cutaway.requests.owner import EngineOwner

T = TypeVar("T")


class Runner(EngineOwner):
    """The synchronous owner of an engine.

    One thread steps at a time, and the others' calls run between steps, so the engine needs no
    locks.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self._engine: Engine | None = engine
        self._lock = Lock()  # guards the next three
        self._stepping: int | None = None  # the thread that steps
        self._waiting = 0  # threads that wait for it to become None
        self._free = Condition(self._lock)
        self._closed = ""
        self._pid = os.getpid()

    @property
    def engine(self) -> Engine:
        """See ``EngineOwner``."""
        if self._engine is None:
            raise InputError(self._closed)
        return self._engine

    # -- what threads ask --------------------------------------------------------------------

    def call(self, function: Callable[[], T]) -> T:
        """See ``EngineOwner``."""
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

    def wait(self, ready: Callable[[], object]) -> None:
        """See ``EngineOwner``. Steps, or lets another thread step."""
        while not ready():
            self._check()
            try:
                if self._take(unless=ready):
                    self._step()
            finally:
                self._leave()

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
        """End everything; ``why`` is the error of calls from now on."""
        if self._engine is None:
            return
        self.call(self._engine.abort_all)
        self._engine, self._closed = None, why

    # -- between two steps -------------------------------------------------------------------

    def _step(self) -> None:
        self._end_abandoned()
        self._deliver(self.engine.step())

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
        """Take the right; False if ``unless`` became true while another thread stepped."""
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
        """Give up the right, if this thread has it."""
        with self._lock:
            if self._stepping == get_ident():
                self._stepping = None
                if self._waiting:
                    self._free.notify_all()
