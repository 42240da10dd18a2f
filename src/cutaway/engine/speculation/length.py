"""How many draft tokens pay: chosen for each text at each of its steps, from two things.

``StepCosts`` measures what draft tokens cost on this machine and with this model: the seconds of
steps by their number of rows, those of steps that a draft head follows, and those of a draft
model's or head's passes. ``DraftLength`` learns how many draft tokens are accepted in one text, and
chooses the number, 0 included, with the most expected tokens for its cost. A drafter whose drafts
do not pay rests: it neither drafts nor follows the text, and wakes after ever longer pauses. A text
may lose no more to wrong drafts than a small share of its steps. No token depends on the number,
only how long it takes.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

MAX_DRAFT = 16

# -- what draft tokens cost ------------------------------------------------------------------------

ROW_COST = 0.1
"""The cost of one more row in a step, in steps of one row, until steps have been measured."""
MEASURABLE_S = 1e-3
"""Shorter steps say more of the loop around the model than of rows."""
_RECENT = 5  # the median of so many times counts, so that one slow step changes nothing
_ENOUGH = 3  # times
_OUTDATED = 32  # steps, after which costs are computed anew
_EXPIRED = 512  # steps, after which a time no longer counts: the machine may do other work by now
PROBE_INTERVAL = 128
"""Steps after which a step without drafts is measured again, what else costs are compared with."""


class Drafter(Protocol):
    """What computes draft tokens, in passes of its own."""

    name: str
    cost: float
    """The cost of a pass, in steps of the model, until passes have been measured."""

    def passes(self, count: int) -> int:
        """Return how many passes draft so many tokens."""
        ...


def median_low(times: Iterable[float]) -> float:
    """Return the median; of an even number of times, the lower of the two in the middle."""
    ordered = sorted(times)  # the library's imports decimal numbers, which take 2 ms of a start
    return ordered[(len(ordered) - 1) // 2]


class _Times:
    """The latest seconds of one kind of work, each with the age in steps at which it was done."""

    def __init__(self) -> None:
        self._times: deque[tuple[int, float]] = deque(maxlen=_RECENT)

    @property
    def latest(self) -> int:
        """The age at the last of them."""
        return self._times[-1][0]

    def add(self, age: int, seconds: float) -> None:
        """Note a time."""
        self._times.append((age, seconds))

    def median(self, now: int) -> float | None:
        """Return the median of those that have not expired; None where they are too few."""
        fresh = [seconds for age, seconds in self._times if now - age < _EXPIRED]
        return median_low(fresh) if len(fresh) >= _ENOUGH else None


class StepCosts:
    """What draft tokens cost, in steps without drafts: measured, or guessed until it has been."""

    def __init__(self) -> None:
        # By who followed them ("": nobody) and the number of rows.
        self._step_times: dict[str, dict[int, _Times]] = {"": {}}
        self._pass_times: dict[str, _Times] = {}  # by the drafter's name
        self._reading_times: dict[str, _Times] = {}  # of a token, by the drafter's name
        self._costs: dict[tuple[int, int, str], tuple[float, ...]] = {}
        self._age = 0
        self._probed = 0  # the age at the last probe

    def learn_step(self, rows: int, seconds: float, followed_by: str = "") -> None:
        """Note the seconds of a step in which sequences only decoded.

        followed_by: the name of the draft head that read rows of it; "": none did
        """
        self._age += 1
        times = self._step_times.setdefault(followed_by, {})
        times.setdefault(rows, _Times()).add(self._age, seconds)
        if self._age % _OUTDATED == 0:
            self._costs.clear()

    def learn_passes(self, drafter: Drafter, passes: int, seconds: float) -> None:
        """Note the seconds in which a drafter made some passes."""
        self._pass_times.setdefault(drafter.name, _Times()).add(self._age, seconds / passes)

    def learn_reading(self, drafter: Drafter, tokens: int, passes: int, seconds: float) -> None:
        """Note the seconds in which a drafter read tokens that it had missed, and made passes."""
        reading = max(seconds - passes * self._seconds_of_pass(drafter), 0.0)
        self._reading_times.setdefault(drafter.name, _Times()).add(self._age, reading / tokens)

    def is_measured(self, rows: int) -> bool:
        """Return whether enough steps of these rows that nobody followed were measured lately."""
        times = self._step_times[""].get(rows)
        return times is not None and times.median(self._age) is not None

    def probes(self, rows: int) -> bool:
        """Return whether this step should have no drafts, so that its rows alone are measured."""
        times = self._step_times[""].get(rows)
        measured = max(self._probed, times.latest if times else 0)
        if self._age - measured < PROBE_INTERVAL:
            return False
        self._probed = self._age
        return True

    def draft_costs(
        self, rows: int, drafting: int, drafter: Drafter | None = None
    ) -> tuple[float, ...]:
        """Return, for 0 … MAX_DRAFT draft tokens, their cost for one of the drafting sequences.

        The unit is the sequence's share of a step without drafts, in which it writes one token.
        The cost of 0 draft tokens is what the drafter costs where it only follows the text.
        rows: those of the step without drafts
        drafting: how many sequences draft as many tokens each, in the same passes and the same step
        """
        key = rows, drafting, drafter.name if drafter else ""
        if key not in self._costs:
            share, counts = rows / drafting, np.arange(MAX_DRAFT + 1)
            seconds = self._seconds(rows + counts * drafting, drafter.name if drafter else "")
            alone = self._seconds_alone(rows, drafter)
            costs = share * np.maximum(seconds / alone - 1, 0)
            if drafter:
                passes = np.array([drafter.passes(count) for count in counts.tolist()])
                costs += share * passes * self._seconds_of_pass(drafter) / alone
            self._costs[key] = tuple(costs.tolist())
        return self._costs[key]

    def reading_cost(self, rows: int, drafting: int, drafter: Drafter, tokens: int) -> float:
        """Return what it costs that a drafter reads tokens, in the unit of ``draft_costs``."""
        times = self._reading_times.get(drafter.name)
        median = times.median(self._age) if times and self._medians() else None
        of_token = ROW_COST * self._seconds_of_pass(drafter) if median is None else median
        return rows / drafting * tokens * of_token / self._seconds_alone(rows, drafter)

    def _medians(self, followed_by: str = "") -> dict[int, float]:
        """Return the seconds of steps by their number of rows; {} until they say something."""
        step_times = self._step_times.get(followed_by, {})
        medians = {n: times.median(self._age) for n, times in step_times.items()}
        measured = {n: median for n, median in medians.items() if median is not None}
        return measured if measured and min(measured.values()) >= MEASURABLE_S else {}

    def _seconds_alone(self, rows: int, drafter: Drafter | None) -> float:
        """Return the seconds of a step that nobody follows; of any until such are measured."""
        followed_by = drafter.name if drafter and not self._medians() else ""
        return float(self._seconds(np.array([rows]), followed_by)[0])

    def _seconds(self, rows: NDArray[np.int64], followed_by: str = "") -> NDArray[np.float64]:
        """Return the seconds of steps; in steps of one row until they have been measured.

        Between measured numbers of rows, seconds grow evenly; beyond, by ROW_COST a row. A number
        of rows that was not measured while somebody followed takes as long as if nobody did.
        """
        times = self._medians() | (self._medians(followed_by) if followed_by else {}) or {1: 1.0}
        counts = np.array(sorted(times))
        seconds = np.maximum.accumulate([times[n] for n in counts.tolist()])
        inside = np.clip(rows, counts[0], counts[-1])
        growth = (1 + ROW_COST * (rows - 1)) / (1 + ROW_COST * (inside - 1))
        result: NDArray[np.float64] = np.interp(inside, counts, seconds) * growth
        return result

    def _seconds_of_pass(self, drafter: Drafter) -> float:
        times = self._pass_times.get(drafter.name)
        median = times.median(self._age) if times else None
        if median is not None and (self._medians() or self._medians(drafter.name)):
            return median
        return drafter.cost * self._seconds_alone(1, drafter)


# -- how many are accepted -------------------------------------------------------------------------

FORGET = 0.95  # each outcome multiplies the weight of older ones by this: some twenty tokens count
PRIOR_WEIGHT = 4.0  # the prior counts as the outcomes of this many tokens
FLOOR = 0.15  # with a lower acceptance a draft token is not worth its row, however cheap
FIRST_PAUSE, MAX_PAUSE = 8, 64  # steps without drafts before a bucket is probed again
STAKE = 1.5
"""What a text may lose to drafts at its start, in steps without drafts."""
LOSS = 0.01
"""What a text may lose to drafts beside, as a share of its tokens."""
_MOST_STAKE = 8.0  # what drafts have saved may be staked again up to here

# Shortest match of each bucket → its acceptance at the start, as measured on SmolLM2's texts.
FROM_NGRAM: Mapping[int, float] = {0: 0.5, 8: 0.95}
FROM_JACOBI: Mapping[int, float] = {0: 0.3, 2: 0.5}  # 2: drawn before after the same two tokens
FROM_MODEL: Mapping[int, float] = {0: 0.7}  # a draft model: one bucket
FROM_BLOCK: Mapping[int, float] = {0: 0.7, 2: 0.7, 4: 0.6, 8: 0.5}  # by the place in the block


@dataclass(slots=True)
class _Bucket:
    """The outcomes of draft tokens after matches of similar length."""

    accepted: float
    proposed: float
    pause: int = FIRST_PAUSE
    wait: int = FIRST_PAUSE

    @property
    def acceptance(self) -> float:
        return self.accepted / self.proposed

    def count(self, accepted: bool) -> None:
        self.accepted = FORGET * self.accepted + accepted
        self.proposed = FORGET * self.proposed + 1

    def rest(self, accepted: bool) -> None:
        """Set the next pause after a probe: longer if the probe failed."""
        if self.wait <= 0:
            self.pause = FIRST_PAUSE if accepted else min(2 * self.pause, MAX_PAUSE)
            self.wait = self.pause


class DraftLength:
    """Chooses the number of drafts for one sequence, at each of its steps.

    priors  FROM_NGRAM, FROM_JACOBI, FROM_MODEL or FROM_BLOCK

    A right draft token makes the match one token longer. So the j-th draft token after a match of
    m counts as a draft token after a match of m + j. Costs are ``StepCosts.draft_costs``.
    """

    def __init__(self, priors: Mapping[int, float] = FROM_NGRAM) -> None:
        self._stake = STAKE
        self._owed = 0.0  # what drafts have lost and not earned back, in steps
        self._sleeps = False  # whether the last choice was to draft nothing
        self._buckets = [
            (start, _Bucket(prior * PRIOR_WEIGHT, PRIOR_WEIGHT))
            for start, prior in sorted(priors.items(), reverse=True)
        ]

    def propose(
        self, match_length: int, room: int, costs: Items[float],
        waking: float = 0.0, left: int = 0,
    ) -> int:  # fmt: skip
        """Return how many draft tokens to verify now, 0 … min(room, MAX_DRAFT).

        match_length: the draft's; 0 for a draft model or head
        room: how many draft tokens exist, or how many the text has room for
        waking: what a drafter that rested costs before its draft
        left: how many tokens may pay for waking, where drafts owe nothing; else the stake has to
        """
        self._sleeps = False
        if room < 1:
            return 0
        count = self._choose(match_length, min(room, MAX_DRAFT), costs, waking, left)
        self._sleeps = not count
        return count

    def sleeps(self) -> bool:
        """Count a step of a drafter that rests; return whether it rests on, whatever drafts cost.

        Where a text rests most of the time, choosing a length would itself be what a rest costs.
        """
        bucket = self._bucket(0)
        if not self._sleeps or bucket.wait <= 1:
            return False
        bucket.wait -= 1
        return True

    def learn(self, match_length: int, proposed: int, accepted: int, cost: float) -> None:
        """Note that of ``proposed`` drafts after this match the first ``accepted`` were right."""
        earned = accepted + LOSS * (1 + accepted) - cost
        self._stake = min(self._stake + earned, _MOST_STAKE)
        self._owed = max(self._owed - earned, 0.0)
        if proposed < 1:
            return
        for j in range(min(accepted + 1, proposed)):
            self._bucket(match_length + j).count(j < accepted)
        self._bucket(match_length).rest(accepted > 0)

    def _choose(
        self, match_length: int, limit: int, costs: Items[float], waking: float, left: int
    ) -> int:
        """Return how many of ``limit`` draft tokens pay, or are to probe, within the stake."""
        best, speed = self._best(match_length, limit, costs)
        is_paid_back = best and not self._owed and (1 - 1 / speed) * left > waking
        stake = self._stake + (waking if is_paid_back else 0.0)
        bucket = self._bucket(match_length)
        if not best:
            could_pay = any(costs[k] < k for k in range(1, limit + 1))
            bucket.wait = bucket.wait - 1 if could_pay else FIRST_PAUSE
            best = 1 if bucket.wait <= 0 else 0
        if not best:
            return 0
        while best and costs[best] + waking > stake:
            best -= 1
        if best:
            self._stake = stake
        else:
            bucket.wait = max(bucket.wait, FIRST_PAUSE)
        return best

    def _best(self, match_length: int, limit: int, costs: Items[float]) -> tuple[int, float]:
        """Return the k with the most expected tokens per cost, and these; 0, 1 if none pays off."""
        if self._bucket(match_length).acceptance < FLOOR:
            return 0, 1.0
        best, best_speed, tokens, survival = 0, 1.0, 1.0, 1.0
        for k in range(1, limit + 1):
            survival *= self._bucket(match_length + k - 1).acceptance
            tokens += survival
            speed = tokens / (1 + costs[k])
            if speed > best_speed:
                best, best_speed = k, speed
        return best, best_speed

    def _bucket(self, match_length: int) -> _Bucket:
        return next(bucket for start, bucket in self._buckets if match_length >= start)
