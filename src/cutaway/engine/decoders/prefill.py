"""Prefill only: decoders that score, embed or pin a text, and draw nothing after it.

The embedding of a text pools its final hidden states. They are added in float64, row after row in
the order of the tokens, so that the sum is the same however the text is cut into steps.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cutaway.base.arithmetic import plainly
from cutaway.engine.decoders import Computed, Decoder, next_tokens, score_prompt
from cutaway.engine.events import Embedded, Event, FinishReason, Scored
from cutaway.engine.limits import last_seen
from cutaway.engine.scheduled import Scheduled
from cutaway.errors import CutawayError, InputError
from cutaway.sampling import ReadRow

if TYPE_CHECKING:
    from cutaway.engine.limits import Limits
    from cutaway.engine.request import Request
    from cutaway.engine.sequence import Sequence


class PrefillOnly(Decoder):
    """Reads a text, and draws nothing after it.

    prompt_tokens  how many first tokens are the prompt, to a model that reads it to both sides
    """

    prompt_tokens: int = 0

    def prompt_length(self, request: "Request") -> int:  # noqa: ARG002
        """How many first tokens are the prompt."""
        return self.prompt_tokens

    def longest(self, request: "Request", limits: "Limits") -> int:
        """The length of the prompt, which may fill the context."""
        limits.check_causal()
        limits.check_scored(request.prompt_token_ids)
        return len(request.prompt_token_ids)


def schedule_whole(
    sequence: "Sequence", room: int, logit_rows: Iterable[int], seen: int = 0
) -> Scheduled:
    """Schedule all rows of a text whose attention is not causal; no row without room for all.

    seen: no row attends to this position or to a later one; 0: no position is hidden
    """
    length = len(sequence)
    if length > room:
        return Scheduled(sequence, 0, [], first_logit_row=0)
    attention = sequence.vocabulary.limits.attention
    limits = [last_seen(attention, position, seen or length) for position in range(length)]
    return Scheduled(sequence, 0, sequence.tokens(0, length), length, [*logit_rows], limits)


@dataclass(frozen=True)
class Score(PrefillOnly):
    """Scores each token of the prompt, by the model's own logits.

    logits_from  the first position whose logits are emitted; None: no logits are emitted. With
                 ``prompt_tokens``, they are emitted from the prompt's last row on
    """

    logits_from: int | None = None
    prompt_tokens: int = 0

    def reusable(self, sequence: "Sequence") -> int:
        """The tokens before the first row whose logits are still to be read."""
        if sequence.wants_prompt_scores:
            return 0
        return max(self.logits_from or 0, sequence.logits_emitted)

    def rows(self, sequence: "Sequence", room: int, logit_room: int) -> Scheduled:
        """The pending tokens."""
        start = sequence.num_computed_tokens
        tokens, limits = next_tokens(sequence, room, min(room, logit_room))
        first_logit_row = 0 if sequence.wants_prompt_scores else len(tokens)
        if self.logits_from is not None:
            emitted = max(self.logits_from, sequence.logits_emitted)
            first_logit_row = min(first_logit_row, max(emitted - start, 0))
        return Scheduled(sequence, start, tokens, first_logit_row, limits=limits)

    def commit(self, scheduled: Scheduled, computed: Computed) -> list[Event]:
        """Emit scores and logits of the wanted rows; the last token ends the sequence."""
        sequence = scheduled.sequence
        events: list[Event] = [*score_prompt(scheduled, computed)]
        if self.logits_from is not None:
            first = scheduled.start + scheduled.first_logit_row
            start = max(self.logits_from, sequence.logits_emitted, first)
            new_logits = computed.logits[start - first :]
            if len(new_logits):
                events.append(Scored(sequence.id, start + 1, logits=new_logits.copy()))
                sequence.logits_emitted = start + len(new_logits)
        sequence.num_computed_tokens += len(scheduled.token_ids)
        if sequence.num_pending == 0 and not sequence.error:
            sequence.finish_reason = FinishReason.SCORED
        return events


@dataclass(frozen=True)
class ScoreAnswers(PrefillOnly):
    """Scores the tokens of an answer after other tokens, by the model's own logits.

    The text ends before the answer's last token, which no row has to read. ``Scored``
    events have the scores of the answer's tokens in order, then of each of ``ends`` as if it were
    the last token.
    Blocks in the prefix cache are not computed again.

    first  position of the answer's first token, which may be one of the ends; 1 or more
    ends   the tokens that may follow the text, one or more
    """

    first: int
    ends: tuple[int, ...]
    prompt_tokens: int = 0

    def longest(self, request: "Request", limits: "Limits") -> int:
        """The length of the text, which may fill the context."""
        if not (0 < self.first <= len(request.prompt_token_ids) and self.ends):
            raise InputError("an answer must come after one token or more, and have one or more")
        limits.check_ids("token_ids", self.ends)
        return super().longest(request, limits)

    def reusable(self, sequence: "Sequence") -> int:
        """The tokens before the first row whose logits are still to be read."""
        return min(self._next_row(sequence), len(sequence) - 1)

    def rows(self, sequence: "Sequence", room: int, logit_room: int) -> Scheduled:
        """The pending tokens, with the logits of each row that predicts a token of the answer."""
        start = sequence.num_computed_tokens
        before = max(self._next_row(sequence) - start, 0)
        tokens, limits = next_tokens(sequence, room, min(room, before + logit_room))
        return Scheduled(sequence, start, tokens, min(before, len(tokens)), limits=limits)

    def commit(self, scheduled: Scheduled, computed: Computed) -> list[Event]:
        """Emit the scores; the last token ends the sequence."""
        sequence, rows = scheduled.sequence, computed.logits
        sequence.num_computed_tokens += len(scheduled.token_ids)
        is_last = sequence.num_pending == 0
        first = scheduled.start + scheduled.first_logit_row + 1
        following = sequence.tokens(first, first + len(rows))
        outcomes = computed.read(rows[: len(following)], following, 0) if following else []
        for end in self.ends if is_last else ():
            outcomes += computed.read(rows[-1:], [end], 0)
        position, looked_up = self.first + len(sequence.prompt_scores), list[ReadRow]()
        for row in outcomes:
            if isinstance(row, Exception):
                sequence.error = row
                return []
            looked_up.append(row)
        sequence.prompt_scores += looked_up
        if is_last:
            sequence.finish_reason = FinishReason.SCORED
        return [Scored(sequence.id, position, tuple(looked_up))] if looked_up else []

    def _next_row(self, sequence: "Sequence") -> int:
        """The position of the first row whose logits are still to be read."""
        return self.first - 1 + len(sequence.prompt_scores)


@dataclass(frozen=True)
class PinPrefix(PrefillOnly):
    """Keeps the KV blocks of a text until the sequence is aborted.

    All tokens but the last are computed; the blocks have room for the last row (``pinned.py``). A
    prompt that is read to both sides is computed to its end.
    """

    prompt_tokens: int = 0

    def reusable(self, sequence: "Sequence") -> int:
        """All tokens but the last."""
        return len(sequence) - 1

    def rows(self, sequence: "Sequence", room: int, logit_room: int) -> Scheduled:  # noqa: ARG002
        """The pending tokens except the last, without logits."""
        start = sequence.num_computed_tokens
        tokens, limits = next_tokens(sequence, room, min(room, len(sequence) - 1 - start))
        return Scheduled(sequence, start, tokens, len(tokens), limits=limits)

    def commit(self, scheduled: Scheduled, computed: Computed) -> list[Event]:  # noqa: ARG002
        """Count the computed rows, without the last token's; return no events."""
        sequence = scheduled.sequence
        read = sequence.num_computed_tokens + len(scheduled.token_ids)
        sequence.num_computed_tokens = min(read, len(sequence) - 1)
        return []


