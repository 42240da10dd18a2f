"""Reads the texts of a job while replicas generate them.

If a replica is lost, another replica generates the texts again. The delivered tokens are prescribed
(``RunParams.replay``), so they are computed as fast as a prompt. A repeated event is compared with
the delivered event, and not delivered again. ``exchange`` knows which replica has a job.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from cutaway.base.counting import count_from_1
from cutaway.engine import (
    Arrival,
    Embedded,
    Ended,
    Event,
    Pass,
    Request,
    Route,
    Scored,
    Started,
    Step,
)
from cutaway.errors import CutawayError, DeviceLostError, QueueFullError, ReplicaLostError
from cutaway.features.cluster.exchange import Attempt, Exchange
from cutaway.features.cluster.wire import OtherBitsError


class DeliveredText:
    """One text, no matter which replica generates it.

    request  the request for this text alone, with the text's own seed
    has_ended  whether its last event was delivered
    """

    def __init__(self, request: Request) -> None:
        self.request, self.has_ended = request, False
        self._started: Started | None = None
        self._scored = 1  # the next position to be scored
        self._embedded = False
        self._steps: list[tuple[int, int]] = []  # (token id, fingerprint after it)
        self._passes: list[int] = []  # the fingerprint after each

    def __len__(self) -> int:
        return len(self._steps)

    def resuming_request(self) -> Request:
        """Make the request that continues the text at another replica."""
        delivered = tuple(token_id for token_id, _ in self._steps)
        run = self.request.run
        if len(delivered) <= len(run.replay):
            return self.request
        return self.request.but(run=replace(run, replay=delivered))

    def take(self, event: Event) -> Event | None:
        """Return the new part of an event; None if nothing is new.

        OtherBitsError if the event differs from what was delivered.
        """
        new: Event | None
        match event:
            case Started():
                new, self._started = None if self._started else event, self._started or event
            case Scored():
                new = self._score(event)
            case Embedded():
                new, self._embedded = None if self._embedded else event, True
            case Pass():
                new = self._pass(event)
            case Step():
                new = self._step(event)
            case Ended():
                new = self._end(event)
        return new

    def _score(self, event: Scored) -> Scored | None:
        skip = max(self._scored - event.position, 0)
        count = len(event.rows) if event.logits is None else len(event.logits)
        if count <= skip:
            return None
        self._scored = event.position + count
        if not skip:
            return event
        logits = event.logits if event.logits is None else event.logits[skip:]
        return event._replace(position=event.position + skip, rows=event.rows[skip:], logits=logits)

    def _pass(self, event: Pass) -> Pass | None:
        if event.index == len(self._passes):
            self._passes.append(event.fingerprint)
            return event
        if self._passes[event.index] != event.fingerprint:
            raise OtherBitsError(
                f"pass {count_from_1(event.index)} has the fingerprint {event.fingerprint:016x} "
                f"where it had {self._passes[event.index]:016x}: the replicas do not "
                "compute the same"
            )
        return None

    def _step(self, event: Step) -> Step | None:
        now = event.token_id, event.fingerprint
        if event.index == len(self._steps):
            self._steps.append(now)
            return event
        if (before := self._steps[event.index]) != now:
            raise OtherBitsError(
                f"step {count_from_1(event.index)} is token {now[0]} with the fingerprint "
                f"{now[1]:016x} where it was token {before[0]} with {before[1]:016x}: the replicas "
                "do not compute the same"
            )
        return None

    def _end(self, event: Ended) -> Ended:
        self.has_ended = True
        if self._started:  # the first replica's count: another may have more or less in its cache
            usage = event.usage._replace(cached_tokens=self._started.cached_tokens)
            event = event._replace(usage=usage)
        return event


# -- reading a job ---------------------------------------------------------------------------------


MOST_TRIES = 3
"""How many replicas may be lost in a row without an event delivered in between."""
_PATIENCE_S, _AGAIN_S = 60.0, 0.1
"""Seconds for which texts that have begun wait for a replica; seconds between two tries."""


class ResumedReader:
    """The texts of (request, n) pairs: n samples of each request."""

    def __init__(self, exchange: Exchange, requests: Sequence[tuple[Request, int]]) -> None:
        self._exchange, self._requests = exchange, tuple(requests)
        self._texts = [DeliveredText(sample) for r, n in requests for sample in r.samples(n)]
        self._unfinished = list(range(len(self._texts)))  # index in an attempt -> index in _texts
        self._new: list[Arrival] = []
        self._arrived, self._queued = asyncio.Event(), asyncio.get_running_loop().create_future()
        self._error: Exception | None = None
        self._attempt: Attempt | None = None
        self._again: asyncio.TimerHandle | None = None
        self._avoid: frozenset[str] = frozenset()
        self._tries, self._waited_s = 0, 0.0
        self._closed = False
        self._replayed, self._routes = 0, list[str]()

    async def begin(self) -> None:
        """Queue the texts. If a replica refuses them, its error is raised and nothing runs."""
        self._attempt = self._exchange.begin(self, self._requests, self._avoid)
        try:
            await self._queued
        except BaseException:
            self.close()
            raise

    async def read(self) -> list[Arrival]:
        """See ``ArrivalReader``."""
        while not self._new:
            if self._error:
                raise self._error
            if self._closed or all(text.has_ended for text in self._texts):
                return []
            self._arrived.clear()
            await self._arrived.wait()
        new, self._new = self._new, []
        return new

    def close(self) -> None:
        """Abort the texts that have not ended; no more events come."""
        self._closed, self._error, self._new = True, None, []
        self._stop()
        self._arrived.set()

    @property
    def route(self) -> Route:
        """The replicas that generated the texts, and the number of replayed tokens."""
        return Route(tuple(self._routes), max(len(self._routes) - 1, 0), self._replayed)

    @property
    def _is_accepted(self) -> bool:
        """Whether a replica has accepted the job; the job is then known to be valid."""
        return self._queued.done()

    # -- called by the exchange ------------------------------------------------------------------

    def on_accepted(self, attempt: Attempt) -> None:
        """A replica has queued the job."""
        self._routes.append(attempt.job.reason)
        self._replayed += sum(len(self._texts[i]) for i in self._unfinished)
        self._waited_s = 0.0
        if not self._queued.done():
            self._queued.set_result(None)

    def receive(self, attempt: Attempt, arrivals: list[Arrival]) -> None:
        """Deliver the events that are new."""
        for arrival in arrivals:
            index = self._unfinished[arrival.sequence_index]
            text = self._texts[index]
            if isinstance(arrival.event, Ended) and isinstance(
                arrival.event.error, DeviceLostError
            ):
                self._exchange.drop(attempt)
                self.on_lost(attempt, f"replica {attempt.job.replica}: {arrival.event.error}")
                break
            try:
                event = text.take(arrival.event)
            except OtherBitsError as error:
                self.fail(CutawayError(f"resume: {error}, at replica {attempt.job.replica}"))
                return
            if event is None:
                continue
            self._tries = 0
            self._new.append(Arrival(index, arrival.emission._replace(event=event)))
            if isinstance(event, Ended) and event.error:
                self.fail(event.error)
                return
        if all(text.has_ended for text in self._texts):
            self._exchange.finish(attempt)
            self._exchange.leave(self)
        if self._new:
            self._arrived.set()

    def on_refused(self, attempt: Attempt, error: Exception) -> None:
        """Try another replica if this one is full or computes other bits; otherwise fail."""
        if isinstance(error, OtherBitsError):
            self._avoid |= {attempt.job.replica}
            self._try_elsewhere(str(error))
        elif not (isinstance(error, QueueFullError) and self._wait()):
            self.fail(error)

    def on_lost(self, attempt: Attempt, reason: str) -> None:
        """Continue at another replica, after a pause if no replica had accepted the job."""
        if attempt.job.replica:
            self._avoid |= {attempt.job.replica}
        if attempt.remote or not self._wait():
            self._try_elsewhere(reason)

    def fail(self, error: Exception) -> None:
        """End the job with this error."""
        self._stop()
        if self._queued.done():
            self._error = error
            self._arrived.set()
        else:
            self._queued.set_exception(error)

    # -- attempts --------------------------------------------------------------------------------

    def _try_elsewhere(self, reason: str) -> None:
        self._tries += 1
        if self._tries > MOST_TRIES:
            self.fail(all_lost(reason))
        else:
            self._continue()

    def _wait(self) -> bool:
        """Try again after a pause if texts have begun and the time to wait is not over."""
        if not self._is_accepted or self._waited_s >= _PATIENCE_S:
            return False
        self._waited_s += _AGAIN_S
        self._again = asyncio.get_running_loop().call_later(_AGAIN_S, self._continue)
        return True

    def _continue(self) -> None:
        if self._closed:
            return
        self._unfinished = [i for i, text in enumerate(self._texts) if not text.has_ended]
        if not self._unfinished:
            return
        texts = [self._texts[i] for i in self._unfinished]
        requests = tuple((text.resuming_request(), 1) for text in texts)
        if not any(map(len, texts)) and len(texts) == len(self._texts):
            requests = self._requests  # n samples of a request share their computed prompt
        self._attempt = self._exchange.begin(self, requests, self._avoid)

    def _stop(self) -> None:
        if self._again:
            self._again.cancel()
        if self._attempt:
            self._exchange.drop(self._attempt)
        self._exchange.leave(self)


def all_lost(reason: str) -> ReplicaLostError:
    """Make the error for too many lost replicas. reason: why the last replica was lost."""
    return ReplicaLostError(f"{reason}; {MOST_TRIES} others were lost, too: ask again")
