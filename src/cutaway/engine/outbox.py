"""What a sequence has emitted, from the first event on: the record that its readers read.

Knows that events are added all or none, and that each reader has its own place among them. Since
nothing else tells a reader what happened, it is also what a sequence is restored from after an
exception has torn a step (``Sequence.restore``). Knows nothing of who reads, or when.
"""

from collections.abc import Iterable, Iterator, Sequence
from time import perf_counter
from typing import NamedTuple

import numpy as np

from cutaway.engine.events import Ended, Event, Scored, Speculation


class Emission(NamedTuple):
    """An event, as it left the engine.

    made         when, in seconds of ``perf_counter``
    speculation  draft tokens of the sequence until then
    """

    event: Event
    made: float
    speculation: Speculation


class Outbox:
    """The events of one sequence, in order.

    emissions  all of them; no other list ever takes its place
    """

    def __init__(self) -> None:
        self.emissions: list[Emission] = []

    def __iter__(self) -> Iterator[Event]:
        return iter([emission.event for emission in self.emissions])

    def emit(self, events: Iterable[Event], speculation: Speculation) -> None:
        """Add events, all or none: an exception comes before or after them, never in between."""
        made = perf_counter()
        self.emissions += [Emission(event, made, speculation) for event in events]

    @property
    def end(self) -> Ended | None:
        """The last event; None until it comes."""
        last = self.emissions[-1].event if self.emissions else None
        return last if isinstance(last, Ended) else None

    def drop_logits(self, place: int) -> None:
        """Keep of the logits at a place, which a reader has taken, only how many rows they had."""
        emission = self.emissions[place]
        if isinstance(event := emission.event, Scored) and event.logits is not None:
            rows = np.empty((len(event.logits), 0), np.float32)
            self.emissions[place] = emission._replace(event=event._replace(logits=rows))


class OutboxReader:
    """One reader's place in an outbox. One thread at a time may use it."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox, self._emissions, self._at = outbox, outbox.emissions, 0

    @property
    def has_news(self) -> bool:
        """Whether an event is there that was not taken."""
        return self._at < len(self._emissions)

    @property
    def end(self) -> Ended | None:
        """The sequence's last event, taken or not; None until it comes."""
        return self._outbox.end

    def take(self) -> Emission | None:
        """Take the next event; None where it has not come."""
        if self._at >= len(self._emissions):
            return None
        emission = self._emissions[self._at]
        if type(emission.event) is Scored:
            self._outbox.drop_logits(self._at)
        self._at += 1
        return emission

    @property
    def news(self) -> Sequence[Event]:
        """The events that were not taken yet."""
        return list(self._outbox)[self._at :]
