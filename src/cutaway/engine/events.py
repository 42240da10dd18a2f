"""The events of a request, in order: Started, Scored…, Pass…, Step…, Ended; and their outbox.

Events are the engine's only output: a trace, an answer of the server, a page and a ``Completion``
are made of them. They can be pickled and do not refer to the engine. They are tuples, since every
token makes one.

An ``Outbox`` has all events of a sequence, from the first on. It adds events all or none, and each
reader has its own place in it. Readers know a sequence only by its events, so the outbox is enough
to restore the sequence after an exception has interrupted a step (``Sequence.restore``).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import fsum
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cutaway.base.arithmetic import plainly
from cutaway.errors import CutawayError
from cutaway.sampling import Observation, ReadRow, Stage


class FinishReason(StrEnum):
    """The condition that ended a sequence."""

    END_TOKEN = "end_token"
    STOP_STRING = "stop_string"
    STOP_TOKEN = "stop_token"
    MAX_TOKENS = "max_tokens"
    CONTEXT_FULL = "context_full"
    CONSTRAINT = "constraint"
    SCORED = "scored"
    ABORTED = "aborted"
    ERROR = "error"


@dataclass(slots=True)
class Phases:
    """Seconds of one step, by phase; draft: forward passes of the draft model."""

    schedule: float = 0.0
    draft: float = 0.0
    run: float = 0.0
    sample: float = 0.0


class Usage(NamedTuple):
    """Counts of tokens. ``cached_tokens`` are tokens of the prompt that were not computed again."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class Speculation(NamedTuple):
    """How many draft tokens were proposed and accepted; each accepted one saved a step.

    cost     what they cost, in steps without drafts: see ``StepCosts``
    lengths  how many steps had 0, 1, … draft tokens
    rested   during how many of these a draft model or head neither drafted nor followed the text
    """

    proposed: int = 0
    accepted: int = 0
    cost: float = 0.0
    lengths: tuple[int, ...] = ()
    rested: int = 0

    def add_step(
        self, proposed: int, accepted: int, cost: float, *, rests: bool = False
    ) -> "Speculation":
        """Return these figures with those of one more step."""
        lengths = [*self.lengths, *[0] * (proposed + 1 - len(self.lengths))]
        lengths[proposed] += 1
        return Speculation(
            self.proposed + proposed, self.accepted + accepted, self.cost + cost, tuple(lengths),
            self.rested + rests,
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON; cost and lengths if drafts were asked for, rests if any."""
        figures: dict[str, Any] = {"proposed": self.proposed, "accepted": self.accepted}
        if not self.lengths:
            return figures
        figures |= {"cost": round(self.cost, 3), "lengths": list(self.lengths)}
        return figures | {"rested": self.rested} if self.rested else figures


class Started(NamedTuple):
    """The sequence left the queue.

    cached_tokens  tokens of the prompt whose keys and values were found in the prefix cache
    queued_s       seconds in the queue
    chain          the sampling stages in force, in order: {"stage": name, …its rule}
    window         how many of the last steps are delayed: the backtracking window; 0 without
                   checks
    """

    id: int
    prompt_token_ids: tuple[int, ...]
    cached_tokens: int
    seed: int
    chain: tuple[Mapping[str, Any], ...]
    queued_s: float
    window: int = 0


class Scored(NamedTuple):
    """How likely the model's own logits make the prompt's tokens that one step scores.

    position  the position of the first scored token
    rows      for each token: its log-probability, its rank, and the likeliest token there
    logits    float32 (n, vocab) where the request wants them: row i, at position
              ``position - 1 + i``, predicts the token at the next position. Where attention is
              not causal, they are rows that the decoder wants, from number ``position - 1`` on
    """

    id: int
    position: int
    rows: tuple[ReadRow, ...] = ()
    logits: NDArray[np.float32] | None = None


class Embedded(NamedTuple):
    """The embedding of a text: float64 (hidden,), not normalised."""

    id: int
    vector: NDArray[np.float64]


class Step(NamedTuple):
    """One token of a sequence.

    index           0 for the first new token
    position        of the token in the sequence, prompt included
    token_id        the token
    sampled_id      what the sampler drew, which differs where the token was forced
    source          "sampled", "greedy", "forced", "grammar" where a grammar left no other token,
                    or "draft" where it had been proposed as a draft token
    text            the text that became certain with this token; it lags while a stop string or a
                    character is incomplete, and may belong to earlier tokens
    released_bytes  how many bytes became certain with this token
    logprob         natural log-probability under the model's own logits, before the chain
    survivors       how many tokens the chain left to draw from
    observed        the values that the request's ``Observe`` names
    phases          how long the engine's step took; the tokens of one step share it
    logits_hash     hash of the bits of this row's logits
    fingerprint     hash of the bits of the logits of all steps up to this one
    unconstrained_id  the token that the same luck would have drawn without the constraint, where
                    the request has the ledger; None where the constraint forbade nothing
    refused_by      names of the checks that refused tokens which the other constraints allowed;
                    thinking_budget where a thought's budget allowed this token only
    pass_index      the pass over a canvas that revealed the token
    """

    id: int
    index: int  # type: ignore[assignment]  # tuples have a method of this name
    position: int
    token_id: int
    sampled_id: int
    source: str
    text: str
    released_bytes: int
    logprob: float
    survivors: int
    observed: Observation | None
    phases: Phases
    logits_hash: int
    fingerprint: int
    unconstrained_id: int | None = None
    refused_by: tuple[str, ...] = ()
    pass_index: int | None = None

    @property
    def neg_log_z(self) -> float | None:
        """The -ln Z of its ``Observation``; None for a forced token, or where none is observed."""
        return self.observed.neg_log_z if self.observed and self.source != "forced" else None


class PassCell(NamedTuple):
    """A cell that a pass looked at.

    token_id     the token that was drawn for it, whether or not the cell was revealed
    logprob      the natural log-probability of that token, under the model's own logits
    entropy      the entropy of the cell's row, in nats
    figure       the value by which the rule orders cells: the highest goes first
    was, now     the token there before and after the pass; None where it is masked or noise
    logits_hash  hash of the bits of the row's logits
    likely       the two likeliest tokens but the mask, under the model's own logits, with the
                 natural log-probability of each
    observed     the values that the request's ``Observe`` names
    read         the token that the pass read there, in a canvas of noise: noise, or ``was``
    """

    position: int
    token_id: int
    logprob: float
    entropy: float
    figure: float
    was: int | None
    now: int | None
    logits_hash: int
    likely: tuple[tuple[int, float], ...]
    observed: Observation | None
    read: int | None = None


class Pass(NamedTuple):
    """One pass over a canvas. The steps of a block follow when it is finished.

    index         0 for the first pass
    block         positions of the block: its first, and the one after its last
    rows          how many rows were computed
    cells         the cells that were looked at, in the order of their positions
    masked_again  positions of cells that go back to being masked, or noise
    bound         the most that revealing the pass's cells together can lose, in nats; see
                  ``canvas.bound``
    redraw        which noise its cells had: 0 for the first, n for the noise of the n-th redraw
    fingerprint   hash of the logits of all cells that passes up to this one looked at
    """

    id: int
    index: int  # type: ignore[assignment]  # tuples have a method of this name
    block: tuple[int, int]
    rows: int
    cells: tuple[PassCell, ...]
    masked_again: tuple[int, ...]
    bound: float
    redraw: int
    phases: Phases
    fingerprint: int

    @property
    def tokens_after(self) -> dict[int, int | None]:
        """The token of each computed cell after the pass, by position; None for a masked cell."""
        return {cell.position: cell.now for cell in self.cells} | dict.fromkeys(self.masked_again)

    @property
    def revealed(self) -> list[PassCell]:
        """The cells that were masked before the pass, and are not masked after it."""
        return [cell for cell in self.cells if cell.was is None and cell.now is not None]


class Ended(NamedTuple):
    """Why the sequence ended, and its totals; the last event.

    matched    the stop string, or the id of the end or stop token, that ended it
    held_text  text held back for a stop string when the sequence was aborted; it follows the text
               of the steps
    error      the error that ended it
    """

    id: int
    reason: FinishReason
    matched: str | int | None
    usage: Usage
    fingerprint: int
    held_text: str
    error: Exception | None
    speculation: Speculation

    def __reduce__(self) -> Any:
        return Ended, (*self._replace(error=self.error and as_cutaway_error(self.error)),)


Event = Started | Scored | Embedded | Pass | Step | Ended


@plainly
def neg_log_z(steps: Iterable[Step]) -> float | None:
    """Return the sum of a text's -ln Z, in nats: minus the log of its importance weight.

    None where no step has one.
    """
    values = [value for step in steps if (value := step.neg_log_z) is not None]
    return fsum(values) if values else None


_NO_DATA = ("processors", "breakers")
"""Parts of a stage's rule that are functions, or that the trace's settings already have."""


def chain_as_data(chain: Sequence[Stage]) -> tuple[Mapping[str, Any], ...]:
    """Return sampling stages as JSON-ready dictionaries: {"stage": name, …its rule}."""
    return tuple(
        {"stage": s.name, **{k: v for k, v in s.rule.items() if k not in _NO_DATA}} for s in chain
    )


def as_cutaway_error(error: Exception) -> CutawayError:
    """Return the error itself, or a CutawayError that describes a user's processor's error."""
    if isinstance(error, CutawayError):
        return error
    cutaway_error = CutawayError(f"{type(error).__name__}: {error}")
    cutaway_error.__cause__ = error
    return cutaway_error


# -- the outbox ------------------------------------------------------------------------------------


class Emission(NamedTuple):
    """An event and when it left the engine.

    emitted_at   the time, in seconds of ``perf_counter``
    speculation  the sequence's draft tokens until then
    """

    event: Event
    emitted_at: float
    speculation: Speculation


class Outbox:
    """The events of one sequence, in order.

    emissions  all events; this list is never replaced by another
    """

    def __init__(self) -> None:
        self.emissions: list[Emission] = []

    def __iter__(self) -> Iterator[Event]:
        return iter([emission.event for emission in self.emissions])

    def emit(self, events: Iterable[Event], speculation: Speculation) -> None:
        """Add events, all or none: an exception comes before or after them, never in between."""
        now = perf_counter()
        self.emissions += [Emission(event, now, speculation) for event in events]

    @property
    def end(self) -> Ended | None:
        """The last event; None until it comes."""
        last = self.emissions[-1].event if self.emissions else None
        return last if isinstance(last, Ended) else None

    def drop_logits(self, place: int) -> None:
        """Replace the logits, once a reader has them, by empty rows, which restoring counts."""
        emission = self.emissions[place]
        if isinstance(event := emission.event, Scored) and event.logits is not None:
            rows = np.empty((len(event.logits), 0), np.float32)
            self.emissions[place] = emission._replace(event=event._replace(logits=rows))


class OutboxReader:
    """One reader's place in an outbox. One thread at a time may use it."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox, self._emissions, self._at = outbox, outbox.emissions, 0

    @property
    def has_news(self) -> bool:
        """Whether there is an event that the reader has not taken."""
        return self._at < len(self._emissions)

    @property
    def end(self) -> Ended | None:
        """The sequence's last event, taken or not; None until the sequence ends."""
        return self._outbox.end

    def take(self) -> Emission | None:
        """Take the next event; None while there is none."""
        if self._at >= len(self._emissions):
            return None
        emission = self._emissions[self._at]
        if type(emission.event) is Scored:
            self._outbox.drop_logits(self._at)
        self._at += 1
        return emission

    @property
    def news(self) -> Sequence[Event]:
        """The events that the reader has not taken."""
        return list(self._outbox)[self._at :]
