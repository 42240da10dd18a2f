"""A measurement counts only where nothing else ran meanwhile."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter, process_time, sleep
from typing import TypeVar

from cutaway.features.measure.machine import busy_seconds

T = TypeVar("T")


@dataclass
class Guard:
    """Repeats what was disturbed, and counts it.

    limit      share of all processors' time that others may take
    tries      how often at most; then the least disturbed of them counts
    discarded  measurements thrown away so far; disturbed: those that count nevertheless
    """

    limit: float = 0.05
    tries: int = 4
    pause: float = 1.0
    measured: int = 0
    discarded: int = 0
    disturbed: int = 0

    def run(self, measure: Callable[[], T], own: Callable[[T], float]) -> T:
        """own(result): the CPU seconds that the measurement itself used, all told."""
        best: tuple[float, T] | None = None
        self.measured += 1
        for attempt in range(self.tries):
            share, result = _watched(measure, own)
            if best is None or share < best[0]:
                best = share, result
            if share <= self.limit:
                break
            self.discarded += 1
            if attempt + 1 < self.tries:
                sleep(self.pause)
        else:
            self.discarded -= 1  # one of them counts after all
            self.disturbed += 1
        assert best is not None
        return best[1]

    def __str__(self) -> str:
        said = f"{self.measured} measurements; {self.discarded} more discarded and repeated"
        said += f" because others took over {self.limit:.0%} of the processors' time"
        if self.disturbed:
            said += f"; {self.disturbed} count although disturbed, after {self.tries} tries each"
        return said


def _watched(measure: Callable[[], T], own: Callable[[T], float]) -> tuple[float, T]:
    """The share that others took; 0 where the system does not tell."""
    wall, here, busy = perf_counter(), process_time(), busy_seconds()
    result = measure()
    wall, now = perf_counter() - wall, busy_seconds()
    if busy is None or now is None:
        return 0.0, result
    others = (now - busy) - own(result) - (process_time() - here)
    return others / (wall * (os.cpu_count() or 1)), result
