"""A job: the texts of one request, for one reader, and what metrics and the log say of them."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any
from weakref import WeakSet

from cutaway.engine import Arrival, Ended, Event, Pass, Route, Step
from cutaway.requests.generation import Generation, Generations
from cutaway.server.http.metrics import Metrics, RequestStats
from cutaway.trace import TraceBuffer

_EARLY = ("aborted", "error")  # finish reasons that do not come with a step


@dataclass
class AccessRecord:
    """The fields of a request's log line that do not come from HTTP."""

    model: str
    user: str | None = None
    prompt: Any = None
    texts: list[RequestStats] = field(default_factory=list)
    route: Route | None = None
    load_s: float = 0.0


def end_at(text: Generation, step: Step) -> Ended | None:
    """Return a text's end if this step is its last; None for other steps, or if the text failed."""
    end = text.ended if step is text.steps[-1] else None
    return end if end and not end.error else None


def _is_shown(event: Event, *, traced: bool) -> bool:
    """Whether a reader gets an event; the failure of a text is instead raised by the next read."""
    if isinstance(event, Ended):
        return event.error is None
    return isinstance(event, Step) or (traced and isinstance(event, Pass))


class TextJob:
    """The texts of one request, for one reader; the end of its ``with`` block ends and counts them.

    traces     the trace of each text; empty unless the request asks for traces
    running    the set of jobs that have not ended, to which this job adds itself until its texts
               have ended and are counted
    keywords   names of the keywords that the client gave
    on_closed  called with the texts once they have ended
    """

    def __init__(
        self,
        texts: Generations,
        traces: list[TraceBuffer],
        access: AccessRecord,
        metrics: Metrics,
        running: "WeakSet[TextJob]",
        *,
        keywords: Collection[str],
    ) -> None:
        self.keywords = keywords
        self.texts: list[Generation] = texts.generations
        self.traces, self.queued_at = traces, self.texts[0].watch.start
        self._metrics, self._reader, self._access = metrics, texts, access
        self.on_closed: Callable[[list[Generation]], object] = lambda _: None
        self._closed, self._running = False, running
        running.add(self)

    @property
    def waits(self) -> bool:
        """Whether any of the texts is in the queue."""
        return any(text.started is None for text in self.texts)

    async def read(self) -> list[Arrival]:
        """Wait for new steps and ends of texts, and for passes over a canvas if texts are traced.

        Return [] once all texts have ended. Raises the errors of ``Generations.read``.
        """
        while events := await self._reader.read():
            traced = bool(self.traces)
            if new := [arrival for arrival in events if _is_shown(arrival.event, traced=traced)]:
                return new
        return []

    async def finish(self) -> None:
        """Read until all texts have ended."""
        while await self.read():
            pass

    @property
    def route(self) -> Route | None:
        """The replicas that write the texts; None without replicas."""
        return self._reader.route

    @property
    def load_s(self) -> float:
        """Seconds that the job waited for its model to be loaded."""
        return self._reader.load_s

    def queue_seconds(self, index: int) -> float | None:
        """Return the seconds that a text waited in the queue; None while it waits."""
        started = self.texts[index].started
        return started.queued_s if started else None

    def close(self) -> None:
        """End the texts that have not ended, and count all texts."""
        if self._closed:
            return
        self._closed = True
        try:
            self._reader.close()
            self._count()
            self.on_closed(self.texts)
        finally:
            self._running.discard(self)

    def _count(self) -> None:
        figures = [self._figures(i, text) for i, text in enumerate(self.texts)]
        for stats in figures:
            self._metrics.count_sequence(stats)
        self._access.texts, self._access.route = figures, self.route
        self._access.load_s = self.load_s
        if self.route:
            self._metrics.count_resumed(self.route.resumed, self.route.replayed)

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
            queue_s=self.queue_seconds(index),
            ttft_s=None if first is None else first - watch.start,
            decode_s=None if first is None else watch.last - first,
            duration_s=(now if text.finish_reason in _EARLY else watch.last) - watch.start,
            proposed=speculation.proposed,
            accepted=speculation.accepted,
            draft_cost=speculation.cost,
            draft_lengths=speculation.lengths,
            draft_rested=speculation.rested,
        )
