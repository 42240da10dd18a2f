"""Checks as a constraint: rules that no grammar can state, a user's own included.

A check judges one token after another. Backtracking: where checks allow no token, the engine takes
tokens back and draws others. It emits steps with a delay, since it may still take them back.
"""

from collections import deque
from collections.abc import Sequence
from collections.abc import Sequence as Items
from time import thread_time
from typing import NamedTuple, Self

import numpy as np

from cutaway.engine.constraint import (
    Allowed,
    Constraint,
    ConstraintVocabulary,
    Mask,
    pack_mask,
    unpack_mask,
)
from cutaway.engine.events import Step
from cutaway.errors import InputError
from cutaway.sampling.observe import START
from cutaway.text.grammar.checks import Check

_FEW = 64
"""The most tokens that are judged one by one; if there are more, their first bytes go first."""


class CheckConstraint(Constraint):
    """The mask of another constraint, without the tokens that checks refuse.

    The checks judge only tokens that the other constraint allows.

    prompt  the last bytes of the prompt, for checks that read it
    healed  the bytes of the prompt that token healing takes back
    """

    refused_by: tuple[str, ...] = ()

    def __init__(
        self, inner: Constraint | None, checks: Sequence[Check], vocabulary: ConstraintVocabulary,
        ending: frozenset[int], *, prompt: bytes = b"", healed: bytes = b"",
    ) -> None:  # fmt: skip
        self._inner, self._checks, self._vocabulary = inner, checks, vocabulary
        self._ending, self._prompt, self._text = ending, prompt + healed, b""
        self._skip = len(healed)  # bytes that are drawn once more, and are not text
        self._mask: Mask | None = None
        self._began = 0.0  # the thread's processor time when a check was first asked in this step

    @property
    def checks(self) -> Sequence[str]:
        """Names of the checks."""
        return [check.name for check in self._checks]

    def mask(self) -> Mask | None:
        """Return the tokens that the other constraint and all checks allow."""
        if self._mask is None:
            self._mask = self._judge()
        return self._mask

    def accept(self, token_id: int) -> None:
        """Append the token to the text."""
        if self._inner:
            self._inner.accept(token_id)
        if token_id not in self._ending:
            data = self._vocabulary.token_bytes(token_id)
            self._text += data[self._skip :]
            self._skip -= min(self._skip, len(data))
        self._mask, self.refused_by = None, ()

    def fork(self) -> Self:
        """An independent copy in the same state."""
        fork = super().fork()
        fork._inner = self._inner and self._inner.fork()
        return fork

    def find_forced_tokens(self) -> Sequence[int]:
        """Return the other constraint's forced tokens; a check may refuse one of them."""
        return self._inner.find_forced_tokens() if self._inner else ()

    @property
    def is_over(self) -> bool:
        """Whether the other constraint is over and each check accepts the text as complete."""
        over = self._inner is not None and self._inner.is_over
        return over and all(check.allows(self._text_for(check), b"") for check in self._checks)

    def _judge(self) -> Mask:
        inner_mask = self._inner.mask() if self._inner else None
        size = self._vocabulary.limits.vocab_size
        allowed = np.ones(size, np.bool_) if inner_mask is None else unpack_mask(inner_mask, size)
        refused_by = []
        for check in self._checks:
            before, self._began = np.count_nonzero(allowed), thread_time()
            self._refuse(check, allowed)
            if np.count_nonzero(allowed) < before:
                refused_by.append(check.name)
        inner_names = self._inner.refused_by if self._inner else ()
        self.refused_by = (*inner_names, *refused_by)
        return pack_mask(allowed)

    def _text_for(self, check: Check) -> bytes:
        return self._prompt + self._text if check.reads_prompt else self._text

    def _refuse(self, check: Check, allowed: Allowed) -> None:
        text, data, skip = self._text_for(check), self._vocabulary.data, self._skip
        ends = [i for i in self._ending if allowed[i]]
        if ends and not self._allows(check, text, b""):
            allowed[ends] = False
        pattern = check.suspects(text)
        judged = allowed & self._vocabulary.holding(pattern)
        judged[list(self._ending)] = False
        ids = np.flatnonzero(judged)
        for length in (1, 2, 3):
            if skip or len(ids) <= _FEW:
                break
            heads = self._vocabulary.heads(length)[ids]
            bad = [
                head
                for head in np.unique(heads[heads >= 0])
                if not self._allows(check, text, int(head).to_bytes(length, "big"))
            ]
            is_refused = np.isin(heads, bad)
            allowed[ids[is_refused]] = False
            ids = ids[~is_refused]
        new = ((i, data[i][skip:]) for i in ids)
        refused_ids = [i for i, token in new if token and not self._allows(check, text, token)]
        allowed[refused_ids] = False

    def _allows(self, check: Check, text: bytes, token: bytes) -> bool:
        """Ask a check; InputError past its time limit, since the step's other sequences wait."""
        if check.limit_s is not None and thread_time() - self._began > check.limit_s:
            raise InputError(
                check.name,
                f": to check the next token of {len(text)} bytes takes more than "
                f"{check.limit_s:g} s: loosen what is checked, or ask for a shorter text",
            )
        return check.allows(text, token)


