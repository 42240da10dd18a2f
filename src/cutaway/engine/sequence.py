"""Sequence: a prompt and its growing output, and the state that the loop keeps for it.

The state: its tokens, how many of them are computed, and the KV blocks of their keys and values.
"""

from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING

from cutaway.engine.constraint import ConstraintVocabulary, Mask, allows, masks_along
from cutaway.engine.constraint.guest_code import GuestCode, GuestConstraint
from cutaway.engine.events import (
    Ended,
    Event,
    FinishReason,
    Outbox,
    Pass,
    Phases,
    Scored,
    Speculation,
    Started,
    Step,
    Usage,
    chain_as_data,
)  # fmt: skip
from cutaway.engine.request import PrescribedTokens, Request
from cutaway.engine.stops import SequenceText
from cutaway.errors import CutawayError, InputError
from cutaway.sampling import CompiledChain, History, ReadRow, Sampled
from cutaway.sampling.observe import START, chain_hash

if TYPE_CHECKING:
    from cutaway.engine.constraint import Constraint
    from cutaway.engine.constraint.checks import Backtracker


@dataclass(eq=False)
class SequenceMemory:
    """A sequence's part of an engine's memory; ``SequenceBlocks`` gives it and takes it back.

    blocks         KV block ids by position // block size; the first ``published`` of them are in
                   the prefix cache, and the first ``num_out_of_window`` lie outside the sliding
                   windows of all rows to come
    stored         how many positions are written in the blocks, rejected draft tokens included;
                   they are counted where layers have sliding windows
    read_states    where layers have a recurrent state: the blocks with the states from which the
                   sequence may continue, by the number of tokens before each
    stored_states  the slots in which a step stores states, by the number of tokens before each
    num_shared     how many first tokens another text has, too: a state is kept after them, so that
                   the next such text can continue there
    """

    blocks: list[int] = field(default_factory=list)
    published: int = 0
    num_out_of_window: int = 0
    stored: int = 0
    read_states: dict[int, int] = field(default_factory=dict)
    stored_states: dict[int, int] = field(default_factory=dict)
    num_shared: int = 0


