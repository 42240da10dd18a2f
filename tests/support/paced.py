"""An engine that makes only allowed steps, so that a text is surely unfinished."""

import json
import threading
from typing import Any

from support.asgi_client import connect
from support.waiting import wait_until


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


def leave_amid(served, path: str, body: dict[str, Any], monkeypatch) -> Paced:
    """Ask a server, and hang up in the midst of the third step; the next waits until it knows."""
    paced, count = Paced(served.engine, 3, monkeypatch), _hang_ups(served, path)
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    request = f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data
    with connect(int(served.url.rpartition(":")[2]), request):
        wait_until(lambda: paced.steps == 3)
    wait_until(lambda: _hang_ups(served, path) > count)
    # A replica hears of it later; an engine whose third step was not over has ended the texts.
    commands = served.service.llm.engine._commands
    wait_until(lambda: commands.qsize() or paced.engine.is_idle)
    paced.allowed.release(10_000)
    wait_until(lambda: paced.engine.is_idle)
    return paced


def _hang_ups(served, path: str) -> float:
    """Return how many requests have ended because their clients hung up."""
    labels = {"path": path, "method": "POST", "status": "499"}
    registry = served.service.metrics.registry
    return registry.get_sample_value("cutaway_http_requests_total", labels) or 0
