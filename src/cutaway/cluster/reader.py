"""The texts of a job while replicas write them, for one reader; lost replicas are replaced.

Knows which of its texts are still to be written, and how often that was tried. Refuses to know
connections.
"""

import asyncio
from collections.abc import Sequence

from cutaway.cluster.exchange import Attempt, Exchange
from cutaway.cluster.job import OtherBitsError
from cutaway.cluster.resume import ToldText
from cutaway.engine import Arrival, Ended, Request, Route
from cutaway.errors import CutawayError, QueueFullError, ReplicaLostError
from cutaway.sampling import derive_seed

MOST_TRIES = 3
"""How many replicas that had the texts may be lost in a row, with no token told in between."""
_PATIENCE_S, _AGAIN_S = 60.0, 0.1
"""How long texts that have begun wait for a replica that takes them, and how often they ask."""


class ResumedReader:
    """The texts of requests, each of which is n samples."""

    def __init__(self, exchange: Exchange, asked: Sequence[tuple[Request, int]]) -> None:
        self._exchange, self._asked = exchange, tuple(asked)
        self._texts = [ToldText(_sample(r, i)) for r, n in asked for i in range(n)]
        self._which = list(range(len(self._texts)))  # of the attempt's texts, which of these
        self._new: list[Arrival] = []
        self._news, self._queued = asyncio.Event(), asyncio.get_running_loop().create_future()
        self._error: Exception | None = None
        self._attempt: Attempt | None = None
        self._again: asyncio.TimerHandle | None = None
        self._avoid: frozenset[str] = frozenset()
        self._tries, self._waited_s = 0, 0.0
        self._closed = False
        self._replayed, self._why = 0, list[str]()

    async def begin(self) -> None:
        """Queue them. Raises what a replica refuses them with; then nothing runs."""
        self._attempt = self._exchange.begin(self, self._asked, self._avoid)
        try:
            await self._queued
        except BaseException:
            self.close()
            raise

    async def read(self) -> list[Arrival]:
        """As of ``Inboxes``."""
        while not self._new:
            if self._error:
                raise self._error
            if self._closed or all(text.ended for text in self._texts):
                return []
            self._news.clear()
            await self._news.wait()
        new, self._new = self._new, []
        return new

    def close(self) -> None:
        """End what has not ended; nothing more is read."""
        self._closed, self._error, self._new = True, None, []
        self._stop()
        self._news.set()

    @property
    def route(self) -> Route:
        """Where the texts were written."""
        return Route(tuple(self._why), max(len(self._why) - 1, 0), self._replayed)

    @property
    def _begun(self) -> bool:
        """Whether a replica took it, so that it is known to be a job that can be done."""
        return self._queued.done()

    # -- what the exchange tells -----------------------------------------------------------------

    def accepted(self, attempt: Attempt) -> None:
        """It is queued."""
        self._why.append(attempt.job.why)
        self._replayed += sum(len(self._texts[i]) for i in self._which)
        self._waited_s = 0.0
        if not self._queued.done():
            self._queued.set_result(None)

    def receive(self, attempt: Attempt, news: list[Arrival]) -> None:
        """Tell what is new of it."""
        for one in news:
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
            self._news.set()

    def refused(self, attempt: Attempt, error: Exception) -> None:
        """Another may take it, where it is a matter of room or of what a replica computes."""
        if isinstance(error, OtherBitsError):
            self._avoid |= {attempt.job.replica}
            self._try_elsewhere(str(error))
        elif not (isinstance(error, QueueFullError) and self._wait()):
            self.fail(error)

    def lost(self, attempt: Attempt, why: str) -> None:
        """Go on elsewhere; where nobody had taken it, when others may be there."""
        if attempt.job.replica:
            self._avoid |= {attempt.job.replica}
        if attempt.remote or not self._wait():
            self._try_elsewhere(why)

    def fail(self, error: Exception) -> None:
        """End with this error."""
        self._stop()
        if self._queued.done():
            self._error = error
            self._news.set()
        else:
            self._queued.set_exception(error)

    # -- attempts --------------------------------------------------------------------------------

    def _try_elsewhere(self, why: str) -> None:
        self._tries += 1
        if self._tries > MOST_TRIES:
            self.fail(all_lost(why))
        else:
            self._go_on()

    def _wait(self) -> bool:
        """Try again in a moment, if this is a text that has begun and there still is patience."""
        if not self._begun or self._waited_s >= _PATIENCE_S:
            return False
        self._waited_s += _AGAIN_S
        self._again = asyncio.get_running_loop().call_later(_AGAIN_S, self._go_on)
        return True

    def _go_on(self) -> None:
        if self._closed:
            return
        self._which = [i for i, text in enumerate(self._texts) if not text.ended]
        if not self._which:
            return
        texts = [self._texts[i] for i in self._which]
        asked = tuple((text.continued(), 1) for text in texts)
        if not any(map(len, texts)) and len(texts) == len(self._texts):
            asked = self._asked  # samples that share what is computed of their prompt
        self._attempt = self._exchange.begin(self, asked, self._avoid)

    def _stop(self) -> None:
        if self._again:
            self._again.cancel()
        if self._attempt:
            self._exchange.drop(self._attempt)
        self._exchange.leave(self)


def all_lost(why: str) -> ReplicaLostError:
    """Too many were lost, the last of them so."""
    return ReplicaLostError(f"{why}; {MOST_TRIES} others were lost, too: ask again")


def _sample(request: Request, index: int) -> Request:
    assert request.sampling.seed is not None
    return request.with_seed(derive_seed(request.sampling.seed, index))
