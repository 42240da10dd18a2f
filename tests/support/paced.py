"""An engine that makes only allowed steps, so that a text is surely unfinished."""

import threading


class Paced:
    """steps: number of steps made. allowed: a semaphore, which each step acquires."""

    def __init__(self, engine, steps: int, monkeypatch) -> None:
        self.engine, self.steps = engine, 0
        self.allowed, self._step = threading.Semaphore(steps), engine.step
        monkeypatch.setattr(engine, "step", self._step_slowly)

    def _step_slowly(self):
        if not self.engine.is_idle:
            self.allowed.acquire()
            self.steps += 1
        return self._step()
