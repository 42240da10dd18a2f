"""Decoders: which rows a step computes for a sequence, and what becomes of their logits.

A decoder is stateless and picklable. The state of a sequence is in ``Sequence``; the part that only
its decoder uses is in ``Sequence.decoding``.
"""

from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from cutaway.compute.backends import Logits
from cutaway.engine.events import Event, Phases, Scored
from cutaway.engine.scheduled import Scheduled
from cutaway.errors import InputError
from cutaway.sampling import (
    Distributions,
    ReadRow,
    RowDraw,
    Sampled,
    SamplingParams,
    Stage,
    build_chain,
)

if TYPE_CHECKING:
    from cutaway.engine.limits import Limits
    from cutaway.engine.request import Request
    from cutaway.engine.sequence import Sequence

Outcome = Sampled | Exception


class Computed(NamedTuple):
    """The results of a step for one sequence.

    logits    the wanted rows' logits, (rows, vocab), or final hidden states; valid until the next
              run
    outcomes  the result of each draw
    read      ``Backend.read``
    read_distributions  ``Backend.read_distributions``
    finish    ``Backend.finish``
    blend     returns the mean embedding of each of some distributions of tokens, (rows, vocab) ->
              (rows, hidden); None if the model reads no such signal
    """

    logits: Logits
    outcomes: list[Outcome]
    read: Callable[[Logits, Items[int], int], list[ReadRow | Exception]]
    read_distributions: Callable[..., Distributions]
    phases: Phases
    finish: Callable[[Logits], Logits] = lambda rows: rows
    blend: Callable[[Logits], Logits] | None = None


class Decoder(Protocol):
    """The protocol by which the loop writes a text: autoregressive, a canvas, or prefill only.

    In each step the scheduler asks for ``rows``. The engine runs them, samples ``draws`` from the
    last of their logits, and passes both to ``commit``. The default methods suit a decoder that
    draws nothing.

    drafts  whether draft tokens may follow its rows while ``is_decoding`` is true
    hidden  whether it reads the final hidden states of its rows, before the model's head, instead
            of their logits
    goes_back  whether it computes positions again with other tokens
    """

    drafts: bool = False
    hidden: bool = False
    goes_back: bool = False

    @property
    def banned_token_ids(self) -> tuple[int, ...]:
        """Tokens that are never drawn."""
        return ()

    def begin(self) -> Any:
        """Return the decoder's state for a new sequence, which becomes ``Sequence.decoding``."""
        return None

    def stages(self, params: SamplingParams, *, constrained: bool) -> tuple[Stage, ...]:
        """Return the sampling stages with these settings: of the first draw, where they change.

        constrained: draws may have a mask of allowed tokens
        """
        return build_chain(params, constrained=constrained)

    def longest(self, request: "Request", limits: "Limits") -> int:
        """Return the most positions that the sequence can have; InputError where it cannot run."""
        ...

    def prompt_length(self, request: "Request") -> int:  # noqa: ARG002
        """How many first tokens are the prompt, to a model that reads it to both sides."""
        return 0

    def shares(self, sequence: "Sequence") -> bool:  # noqa: ARG002
        """Whether a KV block depends only on the text's salt and the tokens up to its end."""
        return True

    def positions(self, sequence: "Sequence") -> int:
        """How many positions need KV blocks now."""
        return len(sequence)

    def reusable(self, sequence: "Sequence") -> int:
        """How many of the first tokens the prefix cache may supply."""
        ...

    def is_decoding(self, sequence: "Sequence") -> bool:  # noqa: ARG002
        """Whether few rows are left to compute; they are scheduled before prompts."""
        return False

    def rows(self, sequence: "Sequence", room: int, logit_room: int) -> Scheduled:
        """The next rows: at most ``room``, or ``logit_room`` where all their logits are wanted."""
        ...

    def draws(self, scheduled: Scheduled) -> list[RowDraw]:  # noqa: ARG002
        """The draws, one for each of the last wanted logits."""
        return []

    def commit(self, scheduled: Scheduled, computed: Computed) -> list[Event]:
        """Advance the sequence; return its new events. To end it, set finish_reason or error.

        Called once for each step in which the sequence had rows.
        """
        ...


