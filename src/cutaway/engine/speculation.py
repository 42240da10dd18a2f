"""Speculative decoding: who drafts for which sequence, and how many draft tokens are worth a row.

A draft never changes the output: the model draws its own token at every position, and only where
the draft token is the same has a step been saved (Daliri, Musco & Suresh 2024, arXiv 2408.07978).
"""

from collections.abc import Sequence as Items
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cutaway.engine.decoders import Outcome
from cutaway.engine.draft_head import DraftHead
from cutaway.engine.draft_length import FROM_JACOBI, FROM_MODEL, FROM_NGRAM, DraftLength
from cutaway.engine.draft_model import DraftModel
from cutaway.engine.events import Speculation
from cutaway.engine.jacobi import CONTEXT, JacobiDrafts
from cutaway.engine.ngram import SuffixAutomaton
from cutaway.engine.scheduled import Scheduled
from cutaway.engine.sequence import Sequence

_LACKS = {
    "draft": "speculate: no draft model is loaded; name one, draft:MODEL",
    "mtp": "speculate: the model's draft head is not loaded; give mtp where the model is loaded",
    "eagle": "speculate: no EAGLE-3 head is loaded; name its folder, eagle:PATH",
}
ROW_COST = 0.1
"""What one more row adds to a step, in steps of one row."""


@dataclass(slots=True)
class DraftState:
    """What drafting needs to know of one sequence."""

    length: DraftLength
    ngram: SuffixAutomaton = field(default_factory=SuffixAutomaton)
    jacobi: JacobiDrafts = field(default_factory=JacobiDrafts)
    match_length: int = 0  # of the context that this step's draft tokens continue


class Speculator:
    """Drafts for decoding sequences: by n-grams, Jacobi decoding, a draft model or a draft head.

    draft  may be set at any time
    """

    def __init__(self, draft: DraftModel | DraftHead | None = None) -> None:
        self.draft = draft
        self._states: dict[int, DraftState] = {}  # by sequence id

    def propose(self, draft_requests: list[tuple[Sequence, int]]) -> list[list[int]]:
        """Draft tokens for each (sequence, how many at most)."""
        asked = [
            (s, self._state(s).length.propose(0, n)) for s, n in draft_requests if _by_model(s)
        ]
        drafted = iter(self.draft.propose(asked) if self.draft and asked else [])
        return [
            next(drafted) if _by_model(s) else self._from_itself(s, n) for s, n in draft_requests
        ]

    def lacks(self, speculate: str) -> str:
        """What must be loaded first, in a sentence; "" where nothing is."""
        loaded = self.draft.kind if self.draft else ""
        if speculate not in _LACKS or speculate == loaded:
            return ""
        return _LACKS[speculate]

    @property
    def hidden_names(self) -> tuple[str, ...]:
        """The model's tensors that the draft head reads; none: what the model's head reads."""
        return self.draft.reads if isinstance(self.draft, DraftHead) else ()

    def reads_hidden(self, scheduled: Scheduled) -> bool:
        """Whether the hidden states of all these rows are wanted."""
        head = self.draft
        wanted = scheduled.sequence.request.run.speculate
        return isinstance(head, DraftHead) and wanted == head.kind

    def observe(
        self, scheduled: Items[Scheduled], hidden: Items[NDArray[np.float32] | None]
    ) -> None:
        """The model has computed these rows; hidden: what its head read of each, where wanted."""
        if isinstance(self.draft, DraftHead):
            self.draft.observe(scheduled, hidden)

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """The model's KV blocks are copied: (source, target) ids."""
        if isinstance(self.draft, DraftHead):
            self.draft.copy_blocks(pairs)

    def learn(
        self, sequence: Sequence, drafts: list[int], drawn: list[Outcome], accepted: int
    ) -> None:
        """Note what a step drew after the text and its drafts, of which ``accepted`` were right."""
        state, before = self._state(sequence), sequence.speculation
        proposed = len(drafts)
        sequence.speculation = Speculation(before.proposed + proposed, before.accepted + accepted)
        state.length.learn(state.match_length, proposed, accepted)
        if sequence.request.run.speculate == "jacobi":
            first = len(sequence) - accepted - 1  # of the tokens that were drawn
            last = sequence.tokens(max(first - CONTEXT, 0), first)
            state.jacobi.learn(last, first, drafts, _ids(drawn))

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        self._states.pop(sequence.id, None)
        if self.draft:
            self.draft.forget(sequence)

    def reset(self) -> None:
        """Forget every sequence, whatever an exception left half done."""
        self._states = {}
        if self.draft:
            self.draft.reset()

    def _state(self, sequence: Sequence) -> DraftState:
        if sequence.id not in self._states:
            cost, priors = ROW_COST, FROM_NGRAM
            if self.draft and _by_model(sequence):
                cost, priors = ROW_COST + self.draft.cost, FROM_MODEL
            elif sequence.request.run.speculate == "jacobi":
                priors = FROM_JACOBI
            self._states[sequence.id] = DraftState(DraftLength(cost, priors))
        return self._states[sequence.id]

    def _from_itself(self, sequence: Sequence, room: int) -> list[int]:
        state, length = self._state(sequence), len(sequence)
        if sequence.request.run.speculate == "jacobi":
            last = sequence.tokens(max(length - CONTEXT, 0), length)
            draft = state.jacobi.draft(last, length, room)
        else:
            state.ngram.extend(sequence.tokens(len(state.ngram), length))
            draft = state.ngram.draft(room)
        state.match_length = draft.match_length
        count = state.length.propose(draft.match_length, len(draft.tokens))
        return draft.tokens[:count]


def _by_model(sequence: Sequence) -> bool:
    return sequence.request.run.speculate in _LACKS


def _ids(drawn: list[Outcome]) -> list[int]:
    """The tokens up to the first row from which none could be drawn."""
    ids = []
    for outcome in drawn:
        if isinstance(outcome, Exception):
            break
        ids.append(outcome.token_id)
    return ids
