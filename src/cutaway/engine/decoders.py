"""How a sequence is written: which rows a step computes for it, and what becomes of their logits.

A decoder is stateless and picklable; what it remembers of a sequence is in the ``Sequence``.
Refuses to know other sequences, KV blocks and how logits are computed.
"""

from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple, Protocol

from cutaway.backends import Logits
from cutaway.engine.events import Event, FinishReason, Phases, Scored
from cutaway.engine.limits import last_seen
from cutaway.engine.scheduled import Scheduled
from cutaway.errors import InputError
from cutaway.sampling import ReadRow, RowDraw, Sampled

if TYPE_CHECKING:
    from cutaway.engine.limits import Limits
    from cutaway.engine.request import Request
    from cutaway.engine.sequence import Sequence

Outcome = Sampled | Exception


class Computed(NamedTuple):
    """What a step computed for one sequence.

    logits  of the wanted rows, (rows, vocab), or what the head reads of them; valid until the next
            run
    drawn   the outcome of each draw
    read    ``Backend.read``
    """

    logits: Logits
    drawn: list[Outcome]
    read: Callable[[Logits, Items[int], int], list[ReadRow | Exception]]
    phases: Phases


class Decoder(Protocol):
    """The seam between the loop and a way to write.

    In each step the scheduler asks for ``rows``, the engine computes them, draws the ``draws``
    from the last logits of them, and hands both to ``commit``.

    drafts  whether draft tokens may follow the rows that ``is_decoding`` promises
    hidden  whether it wants what the head reads of its rows, instead of their logits
    """

    drafts: bool
    hidden: bool

    @property
    def never(self) -> tuple[int, ...]:
        """Tokens that are never drawn."""
        ...

    def longest(self, request: "Request", limits: "Limits") -> int:
        """How many positions the sequence can have at most; InputError where it cannot be."""
        ...

    def shares(self, sequence: "Sequence") -> bool:
        """Whether what is computed of a KV block depends on nothing behind it."""
        ...

    def positions(self, sequence: "Sequence") -> int:
        """How many positions need KV blocks now."""
        ...

    def reusable(self, sequence: "Sequence") -> int:
        """How many of the first tokens need not be computed where the prefix cache has them."""
        ...

    def is_decoding(self, sequence: "Sequence") -> bool:
        """Whether few rows are left to compute, so that it goes before those with many."""
        ...

    def rows(self, sequence: "Sequence", room: int, logit_room: int) -> Scheduled:
        """The next rows, ``room`` at most; ``logit_room`` where every row's logits are wanted."""
        ...

    def draws(self, scheduled: Scheduled) -> list[RowDraw]:
        """What is drawn, from the last of the wanted logits."""
        ...

    def commit(self, scheduled: Scheduled, computed: Computed) -> list[Event]:
        """Bring the sequence forward; its new events. Its ``finish_reason`` or ``error`` ends it.

        Called once for each step in which it had rows.
        """
        ...