@dataclass(eq=False)
class Sequence:
    """One request while it is in the engine.

    longest            the most tokens that it can have, prompt included
    fork_of            the sample of the same prompt whose blocks this one may share
    memory             its KV blocks and their state
    num_cached_tokens  tokens of the prompt that were not computed for this sequence; None while
                       it has not left the queue
    prompt_scores      the scores of tokens computed so far, where the request has them scored:
                       prompt_token_ids[1:], or those of an answer (``ScoreAnswers``)
    logits_emitted     rows whose logits ``Scored`` events have emitted: a sequence that is
                       preempted and computed again emits each row once
    expected           tokens that the constraint forces next, used as draft tokens
    rewound            whether tokens were taken back, so that computed rows no longer fit
    outbox             the events that were emitted
    guest_code         calls code that the request brought
    salt               see ``Request.salt_for``
    num_bidirectional  how many first tokens attend to each other: a prompt's, where the model reads
                       it to both sides; else 0
    decoding           its decoder's state (``Decoder.begin``)
    """

    id: int
    request: Request
    vocabulary: ConstraintVocabulary
    longest: int
    fork_of: "Sequence | None" = None
    num_computed_tokens: int = 0
    num_cached_tokens: int | None = None
    memory: SequenceMemory = field(default_factory=SequenceMemory)
    prompt_scores: list[ReadRow] = field(default_factory=list)
    logits_emitted: int = 0
    fingerprint: int = START
    finish_reason: FinishReason | None = None
    matched: str | int | None = None
    error: Exception | None = None
    speculation: Speculation = field(default_factory=Speculation)
    rewound: bool = False
    outbox: Outbox = field(default_factory=Outbox)
    guest_code: GuestCode = field(init=False)

    def __post_init__(self) -> None:
        request, self._added_at = self.request, perf_counter()
        self.guest_code = GuestCode(self.outbox)
        assert request.sampling.seed is not None  # the engine has chosen one
        self.prompt_token_ids, self.seed = request.prompt_token_ids, request.sampling.seed
        attention = self.vocabulary.limits.attention
        self.salt = request.salt_for(attention)
        self.num_bidirectional = request.num_bidirectional(attention)
        self._repeated = 0  # events that a restored canvas makes again, to be dropped
        self.decoder, self.decoding = request.decoder, request.decoder.begin()
        self.observe = request.observe if request.observe.any_step else None
        self._prescribed = PrescribedTokens(request.run.forced, request.run.replay)
        ends = () if request.stopping.ignore_eos else self.vocabulary.limits.end_ids
        self._ending = frozenset((*ends, *request.stopping.stop_token_ids))
        self._begin()
        sampling = self.guest_code.guard_processors(request.sampling)
        masked = request.is_constrained or bool(self.vocabulary.limits.padding_ids)
        stages = request.decoder.stages(sampling, constrained=masked)
        self.chain = CompiledChain(stages, sampling, self.prompt_token_ids)
        self.backtracker: Backtracker | None = None
        if self.constraint and self.constraint.checks:
            from cutaway.engine.constraint import checks

            self.backtracker = checks.Backtracker(self.vocabulary)

    def _begin(self) -> None:
        """Set all state that depends on the output as it is before the first token."""
        self.output_token_ids: list[int] = []
        self._history = History(self.prompt_token_ids, self.output_token_ids)  # grows with it
        self.constraint, self.expected = self._new_constraint(), list[int]()
        constraint = self.request.constraint
        self._text = SequenceText(
            self.request.stopping.stop, self.vocabulary.token_bytes, self._ending,
            skip=len(constraint.healed_bytes(self.vocabulary)), min_tokens=constraint.min_tokens,
        )  # fmt: skip

    def _new_constraint(self) -> "Constraint | None":
        request, limits = self.request, self.vocabulary.limits
        constraint = self.guest_code.ask(
            request.constraint.make, self.vocabulary, self._ending, self.prompt_token_ids,
            (*self.decoder.banned_token_ids, *limits.padding_ids), request.grammar,
        )  # fmt: skip
        return constraint and GuestConstraint(constraint, self.guest_code)

    def __len__(self) -> int:
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def key(self) -> tuple[int, int]:
        """The sequence's place in every queue: priority, then arrival."""
        return self.request.run.priority, self.id

    @property
    def num_pending(self) -> int:
        """Tokens that are known but not computed; one while decoding with a KV cache."""
        return len(self) - self.num_computed_tokens

    @property
    def wants_prompt_scores(self) -> bool:
        """Whether log-probabilities of the prompt are still to be computed."""
        have = len(self.prompt_scores)
        return bool(self.request.observe.prompt_top) and have < len(self.prompt_token_ids) - 1

    def tokens(self, start: int, stop: int) -> list[int]:
        """Tokens at positions start … stop - 1, as far as they exist."""
        split = len(self.prompt_token_ids)
        head = self.prompt_token_ids[start:stop]
        return [*head, *self.output_token_ids[max(start - split, 0) : max(stop - split, 0)]]

    @property
    def num_prescribed(self) -> int:
        """How many prescribed tokens follow the text and can be computed with it."""
        if self._prescribed.is_empty or not self.request.run.kv_cache:
            return 0  # without a cache, the naive loop computes a token at a time
        left = self._prescribed.num_left(len(self.output_token_ids))
        return max(min(left, self.longest - len(self) - 1), 0)

    def next_prescribed(self, count: int) -> list[int]:
        """Return at most ``count`` next prescribed tokens: forced ones, or those of the replay."""
        return self._prescribed.next(len(self.output_token_ids), min(count, self.num_prescribed))

    @property
    def is_forced(self) -> bool:
        """Whether the next token is forced instead of drawn."""
        prescribed = self._prescribed
        return not prescribed.is_empty and prescribed.is_forced(len(self.output_token_ids))

    def next_forced(self, count: int) -> list[int]:
        """The tokens among the next ``count`` that are forced."""
        if self._prescribed.is_empty:
            return []
        return self._prescribed.get_forced(len(self.output_token_ids), count)

    def describe_token(self, token_id: int) -> str:
        """Describe a token for an error: its id and its text."""
        return f"{token_id} {self.vocabulary.token_bytes(token_id).decode('utf-8', 'replace')!r}"

    def history(self, drafts: list[int]) -> History:
        """Return the tokens that penalties read, as if these draft tokens were accepted."""
        if not drafts:
            return self._history
        return History(self.prompt_token_ids, [*self.output_token_ids, *drafts])

    def masks(self, drafts: list[int], *, forced: bool = False) -> list[Mask | None]:
        """Return the masks of the next token and after each draft token; see ``masks_along``."""
        if self.constraint is None:
            return [None] * (len(drafts) + 1)
        try:
            masks = masks_along(self.constraint, drafts, forced=forced)
            if self.backtracker and not forced:
                masks[0] = self.backtracker.mask_dead_ends(len(self.output_token_ids), masks[0])
                if drafts and not allows(masks[0], drafts[0]):
                    del masks[1:]
            return masks
        except CutawayError as error:  # commit drops the draws of a sequence with an error
            self.error = error
            return [None]

    def take_scores(self) -> None:
        """Copy the prompt's scores from the sample that this one forked from, if that has more."""
        if self.fork_of and len(self.fork_of.prompt_scores) > len(self.prompt_scores):
            self.prompt_scores = list(self.fork_of.prompt_scores)

    # -- appending and taking back ---------------------------------------------------------------

    def append(self, sampled: Sampled, drafted_by: str, phases: Phases) -> Step:
        """Append one token, and decide whether the sequence ends.

        drafted_by: see ``Scheduled``; "" where the token was not the draft token at its position
        """
        token_id, position = sampled.token_id, len(self)
        source = self._source(drafted_by)
        self.fingerprint = chain_hash(self.fingerprint, sampled.logits_hash)
        self.output_token_ids.append(token_id)
        if not self._prescribed.is_empty:
            self._prescribed.follow(self.output_token_ids, len(self.output_token_ids) - 1)
        certain, text = self._text.push(token_id)
        refused_by = self._follow_constraint(token_id, forced=source == "forced")
        if self.finish_reason:
            rest, rest_text = self._text.end()
            certain, text = certain + rest, text + rest_text
        return Step(
            self.id, len(self.output_token_ids) - 1, position, token_id, sampled.sampled_id,
            source, text, len(certain), sampled.logprob, sampled.survivors, sampled.observed,
            phases, sampled.logits_hash, self.fingerprint, sampled.unconstrained_id, refused_by,
        )  # fmt: skip

    def confirm(self, step: Step) -> list[Step]:
        """Add a step; return the steps that can no longer be taken back, in order."""
        try:
            steps = self._delay(step, self.backtracker) if self.backtracker else [step]
        except CutawayError as error:
            self.error, steps = error, []
        if self.request.run.replay and not self.error:
            self.error = self._prescribed.mismatch_error(
                steps, len(self.output_token_ids), self.finish_reason, self.describe_token
            )
        if self.error:
            self.finish_reason = None  # the sequence ends by the error, not by its last token
        return steps

    def _delay(self, step: Step, backtracker: "Backtracker") -> list[Step]:
        backtracker.delay(step)
        if not (self.finish_reason or self.error or self.is_forced):
            mask = self.constraint.mask() if self.constraint else None
            if mask is not None and not mask.any():
                self._backtrack(backtracker)
        return backtracker.release(0 if self.finish_reason else backtracker.window)

    def _backtrack(self, backtracker: "Backtracker") -> None:
        """Leave a dead end: take back the last tokens of the output, or end with an error.

        The engine then computes the remaining tokens once more.
        """
        constraint = self._new_constraint()
        assert constraint is not None
        first = len(self.request.run.forced)
        to = backtracker.rewind(self.output_token_ids, constraint, first)
        if to is None:
            name, *other_names = constraint.checks
            self.error = InputError(
                name,
                *(f" and {other}" for other in other_names),
                ": nothing that may follow passes the "
                f"check, and going back {backtracker.count} times did not help: loosen the schema "
                "or the check",
            )
            return
        self.write(self.output_token_ids[: to.length])
        self.fingerprint, self.rewound = to.fingerprint, True

    def write(self, token_ids: list[int]) -> None:
        """Replace the output by these tokens, without making steps."""
        self._begin()
        for token_id in token_ids:
            self.output_token_ids.append(token_id)
            self._text.push(token_id)
            self._constrain(token_id)
        self._prescribed.diverged = False
        self._prescribed.follow(token_ids, 0)

    def _follow_constraint(self, token_id: int, *, forced: bool) -> tuple[str, ...]:
        """Advance the constraint by the output's last token; return the checks that refused tokens.

        Sets the finish reason where the token ends the sequence.
        """
        refused_by: tuple[str, ...] = ()
        try:
            if self.constraint:
                refused_by = self.constraint.refused_by
                self._constrain(token_id, forced=forced)
            if not self.error:  # an error ends the sequence, whatever other condition holds
                self._check_end(token_id)
        except CutawayError as error:
            self.error = error
        return refused_by

    def _constrain(self, token_id: int, *, forced: bool = False) -> None:
        if self.constraint is None:
            return
        try:
            self.constraint.accept(token_id)
            self.expected = [] if self.is_forced else [*self.constraint.find_forced_tokens()]
        except CutawayError as error:
            is_forbidden = forced and error.__cause__ is None
            self.error = self._forbidden_error(token_id) if is_forbidden else error
            self.expected = []

    def _forbidden_error(self, token_id: int) -> InputError:
        return InputError(
            "forced",
            f": the grammar does not allow token {self.describe_token(token_id)} at step "
            f"{len(self.output_token_ids)}: give another, or leave out the grammar",
        )

    def _source(self, drafted_by: str) -> str:
        if self.is_forced:
            return "forced"
        if drafted_by and drafted_by != "replay":  # a replayed token was drawn like any other
            return drafted_by
        return "sampled" if self.request.sampling.temperature > 0 else "greedy"

    def _check_end(self, token_id: int) -> None:
        """Set the finish reason: of all whose condition is met, the first in the order below."""
        stopping, limits = self.request.stopping, self.vocabulary.limits
        if self._text.stop is not None:
            self.finish_reason, self.matched = FinishReason.STOP_STRING, self._text.stop
        elif token_id in stopping.stop_token_ids:
            self.finish_reason, self.matched = FinishReason.STOP_TOKEN, token_id
        elif token_id in self._ending:
            self.finish_reason, self.matched = FinishReason.END_TOKEN, token_id
        elif self.constraint and self.constraint.is_over:
            self.finish_reason = FinishReason.CONSTRAINT
        elif len(self.output_token_ids) >= stopping.max_tokens:
            self.finish_reason = FinishReason.MAX_TOKENS
        elif len(self) >= limits.context_length:
            self.finish_reason = FinishReason.CONTEXT_FULL

    # -- its events ------------------------------------------------------------------------------

    def emit(self, events: list[Event]) -> list[Event]:
        """Add events to the outbox, all or none; return the events that are new to its readers."""
        if self._repeated:
            events = [event for event in events if not self._is_repeated(event)]
        self.outbox.emit(events, self.speculation)
        return events

    def _is_repeated(self, event: Event) -> bool:
        if not (self._repeated and isinstance(event, Pass | Step)):
            return False
        self._repeated -= 1
        return True

    def restore(self) -> None:
        """Go back to the emitted events, with nothing computed and no blocks.

        Called after an exception has interrupted a step. Tokens that were drawn and not emitted are
        drawn again, with the same luck. A canvas begins anew, and emits no event twice.
        """
        fresh = Sequence(
            self.id, self.request, self.vocabulary, self.longest, self.fork_of,
            speculation=self.speculation, outbox=self.outbox,
        )  # fmt: skip
        fresh._added_at, fresh.guest_code.interrupted_at = (
            self._added_at,
            self.guest_code.interrupted_at,
        )
        fresh._follow(self.backtracker)
        self.__dict__.update(fresh.__dict__)  # one call: no exception leaves it half restored

    def _follow(self, backtracker: "Backtracker | None") -> None:
        events = list(self.outbox)
        for event in events:
            if isinstance(event, Started):
                self.num_cached_tokens = event.cached_tokens
            elif isinstance(event, Scored):
                self.prompt_scores += event.rows
                if event.logits is not None:
                    self.logits_emitted = event.position - 1 + len(event.logits)
        if self.decoder.goes_back:
            self._repeated = sum(isinstance(event, Pass | Step) for event in events)
            return
        if steps := [event for event in events if isinstance(event, Step)]:
            self.write([step.token_id for step in steps])
            self.fingerprint = steps[-1].fingerprint
        if self.backtracker and backtracker:
            self.backtracker.follow(steps, backtracker)

    def starting_events(self) -> list[Event]:
        """Return Started, and the prompt's scores if another sample computed them."""
        window = self.backtracker.window if self.backtracker else 0
        events: list[Event] = [
            Started(
                self.id, self.prompt_token_ids, self.num_cached_tokens or 0, self.seed,
                chain_as_data(self.chain.chain), perf_counter() - self._added_at, window,
            )
        ]  # fmt: skip
        if self.prompt_scores:
            events.append(Scored(self.id, 1, tuple(self.prompt_scores)))
        return events

    def ending_events(self) -> list[Event]:
        """Return the delayed steps, and Ended."""
        assert self.finish_reason is not None
        num_output, cached = len(self.output_token_ids), self.num_cached_tokens or 0
        _, held_text = self._text.end()
        end = Ended(
            self.id, self.finish_reason, self.matched,
            Usage(len(self.prompt_token_ids), cached, num_output),
            self.fingerprint, held_text, self.error, self.speculation,
        )  # fmt: skip
        return [*(self.backtracker.release(0) if self.backtracker else ()), end]
