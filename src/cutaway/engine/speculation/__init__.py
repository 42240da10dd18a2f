"""Speculative decoding: which method drafts for a sequence, and how many draft tokens pay.

A draft never changes the output: the model draws its own token at every position, and saves a step
only where the draft token is the same (Daliri, Musco & Suresh 2024, arXiv 2408.07978). How many
tokens are verified at once is in length.py.

Drafts from the text itself are in from_text.py, those of a model in draft_model.py, and those of
heads in draft_head.py, block_head.py and assistant_head.py.
"""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cutaway.engine.decoders import Outcome
from cutaway.engine.scheduled import Scheduled
from cutaway.engine.sequence import Sequence
from cutaway.engine.speculation.from_text import CONTEXT, JacobiDrafts, SuffixAutomaton
from cutaway.engine.speculation.length import (
    FROM_BLOCK,
    FROM_JACOBI,
    FROM_MODEL,
    FROM_NGRAM,
    LOSS,
    DraftLength,
    StepCosts,
)

if TYPE_CHECKING:
    from cutaway.engine.speculation.draft_head import DraftHead
    from cutaway.engine.speculation.draft_model import DraftModel

FREE = LOSS / 2
"""What following may cost, in steps, for a head not to rest: it would miss tokens for little."""

_LACKS = {
    "draft": ": no draft model is loaded; name one, draft:MODEL",
    "mtp": ": the model's draft head is not loaded; give mtp where the model is loaded",
    "eagle": ": no EAGLE-3 head is loaded; name its folder, eagle:PATH",
    "dflash": ": no DFlash drafter is loaded; name its folder, dflash:PATH",
    "dspark": ": no DSpark drafter is loaded; name its folder, dspark:PATH",
    "assistant": ": no assistant is loaded; name its folder, assistant:PATH",
}


@dataclass(slots=True)
class DraftState:
    """The state of drafting for one sequence."""

    length: DraftLength
    ngram: SuffixAutomaton = field(default_factory=SuffixAutomaton)
    jacobi: JacobiDrafts = field(default_factory=JacobiDrafts)
    match_length: int = 0  # of the context that this step's draft tokens continue
    costs: Items[float] = (0.0,)  # of 0, 1, … draft tokens in this step
    rests: bool = False  # the draft model or head: nothing of this step is read for it


