"""ResumedReader: reads the texts of a job while replicas generate them, and replaces lost ones."""

import asyncio
from collections.abc import Sequence

from cutaway.engine import Arrival, Ended, Request, Route
from cutaway.errors import CutawayError, QueueFullError, ReplicaLostError
from cutaway.features.cluster.delivered import DeliveredText
from cutaway.features.cluster.exchange import Attempt, Exchange
from cutaway.features.cluster.job import OtherBitsError

MOST_TRIES = 3
"""How many replicas may be lost in a row without an event delivered in between."""
_PATIENCE_S, _AGAIN_S = 60.0, 0.1
"""Seconds that texts which have begun wait for a replica, and between two tries."""


class ResumedReader:
    """The texts of (request, n) pairs: n samples of each request."""

    def __init__(self, exchange: Exchange, requests: Sequence[tuple[Request, int]]) -> None:
        self._exchange, self._requests = exchange, tuple(requests)
        self._texts = [DeliveredText(one) for r, n in requests for one in r.samples(n)]
        self._which = list(range(len(self._texts)))  # index in an attempt -> index in _texts
        self._new: list[Arrival] = []
        self._arrived, self._queued = asyncio.Event(), asyncio.get_running_loop().create_future()
        self._error: Exception | None = None
        self._attempt: Attempt | None = None
        self._again: asyncio.TimerHandle | None = None
        self._avoid: frozenset[str] = frozenset()
        self._tries, self._waited_s = 0, 0.0
        self._closed = False
        self._replayed, self._why = 0, list[str]()

    async def begin(self) -> None:
        """Queue the texts. Raises the error of a replica that refuses them; then nothing runs."""
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
            if self._closed or all(text.ended for text in self._texts):
                return []
            self._arrived.clear()
            await self._arrived.wait()
        new, self._new = self._new, []
        return new

    def close(self) -> None:
        """Abort the texts that have not ended; no more events are read."""
        self._closed, self._error, self._new = True, None, []
        self._stop()
        self._arrived.set()

    @property
    def route(self) -> Route:
        """Which replicas wrote the texts, and how much was replayed."""
        return Route(tuple(self._why), max(len(self._why) - 1, 0), self._replayed)

    @property
    def _begun(self) -> bool:
        """Whether a replica has accepted the job, so that it is known to be valid."""
        return self._queued.done()

    # -- what the exchange calls -----------------------------------------------------------------

    def accepted(self, attempt: Attempt) -> None:
        """A replica has queued the job."""
        self._why.append(attempt.job.why)
        self._replayed += sum(len(self._texts[i]) for i in self._which)
        self._waited_s = 0.0
        if not self._queued.done():
            self._queued.set_result(None)

    def receive(self, attempt: Attempt, arrivals: list[Arrival]) -> None:
        """Deliver the events that are new."""
        for one in arrivals:
            which = self._which[one.which]
            text = self._texts[which]
            try:
                event = text.take(one.event)
            except OtherBitsError as error:
                self.fail(CutawayError(f"resume: {error}, at replica {attempt.job.replica}"))
                return
            if event is None:
                continue
            self._tries = 0
            self._new.append(one._replace(which=which, event=event))
            if isinstance(event, Ended) and event.error:
                self.fail(event.error)
                return
        if all(text.ended for text in self._texts):
            self._exchange.finished(attempt)
            self._exchange.leave(self)
        if self._new:
            self._arrived.set()

    def refused(self, attempt: Attempt, error: Exception) -> None:
        """Try another replica if this one is full or computes other bits; otherwise fail."""
        if isinstance(error, OtherBitsError):
            self._avoid |= {attempt.job.replica}
            self._try_elsewhere(str(error))
        elif not (isinstance(error, QueueFullError) and self._wait()):
            self.fail(error)

    def lost(self, attempt: Attempt, why: str) -> None:
        """The replica is lost: continue elsewhere, after a pause if none had accepted the job."""
        if attempt.job.replica:
            self._avoid |= {attempt.job.replica}
        if attempt.remote or not self._wait():
            self._try_elsewhere(why)

    def fail(self, error: Exception) -> None:
        """End with this error."""
        self._stop()
        if self._queued.done():
            self._error = error
            self._arrived.set()
        else:
            self._queued.set_exception(error)

    # -- attempts --------------------------------------------------------------------------------

    def _try_elsewhere(self, why: str) -> None:
        self._tries += 1
        if self._tries > MOST_TRIES:
            self.fail(all_lost(why))
        else:
            self._continue()

    def _wait(self) -> bool:
        """Try again after a pause, if texts have begun and the time to wait is not over."""
        if not self._begun or self._waited_s >= _PATIENCE_S:
            return False
        self._waited_s += _AGAIN_S
        self._again = asyncio.get_running_loop().call_later(_AGAIN_S, self._continue)
        return True

    def _continue(self) -> None:
        if self._closed:
            return
        self._which = [i for i, text in enumerate(self._texts) if not text.ended]
        if not self._which:
            return
        texts = [self._texts[i] for i in self._which]
        requests = tuple((text.continued(), 1) for text in texts)
        if not any(map(len, texts)) and len(texts) == len(self._texts):
            requests = self._requests  # n samples of a request share their computed prompt
        self._attempt = self._exchange.begin(self, requests, self._avoid)

    def _stop(self) -> None:
        if self._again:
            self._again.cancel()
        if self._attempt:
            self._exchange.drop(self._attempt)
        self._exchange.leave(self)


def all_lost(why: str) -> ReplicaLostError:
    """The error where too many replicas were lost. why: the last loss."""
    return ReplicaLostError(f"{why}; {MOST_TRIES} others were lost, too: ask again")
