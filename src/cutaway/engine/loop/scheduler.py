"""Which rows of which sequences the next step computes: admission, KV blocks, rows, preemption.

Continuous batching with chunked prefill. A preempted sequence is computed again (recompute).
How many rows of a prompt belong in a step beside sequences that decode is said by ``StepTime``:
whoever reads a text waits for a prompt's rows, which cost the more the further they are in theirs.
Both costs are learnt from the time of the steps themselves. No token depends on it.
"""

from bisect import insort
from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from statistics import median_low
from time import perf_counter
from typing import NamedTuple

from cutaway.base.checks import check_bool, check_int, check_number
from cutaway.compute.backends import STEP_ROWS
from cutaway.engine.memory import SequenceBlocks
from cutaway.engine.scheduled import Scheduled, rows_to_state_change
from cutaway.engine.sequence import Sequence
from cutaway.engine.speculation import Speculator

# -- how long a step takes -------------------------------------------------------------------------

LEAST_ROWS = 4
"""A prompt's rows in a step, at least: of two, each costs 1.4 times what it costs among eight."""
LEAST_STEPS = 2
"""A target is at least so many times what the texts take alone: the prompt has half of the time."""
ALONE_EVERY = 16
"""After so many steps with rows of prompts, one without: what the texts take alone."""
_RECENT = 3  # steps that count, of which the median holds: one that was held up changes nothing
_NEAR = 256  # tokens; from here on, rows are told apart by the power of two of their position


class StepRows(NamedTuple):
    """What a step computes.

    decoding  rows of sequences that decode, draft tokens included
    prompts   rows of others
    position  of the first of the prompt that has the most of them
    """

    decoding: int
    prompts: int
    position: int


