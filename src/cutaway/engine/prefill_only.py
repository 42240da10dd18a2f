"""Prefill only: decoders that read a text and draw nothing after it: scores, logits, pinning."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cutaway.engine.decoders import Computed, Decoder, score_prompt
from cutaway.engine.events import Event, FinishReason, Scored
from cutaway.engine.limits import last_seen
from cutaway.engine.scheduled import Scheduled
from cutaway.errors import InputError
from cutaway.sampling import ReadRow

if TYPE_CHECKING:
    from cutaway.engine.limits import Limits
    from cutaway.engine.request import Request
    from cutaway.engine.sequence import Sequence


class PrefillOnly(Decoder):
    """Reads a prompt, and draws nothing after it."""

    def longest(self, request: "Request", limits: "Limits") -> int:
        """The prompt, which may fill the context."""
        limits.check_causal()
        limits.check_scored(request.prompt_token_ids)
        return len(request.prompt_token_ids)


def in_one_step(sequence: "Sequence", room: int, wanted: Iterable[int], seen: int = 0) -> Scheduled:
    """All rows of a text whose attention is not causal; no rows where there is no room for all.

    seen: none attends to a position from this one on; 0: all do
    """
    length = len(sequence)
    if length > room:
        return Scheduled(sequence, 0, [], first_logit_row=0)
    attention = sequence.vocabulary.limits.attention
    limits = [last_seen(attention, position, seen or length) for position in range(length)]
    return Scheduled(sequence, 0, sequence.tokens(0, length), length, [*wanted], limits)


@dataclass(frozen=True)
class Score(PrefillOnly):
    """Scores each token of the prompt, by the model's own logits.

    logits_from  position from which on the logits themselves are events; None: none
    """

    logits_from: int | None = None

    def reusable(self, sequence: "Sequence") -> int:
        """The tokens before the first row whose logits are wanted."""
        if sequence.wants_prompt_scores:
            return 0
        return max(self.logits_from or 0, sequence.logits_emitted)

    def rows(self, sequence: "Sequence", room: int, logit_room: int) -> Scheduled:
        """Pending tokens."""
        start = sequence.num_computed_tokens
        tokens = sequence.tokens(start, start + min(room, logit_room))
        wanted = 0 if sequence.wants_prompt_scores else len(tokens)
        if self.logits_from is not None:
            emitted = max(self.logits_from, sequence.logits_emitted)
            wanted = min(wanted, max(emitted - start, 0))
        return Scheduled(sequence, start, tokens, first_logit_row=wanted)

    def commit(self, scheduled: Scheduled, computed: Computed) -> list[Event]:
        """Events of the wanted rows; the last token ends the sequence."""
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
class ScoreAnswers(PrefillOnly):
    """Scores the tokens of an answer after a prompt, by the model's own logits.

    The text is a prompt and all tokens of an answer but the last, which no row has to read.
    ``Scored`` events have the answer's tokens in their order, then each of ``ends`` as its last
    token. Blocks found in the prefix cache are not computed again.

    first  position of the answer's first token, which may be one of the ends; 1 or more
    ends   the tokens that may follow the text, one or more
    """

    first: int
    ends: tuple[int, ...]

    def longest(self, request: "Request", limits: "Limits") -> int:
        """The text, which may fill the context."""
        if not (0 < self.first <= len(request.prompt_token_ids) and self.ends):
            raise InputError("an answer must come after one token or more, and have one or more")
        limits.check_ids("token_ids", self.ends)
        return super().longest(request, limits)

    def reusable(self, sequence: "Sequence") -> int:
        """The tokens before the first row that is still wanted."""
        return min(self._next_row(sequence), len(sequence) - 1)

    def rows(self, sequence: "Sequence", room: int, logit_room: int) -> Scheduled:
        """Pending tokens; logits of the rows that one of the answer's tokens follows."""
        start = sequence.num_computed_tokens
        before = max(self._next_row(sequence) - start, 0)
        tokens = sequence.tokens(start, start + min(room, before + logit_room))
        return Scheduled(sequence, start, tokens, first_logit_row=min(before, len(tokens)))

    def commit(self, scheduled: Scheduled, computed: Computed) -> list[Event]:
        """The scores; the last token ends the sequence."""
        sequence, rows = scheduled.sequence, computed.logits
        sequence.num_computed_tokens += len(scheduled.token_ids)
        is_last = sequence.num_pending == 0
        first = scheduled.start + scheduled.first_logit_row + 1
        following = sequence.tokens(first, first + len(rows))
        found = computed.read(rows[: len(following)], following, 0) if following else []
        for end in self.ends if is_last else ():
            found += computed.read(rows[-1:], [end], 0)
        position, looked_up = self.first + len(sequence.prompt_scores), list[ReadRow]()
        for row in found:
            if isinstance(row, Exception):
                sequence.error = row
                return []
            looked_up.append(row)
        sequence.prompt_scores += looked_up
        if is_last:
            sequence.finish_reason = FinishReason.SCORED
        return [Scored(sequence.id, position, tuple(looked_up))] if looked_up else []

    def _next_row(self, sequence: "Sequence") -> int:
        """The position of the first row that is still wanted."""
        return self.first - 1 + len(sequence.prompt_scores)


@dataclass(frozen=True)
class PinPrefix(PrefillOnly):
    """Pins the KV blocks of a text until it is aborted.

    All tokens but the last are computed; the blocks have room for the last row (``row.py``).
    """

    def reusable(self, sequence: "Sequence") -> int:
        """All but the last."""
        return len(sequence) - 1

    def rows(self, sequence: "Sequence", room: int, logit_room: int) -> Scheduled:  # noqa: ARG002
        """Pending tokens except the last, without their logits."""
        start = sequence.num_computed_tokens
        tokens = sequence.tokens(start, min(start + room, len(sequence) - 1))
        return Scheduled(sequence, start, tokens, first_logit_row=len(tokens))

    def commit(self, scheduled: Scheduled, computed: Computed) -> list[Event]:  # noqa: ARG002
        """No events."""
        scheduled.sequence.num_computed_tokens += len(scheduled.token_ids)
        return []


@dataclass(frozen=True)
class ScoreBidirectional(PrefillOnly):
    """Logits at some positions of a model whose attention is bidirectional or block-causal.

    All rows are computed in one step, and no other text can use their KV blocks. The events have
    the logits in the order of ``wanted``, as many in a step as fit.
    """

    wanted: tuple[int, ...]

    def shares(self, sequence: "Sequence") -> bool:  # noqa: ARG002
        """Never."""
        return False

    def longest(self, request: "Request", limits: "Limits") -> int:
        """The text, which may fill the context."""
        limits.check_bidirectional(request.prompt_token_ids)
        return len(request.prompt_token_ids)

    def reusable(self, sequence: "Sequence") -> int:  # noqa: ARG002
        """None."""
        return 0

    def rows(self, sequence: "Sequence", room: int, logit_room: int) -> Scheduled:
        """All rows, or none where there is no room for all."""
        done = sequence.logits_emitted
        return in_one_step(sequence, room, self.wanted[done : done + logit_room])

    def commit(self, scheduled: Scheduled, computed: Computed) -> list[Event]:
        """The logits; the last of them end the sequence."""
        sequence = scheduled.sequence
        done = sequence.logits_emitted
        sequence.logits_emitted += len(computed.logits)
        if sequence.logits_emitted == len(self.wanted):
            sequence.finish_reason = FinishReason.SCORED
        return [Scored(sequence.id, done + 1, logits=computed.logits.copy())]
