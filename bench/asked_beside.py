"""Measures how long other clients wait while a server does something.

A process of its own asks for /health, reads a stream and asks a chat for a token. A wait is the
time that passed, or the server's processor time if that is less, so that the load of other programs
on the machine does not count.
"""

import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from threading import Thread
from typing import NamedTuple

import httpx


class Waited(NamedTuple):
    """The longest waits in seconds: for /health, between two tokens, for a chat's token."""

    health: float
    stream: float = 0.0
    chat: float = 0.0

    @property
    def most(self) -> float:
        """The longest of the three waits."""
        return max(self)


class Beside:
    """Clients that ask a server without a pause, in a process of their own. ``with`` ends it.

    pid       of the server
    of_texts  whether one client reads a stream, and one asks a chat
    """

    def __init__(self, url: str, pid: int, *, of_texts: bool = True) -> None:
        context = get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_ask, args=(url, pid, of_texts, other), daemon=True)

    def __enter__(self) -> "Beside":
        self._process.start()
        self._pipe.recv()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.join()

    def begin(self) -> None:
        """Forget the waits so far."""
        self._pipe.send("begin")
        self._pipe.recv()

    def end(self) -> Waited:
        """Return the longest waits since ``begin``, of requests sent before this call."""
        self._pipe.send("end")
        return Waited(*self._pipe.recv())


class _Asking:
    """A thread that asks again and again. longest: wait in seconds; rounds: number of waits."""

    def __init__(self, ask: Callable[[httpx.Client, Callable[[], None]], None], url: str, pid: int):
        self.longest, self.rounds = 0.0, 0
        self._clock = (~pid << 3) | 2  # the process's clock, see clock_getcpuclockid
        # The server closes a connection after 5 s without a request, perhaps just as one is sent.
        limits = httpx.Limits(keepalive_expiry=1)
        self._client = httpx.Client(base_url=url, timeout=600, limits=limits)
        self._began = self._now()
        Thread(target=self._run, args=(ask,), daemon=True).start()

    def _run(self, ask: Callable[[httpx.Client, Callable[[], None]], None]) -> None:
        while True:
            self._began = self._now()
            ask(self._client, self._over)
            time.sleep(0.002)

    def _over(self) -> None:
        now = self._now()
        waited = min(after - before for after, before in zip(now, self._began, strict=True))
        self.longest, self._began = max(self.longest, waited), now
        self.rounds += 1

    def _now(self) -> tuple[float, float]:
        return time.monotonic(), time.clock_gettime(self._clock)


def _health(client: httpx.Client, over: Callable[[], None]) -> None:
    client.get("/health").raise_for_status()
    over()


def _stream(client: httpx.Client, over: Callable[[], None]) -> None:
    body = {"prompt": "Once", "max_tokens": 2000, "ignore_eos": True, "stream": True}
    with client.stream("POST", "/v1/completions", json=body) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            if line:
                over()


def _chat(client: httpx.Client, over: Callable[[], None]) -> None:
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_completion_tokens": 1}
    client.post("/v1/chat/completions", json=body).raise_for_status()
    over()
    time.sleep(0.05)  # the pause of a reader


def _ask(url: str, pid: int, of_texts: bool, pipe: Connection) -> None:
    asking = [_Asking(ask, url, pid) for ask in (_health, _stream, _chat)[: 3 if of_texts else 1]]
    _pass_rounds(asking)
    pipe.send("ready")
    while True:
        if pipe.recv() == "end":
            _pass_rounds(asking)
            pipe.send([each.longest for each in asking])
        else:
            for each in asking:
                each.longest = 0.0
            pipe.send("begun")


def _pass_rounds(asking: list[_Asking]) -> None:
    """Return once the current wait of each thread is over."""
    before = [each.rounds for each in asking]
    while any(each.rounds < was + 2 for each, was in zip(asking, before, strict=True)):
        time.sleep(0.001)