class StepTime:
    """What steps took, and what follows for the next."""

    def __init__(self) -> None:
        self._alone: deque[float] = deque(maxlen=_RECENT)  # seconds of steps that only decode
        self._row: dict[int, deque[float]] = {}  # seconds of a prompt's row, by its distance
        self._steps_beside = ALONE_EVERY  # since the last step that only decoded

    def learn(self, rows: StepRows, seconds: float) -> None:
        """Note what a step took."""
        if not rows.prompts:
            self._alone.append(seconds)
            self._steps_beside = 0
            return
        if rows.decoding:
            self._steps_beside += 1
        if rows.prompts >= LEAST_ROWS and (self._alone or not rows.decoding):
            alone = median_low(self._alone) if rows.decoding else 0.0
            own = max(seconds - alone, seconds / 10, 1e-9)  # noise may leave less
            self._near(rows.position + rows.prompts // 2).append(own / rows.prompts)

    def room(self, position: int, step_ms: float) -> int | None:
        """How many rows of a prompt fit beside those that decode, from this position on.

        step_ms: the target of a step
        0: this step is to measure what the texts take alone. None: not known yet.
        """
        if self._steps_beside >= ALONE_EVERY:
            return 0
        if not self._row:
            return None
        alone = median_low(self._alone)
        target = max(step_ms / 1e3, LEAST_STEPS * alone)
        return max(LEAST_ROWS, int((target - alone) / median_low(self._near(position))))

    def _near(self, position: int) -> deque[float]:
        """What rows took at such positions; at first, what they took at the nearest known."""
        distance = (position // _NEAR).bit_length()
        if distance not in self._row:
            known = sorted(self._row, key=lambda other: abs(other - distance))
            begun = [median_low(self._row[other]) for other in known[:1]]
            self._row[distance] = deque(begun, maxlen=_RECENT)
        return self._row[distance]


# -- the scheduler ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How a step is filled. None of it changes a token. InputError for a value out of range.

    max_rows       rows of one step: bounds the memory of a long prompt's activations; more only
                   for a longer text of bidirectional attention, and then no other prompt is read
    max_prefill_rows_while_decoding  the same where a sequence decodes, whose next token should not
                   wait long
    step_ms        milliseconds that such a step should take at most, of which a prompt has half or
                   more; 0: no target
    max_logit_rows rows of a text whose every row's logits are wanted: of a prompt that is scored,
                   or of prescribed tokens
    max_draft_rows rows of decoding and draft tokens together: where compute overtakes memory
    max_num_seqs   sequences in one step
    max_waiting    sequences in the queue; None has no limit
    prefix_cache   keep what was computed, for sequences that begin alike
    """

    max_rows: int = STEP_ROWS
    max_prefill_rows_while_decoding: int = 128
    step_ms: float = 0
    max_logit_rows: int = 64
    max_draft_rows: int = 16
    max_num_seqs: int = 64
    max_waiting: int | None = None
    prefix_cache: bool = True

    def __post_init__(self) -> None:
        check_int("max_num_seqs", self.max_num_seqs, 1, 1024)
        if self.max_waiting is not None:
            check_int("max_waiting", self.max_waiting, 0)
        check_number("step_ms", self.step_ms, 0, 60000)
        check_bool("prefix_cache", self.prefix_cache)


class Scheduler:
    """The queue, and the running sequences. The oldest of the highest priority always advances."""

    def __init__(self, blocks: SequenceBlocks, policy: Policy, speculator: Speculator) -> None:
        self._blocks, self.policy, self._speculator = blocks, policy, speculator
        self.waiting: list[Sequence] = []  # both in the order of their keys
        self.running: list[Sequence] = []
        self.started: list[Sequence] = []  # that left the queue for the first time in this step
        self.max_num_seqs = min(policy.max_num_seqs, policy.max_rows)
        self.preemptions = 0
        self.draft_s = 0.0  # of the last step, spent on draft tokens
        self._step_time, self._step_rows = StepTime(), StepRows(0, 0, 0)

    def schedule(self) -> list[Scheduled]:
        """The rows of the next step, in the order of the queue; empty without sequences."""
        self.started, self.draft_s = [], 0.0
        self._admit()
        decoding = self._decode()
        prefill = self._prefill(decoding)
        # A sequence that was scheduled may have been preempted for an older one since.
        decoding = [s for s in decoding if s.sequence.memory.blocks]
        prefill = [s for s in prefill if s.sequence.memory.blocks]
        self._step_rows = _step_rows(decoding, prefill)
        scheduled = decoding + prefill
        self._blocks.trim_windows(self.running, scheduled)
        self._blocks.place_states(scheduled)
        return sorted(scheduled, key=lambda s: s.sequence.key)

    def learn(self, seconds: float) -> None:
        """Note how long the step took that was scheduled last."""
        self._step_time.learn(self._step_rows, seconds)

    def add(self, sequence: Sequence) -> None:
        """Put a sequence into the queue, in its place."""
        insort(self.waiting, sequence, key=lambda s: s.key)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence, wherever it is, and free its blocks."""
        if sequence in self.waiting:
            self.waiting.remove(sequence)
        else:
            self.running.remove(sequence)
            self._blocks.release(sequence)

    def reset(self, sequences: Iterable[Sequence]) -> None:
        """Put these sequences, which hold no blocks, into the queue, and no others."""
        self.running, self.started = [], []
        self.waiting = sorted(sequences, key=lambda s: s.key)

    def preempt(self, sequence: Sequence) -> None:
        """Back into the queue; its text is computed again, as far as the cache has lost it."""
        self.running.remove(sequence)
        self._blocks.release(sequence)
        self.add(sequence)
        self.preemptions += 1

    # -- admission ---------------------------------------------------------------------------

    def _admit(self) -> None:
        while self.waiting:
            first = self.waiting[0]
            first.take_scores()
            fork_of = self._running_parent(first)
            if fork_of and _reads_for(fork_of, first):
                return  # soon its blocks can be shared
            full = len(self.running) == self.max_num_seqs
            spare = _watermark(len(self.running))
            wanted = 0 if full else self._blocks.admit(first, fork_of, spare)
            if wanted is None:
                self._start(first)
            elif self._can_preempt_for(first, wanted):
                self.preempt(self.running[-1])
            else:
                return

    def _can_preempt_for(self, first: Sequence, wanted: int) -> bool:
        """Whether preempting lower priorities frees enough KV blocks; else it would be in vain."""
        less = [s for s in self.running if s.request.run.priority > first.request.run.priority]
        room = self._blocks.free + sum(len(s.memory.blocks) for s in less)
        return bool(less) and wanted + _watermark(len(self.running) - len(less)) <= room

    def _start(self, first: Sequence) -> None:
        """Move the first of the queue, which has its blocks, to those that run."""
        self._blocks.note_partings(self.running, first)
        insort(self.running, self.waiting.pop(0), key=lambda s: s.key)
        if first.num_cached_tokens is None:
            first.num_cached_tokens = first.num_computed_tokens
            self.started.append(first)

    def _running_parent(self, sequence: Sequence) -> Sequence | None:
        """The running sample of the same prompt whose blocks it shares; None once it has output."""
        shares = sequence.request.run.kv_cache and sequence.decoder.shares(sequence)
        begins = shares and not sequence.output_token_ids
        return sequence.fork_of if begins and sequence.fork_of in self.running else None

    # -- rows --------------------------------------------------------------------------------

    def _decode(self) -> list[Scheduled]:
        """The rows of sequences that decode, with draft tokens."""
        scheduled: list[Scheduled] = []
        waiting = [s for s in self.running if s.decoder.is_decoding(s)]
        room = self.policy.max_rows
        for left, sequence in zip(range(len(waiting), 0, -1), waiting, strict=True):
            if self._grow(sequence):
                one = self._rows(sequence, room - left + 1)  # one row each at least
                if one.num_rows:  # else it waits for room
                    scheduled.append(one)
                    room -= one.num_rows
        self._draft([s for s in scheduled if s.sequence.decoder.drafts], len(scheduled))
        return scheduled

    def _draft(self, scheduled: list[Scheduled], rows: int) -> None:
        """Set draft tokens; the sequences that want some have equal shares of the step's room."""
        drafting = [s for s in scheduled if _wants_drafts(s.sequence)]
        if not drafting:
            return
        room = (min(self.policy.max_draft_rows, self.policy.max_rows) - rows) // len(drafting)
        draft_requests = []
        for one in drafting if room > 0 else []:
            sequence, fits = one.sequence, self._room_to_draft(one.sequence, room)
            if sequence.expected:
                one.set_drafts(sequence.expected[:fits], "grammar")
            else:
                draft_requests.append((one, fits))
        if not draft_requests:
            return
        started = perf_counter()
        proposed = self._speculator.propose([(s.sequence, fits) for s, fits in draft_requests])
        self.draft_s = perf_counter() - started
        for (one, _), drafts in zip(draft_requests, proposed, strict=True):
            one.set_drafts(drafts, "draft")

    def _prefill(self, decoding: list[Scheduled]) -> list[Scheduled]:
        """The next rows of sequences that do not decode, prompts above all.

        Shorter ones go before the oldest, which has half of the room or more. A sequence whose next
        block another computes in this step waits, and finds it afterwards.
        """
        policy, taken = self.policy, {s.sequence.id for s in decoding}
        reading = [sequence for sequence in self.running if sequence.id not in taken]
        if not reading:
            return []
        room = self._room_beside(decoding, reading[0]) if decoding else policy.max_rows
        prefill: dict[int, Scheduled] = {}  # by sequence id
        coming, size = dict[Hashable, int](), self._blocks.size  # which sequence computes a block
        oldest, short = reading[0], self._shorter(reading, room)
        kept = room - room // 2 if short else 0  # for the oldest, until it has had its turn
        if kept >= size and (block := self._blocks.next_block(oldest)) is not None:
            coming[block] = oldest.id
        for sequence in [*short, *reading]:
            kept = 0 if sequence is oldest else kept
            fits = room - kept
            if fits <= 0 or sequence.id in prefill or not self._grow(sequence):
                continue
            self._blocks.find_more(sequence)
            block, after = self._blocks.next_block(sequence), sequence.num_computed_tokens + size
            is_coming = coming.get(block, sequence.id) != sequence.id
            if is_coming and sequence.decoder.reusable(sequence) >= after:
                continue
            one = self._rows(sequence, fits)
            whole = sequence.decoder.positions(sequence)
            for most in (policy.max_rows, whole):  # a text that must be in one step
                if not (one.num_rows or prefill or short):
                    one = self._rows(sequence, most)
            if one.num_rows:  # else it keeps its blocks
                prefill[sequence.id] = one
                room -= one.num_rows
            if block is not None and len(one.token_ids) >= size:
                coming[block] = sequence.id
        return [*prefill.values()]

    def _shorter(self, reading: list[Sequence], room: int) -> list[Sequence]:
        """Those of the oldest's priority that have fewer rows left than it, the fewest first.

        None where half of the room holds all, or is too little for the oldest: a whole text.
        """
        if len(reading) == 1:
            return []
        oldest, least = reading[0], room - room // 2
        self._blocks.find_more(oldest)
        left = _unread(oldest)
        if left <= least or not self._rows(oldest, least).num_rows:
            return []
        priority = oldest.request.run.priority
        alike = [s for s in reading[1:] if s.request.run.priority == priority]
        return sorted([s for s in alike if _unread(s) < left], key=_unread)

    def _room_beside(self, decoding: list[Scheduled], reading: Sequence) -> int:
        """The rows of prompts, of which one is at hand, in a step beside those that decode."""
        policy = self.policy
        decoded = sum(s.num_rows for s in decoding)
        room = max(policy.max_prefill_rows_while_decoding - decoded, LEAST_ROWS)
        room = min(room, policy.max_rows - decoded)
        if not policy.step_ms:
            return room
        fits = self._step_time.room(reading.num_computed_tokens, policy.step_ms)
        return room if fits is None else min(room, fits)

    def _rows(self, sequence: Sequence, room: int) -> Scheduled:
        room = min(room, rows_to_state_change(sequence, sequence.num_computed_tokens))
        return sequence.decoder.rows(sequence, room, self.policy.max_logit_rows)

    def _room_to_draft(self, sequence: Sequence, room: int) -> int:
        """How many draft tokens fit; takes KV blocks for them as far as some are free."""
        room = min(room, rows_to_state_change(sequence, len(sequence) - 1) - 1)
        room = max(0, min(room, sequence.longest - len(sequence) - 1))
        lacking = self._blocks.lacking(sequence, len(sequence) + room)
        self._blocks.extend(sequence, min(lacking, self._blocks.free))
        return min(room, len(sequence.memory.blocks) * self._blocks.size - len(sequence))

    def _grow(self, sequence: Sequence) -> bool:
        """Give it KV blocks for all positions, preempting the youngest. False: it has none left."""
        if not sequence.memory.blocks:
            return False
        lacking = self._blocks.lacking(sequence, sequence.decoder.positions(sequence))
        while lacking > self._blocks.free:
            last = self.running[-1]
            self.preempt(last)
            if last is sequence:
                return False
        self._blocks.extend(sequence, lacking)
        return True


def _step_rows(decoding: list[Scheduled], prefill: list[Scheduled]) -> StepRows:
    decoded = sum([s.num_rows for s in decoding])
    if not prefill:
        return StepRows(decoded, 0, 0)
    most = max(prefill, key=lambda s: s.num_rows)
    return StepRows(decoded, sum([s.num_rows for s in prefill]), most.start)


def _unread(sequence: Sequence) -> int:
    """How many of its positions are not computed."""
    return sequence.decoder.positions(sequence) - sequence.num_computed_tokens


def _reads_for(fork_of: Sequence, sequence: Sequence) -> bool:
    """Whether it still computes a part of the prompt that the other can then share."""
    if fork_of.wants_prompt_scores:
        return True
    return fork_of.num_computed_tokens < sequence.decoder.reusable(sequence)


def _watermark(running: int) -> int:
    """Blocks left free: one per running sequence, so that admission does not cause preemption."""
    return running + 1 if running else 0


def _wants_drafts(sequence: Sequence) -> bool:
    return bool(sequence.expected) or sequence.request.run.speculate != "off"