class Speculator:
    """Drafts for decoding sequences: by n-grams, Jacobi decoding, a draft model or a draft head.

    draft  may be set at any time
    costs  what drafts cost
    """

    def __init__(self, draft: "DraftModel | DraftHead | None" = None) -> None:
        self.draft = draft
        self.costs = StepCosts()
        self._followed_by = ""  # the draft head that read rows of this step
        self._choosing_s = 0.0  # of this step: what a drafter costs beside its passes
        self._drafting_s = 0.0
        self._states: dict[int, DraftState] = {}  # by sequence id

    def propose(
        self, draft_requests: list[tuple[Sequence, int]], rows: int, settle: Callable[[], None]
    ) -> list[list[int]]:
        """Return draft tokens for each (sequence, most tokens).

        rows: how many rows the step has without them. settle: makes the pending copies of the
        model's KV blocks, before a draft head reads these
        """
        started, self._drafting_s = perf_counter(), 0.0
        if self.costs.probes(rows):
            draft_requests = [(s, 0) for s, _ in draft_requests]
        texts = [s for s, _ in draft_requests if not _is_drafted_by_model(s)]
        models = [(s, n) for s, n in draft_requests if _is_drafted_by_model(s)]
        costs = self.costs.draft_costs(rows, max(len(texts), 1)) if texts else ()
        drafted = iter(self._draft_by_model(models, rows, settle) if self.draft and models else [])
        drafts = [
            next(drafted, []) if _is_drafted_by_model(s) else self._draft_from_text(s, n, costs)
            for s, n in draft_requests
        ]
        self._choosing_s = perf_counter() - started - self._drafting_s
        return drafts

    def sleeps(self, sequence: Sequence) -> bool:
        """Return whether a draft model or head rests in this step, too, without a choice."""
        state = self._states.get(sequence.id)
        return state is not None and state.rests and state.length.sleeps()

    def lacks(self, speculate: str) -> str:
        """Return the error's words for what must be loaded first; "" if nothing must be."""
        loaded = self.draft.kind if self.draft else ""
        if speculate not in _LACKS or speculate == loaded:
            return ""
        return _LACKS[speculate]

    @property
    def _head(self) -> "DraftHead | None":
        if self.draft is None:
            return None
        from cutaway.engine.speculation.draft_head import DraftHead  # few models have drafts

        return self.draft if isinstance(self.draft, DraftHead) else None

    @property
    def hidden_names(self) -> tuple[str, ...]:
        """The model's tensors that the draft head reads; (): the input of the model's head."""
        return self._head.reads if self._head else ()

    def reads_hidden(self, scheduled: Scheduled) -> bool:
        """Whether the hidden states of all these rows are wanted."""
        if self.draft is None:
            return False
        head, sequence = self._head, scheduled.sequence
        if head is None or sequence.request.run.speculate != head.kind:
            return False
        state = self._states.get(sequence.id)  # None: it reads its prompt
        return state is None or not state.rests

    def observe(
        self, scheduled: Items[Scheduled], hidden: Items[NDArray[np.float32] | None]
    ) -> None:
        """Note computed rows and their hidden states, which a draft head reads."""
        if self._head:
            self._head.observe(scheduled, hidden)
            if any(rows is not None for rows in hidden):
                self._followed_by = self._head.name

    def begin_step(self) -> None:
        """Note that a step begins, of which nothing was read yet."""
        self._followed_by, self._choosing_s = "", 0.0

    def learn_step(self, rows: int, seconds: float) -> None:
        """Note the seconds of a step in which sequences only decoded, after it was scheduled."""
        self.costs.learn_step(rows, seconds + self._choosing_s, self._followed_by)

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """Copy a draft head's KV blocks like the model's: (source, target) ids."""
        if self._head:
            self._head.copy_blocks(pairs)

    def forget_block(self, block_id: int) -> None:
        """Forget a block of the model into which another text's keys and values were written."""
        if self._head:
            self._head.forget_block(block_id)

    def learn(
        self, sequence: Sequence, drafts: list[int], outcomes: list[Outcome], accepted: int
    ) -> None:
        """Note what a step drew after the text and its drafts, of which ``accepted`` were right."""
        state, proposed = self._state(sequence), len(drafts)  # a constraint may have cut them
        cost = state.costs[proposed]
        sequence.speculation = sequence.speculation.add_step(
            proposed, accepted, cost, rests=state.rests
        )
        state.length.learn(state.match_length, proposed, accepted, cost)
        if sequence.request.run.speculate == "jacobi":
            first = len(sequence) - accepted - 1  # of the tokens that were drawn
            last = sequence.tokens(max(first - CONTEXT, 0), first)
            state.jacobi.learn(last, first, drafts, _drawn_ids(outcomes))

    def forget(self, sequence: Sequence) -> None:
        """Forget a sequence that has ended, or whose rows will be computed again."""
        self._states.pop(sequence.id, None)
        if self.draft:
            self.draft.forget(sequence)

    def reset(self) -> None:
        """Forget every sequence, even after an exception within a change."""
        self._states = {}
        if self.draft:
            self.draft.reset()

    def _state(self, sequence: Sequence) -> DraftState:
        if sequence.id not in self._states:
            self._states[sequence.id] = DraftState(DraftLength(self._priors(sequence)))
        return self._states[sequence.id]

    def _priors(self, sequence: Sequence) -> Mapping[int, float]:
        if self.draft and _is_drafted_by_model(sequence):
            return FROM_BLOCK if self.draft.passes(2) == 1 else FROM_MODEL
        return FROM_JACOBI if sequence.request.run.speculate == "jacobi" else FROM_NGRAM

    def _draft_by_model(
        self, requests: list[tuple[Sequence, int]], rows: int, settle: Callable[[], None]
    ) -> list[list[int]]:
        """Draft with the model or head where that pays, and measure what it takes."""
        assert self.draft
        costs = self.costs.draft_costs(rows, len(requests), self.draft)
        counts = [self._choose(s, n, costs, rows, len(requests)) for s, n in requests]
        drafting = [(s, n) for (s, _), n in zip(requests, counts, strict=True) if n]
        if not drafting:
            return [[] for _ in requests]
        if self._head and self._head.shares_blocks:
            settle()
        missed = sum(self.draft.count_missed(sequence) for sequence, _ in drafting)
        started = perf_counter()
        drafted = iter(self.draft.propose(drafting))
        seconds = self._drafting_s = perf_counter() - started
        drafts = [next(drafted) if count else [] for count in counts]
        if longest := max(map(len, drafts)):
            passes = self.draft.passes(longest)
            if missed:
                self.costs.learn_reading(self.draft, missed, passes, seconds)
            else:
                self.costs.learn_passes(self.draft, passes, seconds)
        return drafts

    def _choose(
        self, sequence: Sequence, room: int, costs: Items[float], rows: int, drafting: int
    ) -> int:
        """Return how many tokens to draft now; 0 where the drafter rests, or only wakes."""
        assert self.draft
        state, waking, left = self._state(sequence), 0.0, 0
        if self._head and state.rests:
            waking = costs[0]  # it follows this step, and drafts in the next one
        elif missed := self.draft.count_missed(sequence):
            waking = self.costs.reading_cost(rows, drafting, self.draft, missed)
            left = sequence.longest - len(sequence)
        count = state.length.propose(0, room, costs, waking, left)
        wakes = bool(self._head) and state.rests
        is_cheap = costs[0] <= FREE and self.costs.is_measured(rows)
        state.rests = not count and not (self._head and room and is_cheap)
        state.costs = (0.0,) if state.rests else [c + waking * (not wakes) for c in costs]
        return 0 if wakes else count

    def _draft_from_text(self, sequence: Sequence, room: int, costs: Items[float]) -> list[int]:
        state, length = self._state(sequence), len(sequence)
        if sequence.request.run.speculate == "jacobi":
            last = sequence.tokens(max(length - CONTEXT, 0), length)
            draft = state.jacobi.draft(last, length, room)
        else:
            state.ngram.extend(sequence.tokens(len(state.ngram), length))
            draft = state.ngram.draft(room)
        state.match_length, state.costs = draft.match_length, costs
        count = state.length.propose(draft.match_length, len(draft.tokens), costs)
        return draft.tokens[:count]


def _is_drafted_by_model(sequence: Sequence) -> bool:
    return sequence.request.run.speculate in _LACKS


def _drawn_ids(outcomes: list[Outcome]) -> list[int]:
    """Return the tokens drawn before the first error."""
    ids = []
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            break
        ids.append(outcome.token_id)
    return ids