@dataclass(frozen=True)
class ScoreBidirectional(PrefillOnly):
    """Reads logits at some positions, where attention is bidirectional or block-causal.

    One step computes all rows, and no other text can use their KV blocks. The events have the
    logits in the order of ``logit_positions``, as many per step as fit.
    """

    logit_positions: tuple[int, ...]

    def shares(self, sequence: "Sequence") -> bool:  # noqa: ARG002
        """Never: no other text can use the KV blocks."""
        return False

    def longest(self, request: "Request", limits: "Limits") -> int:
        """The length of the text, which may fill the context."""
        limits.check_bidirectional(request.prompt_token_ids)
        return len(request.prompt_token_ids)

    def reusable(self, sequence: "Sequence") -> int:  # noqa: ARG002
        """The prefix cache supplies no tokens."""
        return 0

    def rows(self, sequence: "Sequence", room: int, logit_room: int) -> Scheduled:
        """All rows, or no row if there is no room for all."""
        done = sequence.logits_emitted
        return schedule_whole(sequence, room, self.logit_positions[done : done + logit_room])

    def commit(self, scheduled: Scheduled, computed: Computed) -> list[Event]:
        """Emit logits; the last of them ends the sequence."""
        sequence = scheduled.sequence
        done = sequence.logits_emitted
        sequence.logits_emitted += len(computed.logits)
        if sequence.logits_emitted == len(self.logit_positions):
            sequence.finish_reason = FinishReason.SCORED
        return [Scored(sequence.id, done + 1, logits=computed.logits.copy())]


