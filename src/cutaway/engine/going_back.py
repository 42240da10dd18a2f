"""A text that has come to a dead end takes tokens back, and goes another way.

Knows which tokens were tried. Refuses to know KV blocks: whoever steps the sequence lets go of
what was computed for it.
"""

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from cutaway.engine.checked import Checked
from cutaway.engine.events import Step
from cutaway.engine.fingerprint import START
from cutaway.engine.vocabulary import Mask, Vocabulary
from cutaway.errors import InputError

if TYPE_CHECKING:
    from cutaway.engine.sequence import Sequence

HELD = 32
"""The last steps of a text that nobody hears of yet: so many tokens can be taken back."""
MOST = 64
"""How often a text goes back."""


class GoingBack:
    """The last choices of one sequence, and what was tried there.

    count  how often it went back
    held   so many of the last tokens can be taken back
    """

    held = HELD

    def __init__(self) -> None:
        self.count = 0
        self._held: deque[Step] = deque()
        self._tried: dict[int, set[int]] = {}  # by index in the output
        self._fingerprint = START  # before the first step that is held

    def settle(self, sequence: "Sequence", step: Step) -> list[Step]:
        """Take a step that was appended; those that are certain now."""
        self._held.append(step)
        if not (sequence.finish_reason or sequence.error or sequence.is_forced):
            assert sequence.constraint is not None
            mask = sequence.constraint.mask()
            if mask is not None and not mask.any():
                self._go_back(sequence)
        return self._release(0 if sequence.finish_reason else HELD)

    def flush(self) -> list[Step]:
        """The steps that are held, once nothing can be taken back any more."""
        return self._release(0)

    def without_tried(self, index: int, mask: Mask | None) -> Mask | None:
        """A mask less the tokens that led into dead ends."""
        return mask if index not in self._tried else _without(mask, self._tried[index])

    def _release(self, keep: int) -> list[Step]:
        steps = [self._held.popleft() for _ in range(len(self._held) - keep)]
        if steps:
            self._fingerprint = steps[-1].fingerprint
        return steps

    def _go_back(self, sequence: "Sequence") -> None:
        """To the last place where another token was allowed; an error where there is none."""
        output = sequence.output_token_ids
        assert isinstance(sequence.constraint, Checked)
        first = max(len(output) - len(self._held), len(sequence.request.run.forced))
        masks = sequence.masks_again(first) if self.count < MOST else []
        for index in reversed(range(first, first + len(masks))):
            tried = self._tried.get(index, set()) | _alike(output[index], sequence.vocabulary)
            left = _without(masks[index - first], tried)
            if left is None or left.any():
                self._forget(index, len(output))
                self._tried[index] = tried
                sequence.rewind(
                    index, self._held[-1].fingerprint if self._held else self._fingerprint
                )
                self.count += 1
                return
        sequence.error = InputError(
            f"{' and '.join(sequence.constraint.names)}: nothing that may follow passes the check, "
            f"and going back {self.count} times did not help: loosen the schema or the check"
        )

    def _forget(self, index: int, length: int) -> None:
        for _ in range(length - index):
            self._held.pop()
        self._tried = {i: ids for i, ids in self._tried.items() if i < index}


def _alike(token_id: int, vocabulary: Vocabulary) -> set[int]:
    """The token, and those that differ from it in white space alone, which would fail as well."""
    return {token_id, *vocabulary.alike.get(vocabulary.data[token_id].strip(), ())}


def _without(mask: Mask | None, token_ids: set[int]) -> Mask | None:
    if mask is None:
        return None
    left = mask.copy()
    for i in token_ids:
        left[i >> 5] &= ~np.uint32(1 << (i & 31))
    return left
