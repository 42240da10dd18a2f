"""An engine that makes no more steps than it is allowed, so that a text is surely under way."""

import threading


class Paced:
    """steps: that were made. allowed: a semaphore; each step takes one of it."""

    def __init__(self, engine, steps: int, monkeypatch) -> None:
        self.engine, self.steps = engine, 0
        self.allowed, self._step = threading.Semaphore(steps), engine.step
        monkeypatch.setattr(engine, "step", self._paced)

    def _paced(self):
        if not self.engine.is_idle:
            self.allowed.acquire()
            self.steps += 1
        return self._step()