# -- the vector of a text --------------------------------------------------------------------------


@dataclass
class Pooled:
    """The sum of the rows of a text that were added so far."""

    rows: NDArray[np.float64] | None = None


@dataclass(frozen=True)
class Embed(PrefillOnly):
    """Pools the final hidden states of a text.

    Where attention is not causal, one step reads the whole text.

    pooling      the rows' "mean", the first row ("cls"), the "last", the mean "weighted" by
                 1, 2, 3 …, or "rows": all of them
    first        the first row that is pooled
    second_from  the first position of the second of two texts; 0: there is one text
    finishes     whether to apply the model's layers after pooling to the result
    seen         no token attends to this position or to a later one; 0: no position is hidden
    """

    pooling: str
    first: int = 0
    second_from: int = 0
    finishes: bool = True
    seen: int = 0

    hidden = True

    def begin(self) -> Pooled:
        """Return an empty sum."""
        return Pooled()

    def shares(self, sequence: "Sequence") -> bool:  # noqa: ARG002
        """Whether ``seen`` hides no position, so that other texts can share the KV blocks."""
        return not self.seen

    def longest(self, request: "Request", limits: "Limits") -> int:
        """The length of the text, which may fill the context."""
        limits.check_read(request.prompt_token_ids)
        return len(request.prompt_token_ids)

    def reusable(self, sequence: "Sequence") -> int:
        """The tokens before the first row that is still to be pooled."""
        return 0 if _reads_whole(sequence) else self._positions_to_pool(sequence).start

    def rows(self, sequence: "Sequence", room: int, logit_room: int) -> Scheduled:  # noqa: ARG002
        """The next rows; if attention is not causal, all rows, or no row without room for all."""
        to_pool, start = self._positions_to_pool(sequence), sequence.num_computed_tokens
        if _reads_whole(sequence):
            whole = schedule_whole(sequence, room, to_pool, self.seen)
            whole.second_from = self.second_from
            return whole
        tokens = sequence.tokens(start, start + room)
        rows = range(max(to_pool.start - start, 0), min(to_pool.stop - start, len(tokens)))
        places = range(start, start + len(tokens))
        limits = [min(place, self.seen - 1) for place in places] if self.seen else None
        return Scheduled(sequence, start, tokens, len(tokens), [*rows], limits)

    @plainly
    def commit(self, scheduled: Scheduled, computed: Computed) -> list[Event]:
        """Add the rows to the sum; the last row completes the embedding and ends the sequence."""
        sequence = scheduled.sequence
        pooled: Pooled = sequence.decoding
        if rows := len(computed.logits):
            first = self._positions_to_pool(sequence).start
            pooled.rows = self._pool(pooled.rows, computed.logits, first)
            sequence.logits_emitted = first + rows
        read = scheduled.start + len(scheduled.token_ids)
        if not _reads_whole(sequence):
            sequence.num_computed_tokens = read
        if read < len(sequence) or pooled.rows is None:
            return []
        vector = self._finish(pooled.rows / self._weight(len(sequence)), computed)
        if not np.isfinite(vector).all():
            sequence.error = CutawayError("the model's numbers for this text are not finite")
            return []
        sequence.finish_reason = FinishReason.SCORED
        return [Embedded(sequence.id, vector)]

    def _pool(
        self, before: NDArray[np.float64] | None, rows: NDArray[np.float32], first: int
    ) -> NDArray[np.float64]:
        """Add the rows (n, width) from position ``first`` on to the sum before them."""
        if self.pooling == "rows":
            new_rows = rows.astype(np.float64)
            return new_rows if before is None else np.concatenate([before, new_rows])
        if self.pooling == "weighted":
            weights = np.arange(first + 1, first + 1 + len(rows), dtype=np.float64)
            return add_rows(before, rows * weights[:, None])
        return add_rows(before, rows)

    def _weight(self, length: int) -> int:
        """The divisor of the sum of a text's rows."""
        if self.pooling == "weighted":
            return sum(range(self.first + 1, length + 1))
        return length - self.first if self.pooling == "mean" else 1

    def _finish(self, vector: NDArray[np.float64], computed: Computed) -> NDArray[np.float64]:
        if not self.finishes:
            return vector
        rows = np.atleast_2d(vector).astype(np.float32)
        after = computed.finish(rows)
        if after is rows:
            return vector
        return after.astype(np.float64) if vector.ndim > 1 else after[0].astype(np.float64)

    def _positions_to_pool(self, sequence: "Sequence") -> range:
        """The positions that are still to be pooled."""
        length = len(sequence)
        spans = {"cls": (0, 1), "last": (length - 1, length)}
        first, last = spans.get(self.pooling, (self.first, length))
        return range(max(first, sequence.logits_emitted), last)