@dataclass(frozen=True)
class Autoregressive:
    """From left to right, a token at a time; draft tokens are checked in the same step."""

    drafts, hidden = True, False
    never = ()

    def shares(self, sequence: "Sequence") -> bool:  # noqa: ARG002
        """Always."""
        return True

    def longest(self, request: "Request", limits: "Limits") -> int:
        """Prompt and ``max_tokens``, as far as the context goes."""
        if request.stopping.max_tokens < 1:
            raise InputError("max_tokens must be 1 or more to write")
        limits.check_past()
        limits.check_prompt(request.prompt_token_ids)
        return limits.longest(len(request.prompt_token_ids), request.stopping.max_tokens)

    def positions(self, sequence: "Sequence") -> int:
        """All known tokens."""
        return len(sequence)

    def reusable(self, sequence: "Sequence") -> int:
        """All but the last, whose logits are wanted; none where the prompt is scored."""
        return 0 if sequence.wants_prompt_scores else len(sequence) - 1

    def is_decoding(self, sequence: "Sequence") -> bool:
        """Whether the last token alone is to be computed."""
        return sequence.num_pending == 1

    def rows(self, sequence: "Sequence", room: int, logit_room: int) -> Scheduled:
        """Tokens that are known and not computed."""
        start, scores = sequence.num_computed_tokens, sequence.wants_prompt_scores
        tokens = sequence.tokens(start, start + (min(room, logit_room) if scores else room))
        first = 0 if scores else len(tokens)
        is_last = start + len(tokens) == len(sequence)
        wanted = min(first, len(tokens) - 1) if is_last else first
        return Scheduled(sequence, start, tokens, first_logit_row=wanted)

    def draws(self, scheduled: Scheduled) -> list[RowDraw]:
        """The token after the last one, then the one after each draft token."""
        s, drafts = scheduled.sequence, scheduled.draft_token_ids
        if scheduled.start + len(scheduled.token_ids) < len(s):
            return []
        masks = scheduled.masks or s.masks([])
        each = zip_longest(masks, s.next_forced(len(masks)))
        return [
            RowDraw(s.chain, s.history(drafts[:i]), s.seed, len(s) + i, s.observe, forced, mask)
            for i, (mask, forced) in enumerate(each)
        ]

    def commit(self, scheduled: Scheduled, computed: Computed) -> list[Event]:
        """Append what was drawn, up to the first draft token that is another one."""
        sequence = scheduled.sequence
        events: list[Event] = [*score_prompt(scheduled, computed)]
        sequence.num_computed_tokens += len(scheduled.token_ids)
        for outcome, draft in zip(computed.drawn, [*scheduled.draft_token_ids, None], strict=False):
            if sequence.error:
                break
            if isinstance(outcome, Exception):
                sequence.error = outcome
                break
            drafted_by = scheduled.drafted_by if outcome.token_id == draft else ""
            step = sequence.append(outcome, drafted_by, computed.phases)
            events += sequence.settle(step)
            if sequence.finish_reason or sequence.rewound or outcome.token_id != draft:
                break
            sequence.num_computed_tokens += 1  # the draft token was right, and is computed
        if computed.drawn and not sequence.request.run.kv_cache:
            sequence.num_computed_tokens = 0  # the naive loop: everything again at every step
        return events


class Undrawn:
    """What reads a prompt, and draws nothing after it."""

    drafts = hidden = False
    never = ()

    def shares(self, sequence: "Sequence") -> bool:  # noqa: ARG002
        """Always."""
        return True

    def longest(self, request: "Request", limits: "Limits") -> int:
        """The prompt, which may fill the context."""
        limits.check_past()
        limits.check_scored(request.prompt_token_ids)
        return len(request.prompt_token_ids)

    def positions(self, sequence: "Sequence") -> int:
        """All tokens."""
        return len(sequence)

    def is_decoding(self, sequence: "Sequence") -> bool:  # noqa: ARG002
        """Never: others are not to wait for it."""
        return False

    def draws(self, scheduled: Scheduled) -> list[RowDraw]:  # noqa: ARG002
        """None."""
        return []


@dataclass(frozen=True)
class Score(Undrawn):
    """Nothing is drawn: what the model expected at each token of the prompt.

    logits_from  position from which on the logits themselves are events; None: none
    """

    logits_from: int | None = None

    def reusable(self, sequence: "Sequence") -> int:
        """Those before the first whose logits are wanted."""
        if sequence.wants_prompt_scores:
            return 0
        return max(self.logits_from or 0, sequence.logits_emitted)

    def rows(self, sequence: "Sequence", room: int, logit_room: int) -> Scheduled:
        """Tokens that are not computed."""
        start = sequence.num_computed_tokens
        tokens = sequence.tokens(start, start + min(room, logit_room))
        wanted = 0 if sequence.wants_prompt_scores else len(tokens)
        if self.logits_from is not None:
            emitted = max(self.logits_from, sequence.logits_emitted)
            wanted = min(wanted, max(emitted - start, 0))
        return Scheduled(sequence, start, tokens, first_logit_row=wanted)

    def commit(self, scheduled: Scheduled, computed: Computed) -> list[Event]:
        """Events of what was wanted; the end comes with the last token."""
        sequence = scheduled.sequence
        events: list[Event] = [*score_prompt(scheduled, computed)]
        if self.logits_from is not None:
            first = scheduled.start + scheduled.first_logit_row
            start = max(self.logits_from, sequence.logits_emitted, first)
            wanted = computed.logits[start - first :]
            if len(wanted):
                events.append(Scored(sequence.id, start + 1, logits=wanted.copy()))
                sequence.logits_emitted = start + len(wanted)
        sequence.num_computed_tokens += len(scheduled.token_ids)
        if sequence.num_pending == 0 and not sequence.error:
            sequence.finish_reason = FinishReason.SCORED
        return events


