"""A job: the texts of one request, read by one reader, and what is counted of them."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any
from weakref import WeakSet

from cutaway.engine import Arrival, Ended, Event, Pass, Route, Step
from cutaway.requests.generation import Generation, Generations
from cutaway.server.http.metrics import Metrics, RequestStats
from cutaway.trace import TraceBuffer

_EARLY = ("aborted", "error")  # ends that no step makes


@dataclass
class AccessRecord:
    """What the log's line of a request says beside what HTTP knows."""

    model: str
    user: str | None = None
    prompt: Any = None
    texts: list[RequestStats] = field(default_factory=list)
    route: Route | None = None
    load_s: float = 0.0


def end_at(text: Generation, step: Step) -> Ended | None:
    """How a text ended, if this step is its last; None for others, and for a text that failed."""
    ended = text.ended if step is text.steps[-1] else None
    return ended if ended and not ended.error else None


def _is_shown(event: Event, *, traced: bool) -> bool:
    """Whether an answer can have it. An end with an error is raised by the next read instead."""
    if isinstance(event, Ended):
        return event.error is None
    return isinstance(event, Step) or (traced and isinstance(event, Pass))


class TextJob:
    """The texts of one request, for one reader; leaving its ``with`` block ends and counts them.

    running  the jobs that have not ended, this one among them
    traces   of each text, where they were asked for
    given    the keywords that the client gave
    closed   called with the texts once they have ended
    """

    def __init__(
        self,
        texts: Generations,
        traces: list[TraceBuffer],
        access: AccessRecord,
        metrics: Metrics,
        running: "WeakSet[TextJob]",
        *,
        given: Collection[str],
    ) -> None:
        self.given = given
        self.texts: list[Generation] = texts.generations
        self.traces, self.asked = traces, self.texts[0].watch.start
        self._metrics, self._reader, self._access = metrics, texts, access
        self.closed: Callable[[list[Generation]], object] = lambda _: None
        self._closed, self._running = False, running
        running.add(self)

    @property
    def waits(self) -> bool:
        """Whether one of its texts is in the queue."""
        return any(text.started is None for text in self.texts)

    async def read(self) -> list[Arrival]:
        """Wait for new steps and ends of texts, and passes over a canvas if they are traced.

        [] at the end. Errors as of ``Generations.read``.
        """
        while events := await self._reader.read():
            traced = bool(self.traces)
            if new := [arrival for arrival in events if _is_shown(arrival.event, traced=traced)]:
                return new
        return []

    async def finish(self) -> None:
        """Read to the end."""
        while await self.read():
            pass

    @property
    def route(self) -> Route | None:
        """Which replicas write them; None where there are none."""
        return self._reader.route

    @property
    def load_s(self) -> float:
        """Seconds that it waited for its model to be loaded."""
        return self._reader.load_s

    def waited(self, index: int) -> float | None:
        """Seconds in the queue; None where it is there still."""
        started = self.texts[index].started
        return started.queued_s if started else None

    def close(self) -> None:
        """End what has not ended, and count."""
        if self._closed:
            return
        self._closed = True
        self._running.discard(self)
        self._reader.close()
        figures = [self._figures(i, text) for i, text in enumerate(self.texts)]
        for one in figures:
            self._metrics.finished(one)
        self._access.texts, self._access.route = figures, self.route
        self._access.load_s = self.load_s
        if self.route:
            self._metrics.resumed(self.route.resumed, self.route.replayed)
        self.closed(self.texts)

    def __enter__(self) -> "TextJob":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _figures(self, index: int, text: Generation) -> RequestStats:
        watch, usage = text.watch, text.usage()
        first, now = watch.first, perf_counter()
        speculation = text.speculation
        return RequestStats(
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens if text.started else None,
            completion_tokens=usage.completion_tokens,
            finish_reason=text.finish_reason,
            queue_s=self.waited(index),
            ttft_s=None if first is None else first - watch.start,
            decode_s=None if first is None else watch.last - first,
            duration_s=(now if text.finish_reason in _EARLY else watch.last) - watch.start,
            proposed=speculation.proposed,
            accepted=speculation.accepted,
        )