@dataclass(frozen=True)
class PinWhole(Embed):
    """Keeps the KV blocks of a text until the sequence is aborted; one step computes all rows."""

    def shares(self, sequence: "Sequence") -> bool:  # noqa: ARG002
        """Never: all rows are computed again over these blocks."""
        return False

    def reusable(self, sequence: "Sequence") -> int:  # noqa: ARG002
        """The prefix cache supplies no tokens."""
        return 0

    def whole(self, sequence: "Sequence") -> Scheduled:
        """All rows of the text; each attends to the same positions as in ``Embed``."""
        scheduled = schedule_whole(sequence, len(sequence), (), self.seen)
        scheduled.second_from, scheduled.states = self.second_from, []
        return scheduled

    def rows(self, sequence: "Sequence", room: int, logit_room: int) -> Scheduled:  # noqa: ARG002
        """All rows, or no row if there is no room for all; no row once all are computed."""
        if sequence.num_computed_tokens or len(sequence) > room:
            return Scheduled(sequence, 0, [], first_logit_row=0)
        return self.whole(sequence)

    def commit(self, scheduled: Scheduled, computed: Computed) -> list[Event]:  # noqa: ARG002
        """Leave the last token pending, so that the sequence does not end; return no events."""
        if scheduled.token_ids:
            scheduled.sequence.num_computed_tokens = len(scheduled.sequence) - 1
        return []


def add_rows(
    before: NDArray[np.float64] | None, rows: NDArray[np.float32] | NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the sum so far plus the rows (n, width), added one after the other."""
    first = [] if before is None else [before[None]]
    total: NDArray[np.float64] = np.add.reduce(
        np.concatenate([*first, rows.astype(np.float64)]), axis=0
    )
    return total


def _reads_whole(sequence: "Sequence") -> bool:
    """Whether attention is not causal, so that the text is read in one step."""
    return not sequence.vocabulary.limits.is_causal