@dataclass(frozen=True)
class Hold(Undrawn):
    """Nothing is drawn: keys and values of all tokens but the last are kept until it is aborted.

    There is room for the last, so that its row can be computed by itself (``row.py``).
    """

    def reusable(self, sequence: "Sequence") -> int:
        """All but the last."""
        return len(sequence) - 1

    def rows(self, sequence: "Sequence", room: int, logit_room: int) -> Scheduled:  # noqa: ARG002
        """Tokens that are not computed, without their logits; none when it is ready."""
        start = sequence.num_computed_tokens
        tokens = sequence.tokens(start, min(start + room, len(sequence) - 1))
        return Scheduled(sequence, start, tokens, first_logit_row=len(tokens))

    def commit(self, scheduled: Scheduled, computed: Computed) -> list[Event]:  # noqa: ARG002
        """No events."""
        scheduled.sequence.num_computed_tokens += len(scheduled.token_ids)
        return []


@dataclass(frozen=True)
class ReadWhole(Undrawn):
    """Nothing is drawn: what a model that sees more than the past expects at some positions.

    All rows are of one step; what is computed is of use to no other text. The events have the
    logits in the order of ``wanted``, so many in a step as there is room for. sight: the model's
    """

    wanted: tuple[int, ...]
    sight: str | int

    def shares(self, sequence: "Sequence") -> bool:  # noqa: ARG002
        """Never."""
        return False

    def longest(self, request: "Request", limits: "Limits") -> int:
        """The text, which may fill the context."""
        limits.check_whole(request.prompt_token_ids)
        return len(request.prompt_token_ids)

    def reusable(self, sequence: "Sequence") -> int:  # noqa: ARG002
        """None."""
        return 0

    def rows(self, sequence: "Sequence", room: int, logit_room: int) -> Scheduled:
        """All, or none where there is no room for all."""
        length, done = len(sequence), sequence.logits_emitted
        if length > room:
            return Scheduled(sequence, 0, [], first_logit_row=0)
        rows = [*self.wanted[done : done + logit_room]]
        limits = [last_seen(self.sight, position, length) for position in range(length)]
        return Scheduled(sequence, 0, sequence.tokens(0, length), length, rows, limits)

    def commit(self, scheduled: Scheduled, computed: Computed) -> list[Event]:
        """The logits; the end comes with the last of them."""
        sequence = scheduled.sequence
        done = sequence.logits_emitted
        sequence.logits_emitted += len(computed.logits)
        if sequence.logits_emitted == len(self.wanted):
            sequence.finish_reason = FinishReason.SCORED
        return [Scored(sequence.id, done + 1, logits=computed.logits.copy())]


def score_prompt(scheduled: Scheduled, computed: Computed) -> list[Scored]:
    """How likely the model found the prompt's tokens, each after those before it.

    A sequence that is computed again has each token once. Rows that are not finite are the
    sequence's error.
    """
    sequence = scheduled.sequence
    if not sequence.wants_prompt_scores:
        return []
    first = scheduled.start + scheduled.first_logit_row
    following = sequence.prompt_token_ids[first + 1 : first + 1 + len(computed.logits)]
    top, known = sequence.request.observe.prompt_top, len(sequence.prompt_scores) - first
    rows: list[ReadRow] = []
    for row in computed.read(computed.logits[: len(following)], following, top)[known:]:
        if isinstance(row, Exception):
            sequence.error = row
            break
        rows.append(row)
    position = 1 + len(sequence.prompt_scores)
    sequence.prompt_scores += rows
    return [Scored(sequence.id, position, tuple(rows))] if rows else []
