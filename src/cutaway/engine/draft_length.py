"""Speculation length: how many draft tokens to verify at once, learnt from how many were accepted.

The clock plays no part: the same counts always give the same lengths.
"""

from collections.abc import Mapping
from dataclasses import dataclass

MAX_DRAFT = 16
FORGET = 0.95  # weight left to a token's outcome by the next one: about twenty tokens count
PRIOR_WEIGHT = 4.0  # tokens' worth of evidence in the prior
FLOOR = 0.15  # below this acceptance a draft token is not worth its row, however cheap
FIRST_PAUSE, MAX_PAUSE = 8, 64  # steps without drafts before a bucket is probed again

# Shortest match of each bucket → its acceptance at the start, as measured on SmolLM2's texts.
FROM_NGRAM: Mapping[int, float] = {0: 0.5, 8: 0.95}
FROM_JACOBI: Mapping[int, float] = {0: 0.3, 2: 0.5}  # 2: drawn before after the same two tokens
FROM_MODEL: Mapping[int, float] = {0: 0.7}  # a draft model: one bucket


@dataclass(slots=True)
class _Bucket:
    """The outcomes of draft tokens after matches of similar length."""

    accepted: float
    tried: float
    pause: int = FIRST_PAUSE
    wait: int = FIRST_PAUSE

    @property
    def acceptance(self) -> float:
        return self.accepted / self.tried

    def count(self, accepted: bool) -> None:
        self.accepted = FORGET * self.accepted + accepted
        self.tried = FORGET * self.tried + 1

    def rest(self, accepted: bool) -> None:
        """After a probe: the next pause is longer if it failed."""
        if self.wait <= 0:
            self.pause = FIRST_PAUSE if accepted else min(2 * self.pause, MAX_PAUSE)
            self.wait = self.pause


class DraftLength:
    """Chooses the number of drafts for one sequence, at each of its steps.

    cost    of verifying one draft token, in steps without drafts: k of them cost 1 + cost·k
    priors  FROM_NGRAM, FROM_JACOBI or FROM_MODEL

    A draft that is right makes the match one token longer, so the j-th draft after a match of
    m counts as a draft token after a match of m + j.
    """

    def __init__(self, cost: float, priors: Mapping[int, float] = FROM_NGRAM) -> None:
        self._cost = cost
        self._buckets = [
            (start, _Bucket(prior * PRIOR_WEIGHT, PRIOR_WEIGHT))
            for start, prior in sorted(priors.items(), reverse=True)
        ]

    def propose(self, match_length: int, room: int) -> int:
        """How many drafts to check now, 0 … min(room, MAX_DRAFT).

        match_length: of the draft; 0 for a draft model
        room: how many drafts exist, or how many the text has room for
        """
        if room < 1:
            return 0
        best = self._best(match_length, min(room, MAX_DRAFT))
        if best:
            return best
        bucket = self._bucket(match_length)
        bucket.wait -= 1
        return 1 if bucket.wait <= 0 else 0

    def learn(self, match_length: int, proposed: int, accepted: int) -> None:
        """Note that of ``proposed`` drafts after this match the first ``accepted`` were right."""
        if proposed < 1:
            return
        for j in range(min(accepted + 1, proposed)):
            self._bucket(match_length + j).count(j < accepted)
        self._bucket(match_length).rest(accepted > 0)

    def _best(self, match_length: int, limit: int) -> int:
        """The k with the most expected tokens per cost; 0 where no draft pays."""
        if self._bucket(match_length).acceptance < FLOOR:
            return 0
        best, best_speed, tokens, survival = 0, 1.0, 1.0, 1.0
        for k in range(1, limit + 1):
            survival *= self._bucket(match_length + k - 1).acceptance
            tokens += survival
            speed = tokens / (1 + self._cost * k)
            if speed > best_speed:
                best, best_speed = k, speed
        return best

    def _bucket(self, match_length: int) -> _Bucket:
        return next(bucket for start, bucket in self._buckets if match_length >= start)
