"""StepTime: how many rows of a prompt belong in a step beside sequences that decode.

Whoever reads a text waits for a prompt's rows, which cost the more the further they are in theirs.
Both costs are learnt from the time of the steps themselves. No token depends on it.
"""

from collections import deque
from statistics import median_low
from typing import NamedTuple

LEAST_ROWS = 4
"""A prompt's rows in a step, at least: of two, each costs 1.4 times what it costs among eight."""
LEAST_STEPS = 2
"""A target is at least so many times what the texts take alone: the prompt has half of the time."""
ALONE_EVERY = 16
"""After so many steps with rows of prompts, one without: what the texts take alone."""
_RECENT = 3  # steps that count, of which the median holds: one that was held up changes nothing
_NEAR = 256  # tokens; from here on, rows are told apart by the power of two of their position


class StepRows(NamedTuple):
    """What a step computes.

    decoding  rows of sequences that decode, draft tokens included
    prompts   rows of others
    position  of the first of the prompt that has the most of them
    """

    decoding: int
    prompts: int
    position: int


class StepTime:
    """What steps took, and what follows for the next."""

    def __init__(self) -> None:
        self._alone: deque[float] = deque(maxlen=_RECENT)  # seconds of steps that only decode
        self._row: dict[int, deque[float]] = {}  # seconds of a prompt's row, by its distance
        self._steps_beside = ALONE_EVERY  # since the last step that only decoded

    def learn(self, rows: StepRows, seconds: float) -> None:
        """Note what a step took."""
        if not rows.prompts:
            self._alone.append(seconds)
            self._steps_beside = 0
            return
        if rows.decoding:
            self._steps_beside += 1
        if rows.prompts >= LEAST_ROWS and (self._alone or not rows.decoding):
            alone = median_low(self._alone) if rows.decoding else 0.0
            own = max(seconds - alone, seconds / 10, 1e-9)  # noise may leave less
            self._near(rows.position + rows.prompts // 2).append(own / rows.prompts)

    def room(self, position: int, step_ms: float) -> int | None:
        """How many rows of a prompt fit beside those that decode, from this position on.

        step_ms: the target of a step
        0: this step is to measure what the texts take alone. None: not known yet.
        """
        if self._steps_beside >= ALONE_EVERY:
            return 0
        if not self._row:
            return None
        alone = median_low(self._alone)
        target = max(step_ms / 1e3, LEAST_STEPS * alone)
        return max(LEAST_ROWS, int((target - alone) / median_low(self._near(position))))

    def _near(self, position: int) -> deque[float]:
        """What rows took at such positions; at first, what they took at the nearest known."""
        distance = (position // _NEAR).bit_length()
        if distance not in self._row:
            known = sorted(self._row, key=lambda other: abs(other - distance))
            begun = [median_low(self._row[other]) for other in known[:1]]
            self._row[distance] = deque(begun, maxlen=_RECENT)
        return self._row[distance]