# -- backtracking ----------------------------------------------------------------------------------

WINDOW = 32
"""How many of the last tokens can be taken back."""
MAX_REWINDS = 64
"""How often a text may backtrack."""


class Rewind(NamedTuple):
    """The point to which the output goes back: its length in tokens, and its fingerprint there."""

    length: int
    fingerprint: int


class Backtracker:
    """The last steps of one sequence, and the tokens that led into dead ends there.

    count   how many rewinds there were
    window  how many of the last tokens can be taken back
    """

    window = WINDOW

    def __init__(self, vocabulary: ConstraintVocabulary) -> None:
        self._vocabulary, self.count = vocabulary, 0
        self._delayed: deque[Step] = deque()
        self._dead_ends: dict[int, set[int]] = {}  # by index in the output
        self._fingerprint = START  # before the first delayed step
        self._counts: list[int] = []  # how many rewinds there were when each step was released

    def delay(self, step: Step) -> None:
        """Hold back the step of the output's last token."""
        self._delayed.append(step)

    def release(self, keep: int) -> list[Step]:
        """Return the delayed steps except the last ``keep``; they can no longer be taken back."""
        steps = [self._delayed.popleft() for _ in range(len(self._delayed) - keep)]
        if steps:
            self._fingerprint = steps[-1].fingerprint
            self._counts += [self.count] * len(steps)
        return steps

    def follow(self, steps: Items[Step], before: "Backtracker") -> None:
        """Take another backtracker's state as it was when it had released just these steps."""
        if steps:
            self._fingerprint = steps[-1].fingerprint
            self._counts = before._counts[: len(steps)]
            self.count = self._counts[-1]

    def mask_dead_ends(self, index: int, mask: Mask | None) -> Mask | None:
        """Remove from a mask the tokens that led into dead ends at this index of the output."""
        return (
            mask if index not in self._dead_ends else _remove_tokens(mask, self._dead_ends[index])
        )

    def rewind(self, output: list[int], constraint: Constraint, first: int) -> Rewind | None:
        """Go back to the last place where another token is allowed; None where there is none.

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
            dead_ends = self._dead_ends.get(index, set()) | self._tokens_like(output[index])
            remaining = _remove_tokens(masks[index - first], dead_ends)
            if remaining is None or remaining.any():
                for _ in range(len(output) - index):
                    self._delayed.pop()
                self._dead_ends = {i: ids for i, ids in self._dead_ends.items() if i < index}
                self._dead_ends[index] = dead_ends
                self.count += 1
                last = self._delayed[-1].fingerprint if self._delayed else self._fingerprint
                return Rewind(index, last)
        return None

    def _tokens_like(self, token_id: int) -> set[int]:
        """Return the token and all that differ only in white space, which would fail as well."""
        vocabulary = self._vocabulary
        return {token_id, *vocabulary.alike.get(vocabulary.data[token_id].strip(), ())}


def _remove_tokens(mask: Mask | None, token_ids: set[int]) -> Mask | None:
    if mask is None:
        return None
    remaining = mask.copy()
    for i in token_ids:
        remaining[i >> 5] &= ~np.uint32(1 << (i & 31))
    return remaining