@dataclass(frozen=True)
class Autoregressive(Decoder):
    """Writes from left to right, a token at a time; draft tokens are verified in the same step."""

    drafts = True

    def longest(self, request: "Request", limits: "Limits") -> int:
        """The prompt and ``max_tokens``, at most the model's context."""
        if request.stopping.max_tokens < 1:
            raise InputError("max_tokens", " must be 1 or more to write")
        limits.check_causal()
        limits.check_prompt(request.prompt_token_ids)
        if limits.attention == "prefix-lm" and request.observe.prompt_top:
            raise InputError(
                "prompt_logprobs",
                ": this model reads its prompt to both sides, so that no token of it is predicted: "
                "leave it out, or give max_tokens 0, by which the text is read from left to right",
            )
        return limits.longest(len(request.prompt_token_ids), request.stopping.max_tokens)

    def prompt_length(self, request: "Request") -> int:
        """The length of the prompt."""
        return len(request.prompt_token_ids)

    def positions(self, sequence: "Sequence") -> int:
        """All tokens so far, and the prescribed ones after them."""
        return len(sequence) + sequence.num_prescribed

    def reusable(self, sequence: "Sequence") -> int:
        """All tokens but the last, whose logits are wanted; none while the prompt is scored."""
        return 0 if sequence.wants_prompt_scores else len(sequence) - 1

    def is_decoding(self, sequence: "Sequence") -> bool:
        """Whether only the last token is pending and no token is prescribed after it."""
        return sequence.num_pending == 1 and not sequence.num_prescribed

    def rows(self, sequence: "Sequence", room: int, logit_room: int) -> Scheduled:
        """The pending tokens; after the last one, prescribed tokens as draft tokens."""
        start, scores = sequence.num_computed_tokens, sequence.wants_prompt_scores
        tokens, limits = next_tokens(sequence, room, min(room, logit_room) if scores else room)
        first = 0 if scores else len(tokens)
        is_last = start + len(tokens) == len(sequence)
        first_logit_row = min(first, len(tokens) - 1) if is_last else first
        scheduled = Scheduled(sequence, start, tokens, first_logit_row, limits=limits)
        if is_last and not limits and sequence.num_prescribed:
            fits = min(room - len(tokens), logit_room - len(scheduled.wanted_rows))
            if prescribed := sequence.next_prescribed(fits):
                scheduled.set_drafts(prescribed, "forced" if sequence.is_forced else "replay")
        return scheduled

    def draws(self, scheduled: Scheduled) -> list[RowDraw]:
        """The draws of the token after the last one, and of the token after each draft token."""
        s, drafts = scheduled.sequence, scheduled.draft_token_ids
        if scheduled.start + len(scheduled.token_ids) < len(s):
            return []
        masks = scheduled.masks or s.masks([])
        pairs = zip_longest(masks, s.next_forced(len(masks)))
        return [
            RowDraw(s.chain, s.history(drafts[:i]), s.seed, len(s) + i, s.observe, forced, mask)
            for i, (mask, forced) in enumerate(pairs)
        ]

    def commit(self, scheduled: Scheduled, computed: Computed) -> list[Event]:
        """Append the drawn tokens, up to the first that differs from its draft token."""
        sequence = scheduled.sequence
        events: list[Event] = [*score_prompt(scheduled, computed)]
        sequence.num_computed_tokens += len(scheduled.token_ids)
        for outcome, draft in zip(
            computed.outcomes, [*scheduled.draft_token_ids, None], strict=False
        ):
            if sequence.error:
                break
            if isinstance(outcome, Exception):
                sequence.error = outcome
                break
            drafted_by = scheduled.drafted_by if outcome.token_id == draft else ""
            step = sequence.append(outcome, drafted_by, computed.phases)
            events += sequence.confirm(step)
            if sequence.finish_reason or sequence.rewound or outcome.token_id != draft:
                break
            sequence.num_computed_tokens += 1  # the draft token was right: its row is valid
        if computed.outcomes and not sequence.request.run.kv_cache:
            sequence.num_computed_tokens = 0  # the naive loop: everything again at every step
        return events


def next_tokens(
    sequence: "Sequence", room: int, room_after_prompt: int
) -> tuple[list[int], list[int] | None]:
    """Return the next pending tokens, and the last position that each attends to; None: its own.

    A prompt that is read to both sides is read to its end in one step: all of it, or nothing where
    there is no room for all.
    """
    start, end = sequence.num_computed_tokens, sequence.num_bidirectional
    if start >= end - 1:  # the prompt's last token attends to none after it
        return sequence.tokens(start, start + room_after_prompt), None
    tokens = sequence.tokens(start, end) if end - start <= room else []
    return tokens, [end - 1] * len(tokens)


def score_prompt(scheduled: Scheduled, computed: Computed) -> list[Scored]:
    """Return the scores of the prompt's tokens, each after the tokens before it.

    A sequence that is computed again reports each token once. A row that is not finite becomes the
    sequence's error.
    """
    sequence = scheduled.sequence
    if not sequence.wants_prompt_scores:
        return []
    first = scheduled.start + scheduled.first_logit_row
    following = sequence.prompt_token_ids[first + 1 : first + 1 + len(computed.logits)]
    top, num_reported = sequence.request.observe.prompt_top, len(sequence.prompt_scores) - first
    rows: list[ReadRow] = []
    for row in computed.read(computed.logits[: len(following)], following, top)[num_reported:]:
        if isinstance(row, Exception):
            sequence.error = row
            break
        rows.append(row)
    position = 1 + len(sequence.prompt_scores)
    sequence.prompt_scores += rows
    return [Scored(sequence.id, position, tuple(rows))] if rows else []
