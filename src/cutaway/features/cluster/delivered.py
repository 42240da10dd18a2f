"""The part of a text that was delivered, and the request that continues it at another replica.

A text is resumed by generating it again: the delivered tokens are prescribed
(``RunParams.replay``), so they are computed as fast as a prompt. A repeated event is compared with
the one that was delivered, and not delivered again.
"""

from dataclasses import replace

from cutaway.engine import Embedded, Ended, Event, Pass, Request, Scored, Started, Step
from cutaway.features.cluster.job import OtherBitsError


class DeliveredText:
    """One text, whichever replica generates it.

    request  with the text's own seed
    ended    whether its last event was delivered
    """

    def __init__(self, request: Request) -> None:
        self.request, self.ended = request, False
        self._started: Started | None = None
        self._scored = 1  # the next position to be scored
        self._embedded = False
        self._steps: list[tuple[int, int]] = []  # (token id, fingerprint after it)
        self._passes: list[int] = []  # the fingerprint after each

    def __len__(self) -> int:
        return len(self._steps)

    def continued(self) -> Request:
        """The request that continues it at another replica."""
        delivered = tuple(token_id for token_id, _ in self._steps)
        run = self.request.run
        if len(delivered) <= len(run.replay):
            return self.request
        return self.request.but(run=replace(run, replay=delivered))

    def take(self, event: Event) -> Event | None:
        """The new part of an event; OtherBitsError where it differs from what was delivered."""
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
                f"pass {event.index} has the fingerprint {event.fingerprint:016x} where it had "
                f"{self._passes[event.index]:016x}: the replicas do not compute the same"
            )
        return None

    def _step(self, event: Step) -> Step | None:
        now = event.token_id, event.fingerprint
        if event.index == len(self._steps):
            self._steps.append(now)
            return event
        if (before := self._steps[event.index]) != now:
            raise OtherBitsError(
                f"step {event.index} is token {now[0]} with the fingerprint {now[1]:016x} where it "
                f"was token {before[0]} with {before[1]:016x}: the replicas do not compute the same"
            )
        return None

    def _end(self, event: Ended) -> Ended:
        self.ended = True
        if self._started:  # as delivered first: another replica may have had more or less cached
            usage = event.usage._replace(cached_tokens=self._started.cached_tokens)
            event = event._replace(usage=usage)
        return event
