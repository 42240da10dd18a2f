"""Backtracking: where a check leaves no token, tokens are taken back and others drawn instead.

The last steps of such a text leave the engine delayed, since they may be taken back.
"""

from collections import deque
from collections.abc import Sequence as Items
from typing import NamedTuple

import numpy as np

from cutaway.engine.constraint import Constraint
from cutaway.engine.events import Step
from cutaway.engine.vocabulary import ConstraintVocabulary, Mask
from cutaway.sampling.row_hash import START

WINDOW = 32
"""How many of the last tokens can be taken back."""
MAX_REWINDS = 64
"""How often a text may backtrack."""


class Rewind(NamedTuple):
    """What the output goes back to: its length in tokens, and its fingerprint then."""

    length: int
    fingerprint: int


class Backtracker:
    """The last choices of one sequence, and the tokens that were tried there and failed.

    count   how many rewinds there were
    window  how many of the last tokens can be taken back
    """

    window = WINDOW

    def __init__(self, vocabulary: ConstraintVocabulary) -> None:
        self._vocabulary, self.count = vocabulary, 0
        self._delayed: deque[Step] = deque()
        self._tried: dict[int, set[int]] = {}  # by index in the output
        self._fingerprint = START  # before the first delayed step
        self._counts: list[int] = []  # how many rewinds there were when each step was released

    def delay(self, step: Step) -> None:
        """Hold back the step of the output's last token."""
        self._delayed.append(step)

    def release(self, keep: int) -> list[Step]:
        """The delayed steps except the last ``keep``; these can no longer be taken back."""
        steps = [self._delayed.popleft() for _ in range(len(self._delayed) - keep)]
        if steps:
            self._fingerprint = steps[-1].fingerprint
            self._counts += [self.count] * len(steps)
        return steps

    def follow(self, steps: Items[Step], before: "Backtracker") -> None:
        """Stand where another stood when it had released these steps, and no more."""
        if steps:
            self._fingerprint = steps[-1].fingerprint
            self._counts = before._counts[: len(steps)]
            self.count = self._counts[-1]

    def without_tried(self, index: int, mask: Mask | None) -> Mask | None:
        """A mask without the tokens that led into dead ends at this index of the output."""
        return mask if index not in self._tried else _without(mask, self._tried[index])

    def rewind(self, output: list[int], constraint: Constraint, first: int) -> Rewind | None:
        """Back to the last place where another token was allowed; None where there is none.

        constraint: as it is before the output's first token
        first: the first index that may be taken back
        """
        if self.count == MAX_REWINDS:
            return None
        first = max(first, len(output) - len(self._delayed))
        masks: list[Mask | None] = []
        for index, token_id in enumerate(output):
            if index >= first:
                masks.append(constraint.mask())
            constraint.accept(token_id)
        for index in reversed(range(first, len(output))):
            tried = self._tried.get(index, set()) | self._alike(output[index])
            left = _without(masks[index - first], tried)
            if left is None or left.any():
                for _ in range(len(output) - index):
                    self._delayed.pop()
                self._tried = {i: ids for i, ids in self._tried.items() if i < index}
                self._tried[index] = tried
                self.count += 1
                last = self._delayed[-1].fingerprint if self._delayed else self._fingerprint
                return Rewind(index, last)
        return None

    def _alike(self, token_id: int) -> set[int]:
        """The token, and those that differ from it in white space alone and would fail as well."""
        vocabulary = self._vocabulary
        return {token_id, *vocabulary.alike.get(vocabulary.data[token_id].strip(), ())}


def _without(mask: Mask | None, token_ids: set[int]) -> Mask | None:
    if mask is None:
        return None
    left = mask.copy()
    for i in token_ids:
        left[i >> 5] &= ~np.uint32(1 << (i & 31))
    return left
